"""What became of a study's stages and of its budget, as a record and in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tadnn.search.entrants import Entrant, Plan, entrants_of
from tadnn.search.stage_budget import Purse

if TYPE_CHECKING:
    from optuna import Study

    from tadnn.search.spec import StudySpec


def stages_record(spec: StudySpec, study: Study) -> dict[str, Any]:
    """Return the part of ``front.json`` about stages; empty where there are none.

    ``stages`` has for each its ``proxy`` or ``epochs``, how many ``trials`` ended it well, and
    the ``seconds`` of its trainings, failed ones included; ``budget`` the ``train_minutes`` that
    the study may spend and those it ``spent``.
    """
    plan = Plan.of(spec)
    if plan is None:
        return {}
    entrants = entrants_of(study.get_trials(deepcopy=False), study.directions)
    stages = [
        {
            **({"proxy": spec.proxy} if epochs is None else {"epochs": epochs}),
            "trials": sum(entrant.reached(stage) for entrant in entrants),
            **({} if epochs is None else {"seconds": round(_seconds(entrants, stage), 3)}),
        }
        for stage, epochs in enumerate(plan.epochs)
    ]
    record: dict[str, Any] = {"stages": stages}
    if spec.budget is not None:
        spent = sum(_seconds(entrants, stage) for stage in range(len(stages)))
        minutes = spec.budget.train_minutes
        record["budget"] = {"train_minutes": minutes, "spent_minutes": round(spent / 60, 3)}
    return record


def stages_note(record: Mapping[str, Any]) -> str:
    """Return how far trials came, from `stages_record`."""
    parts = []
    for stage in record["stages"]:
        if "proxy" in stage:
            parts.append(f"{stage['trials']} trials ended the proxy")
        else:
            what = "one" if any("training" in part for part in parts) else "a training"
            plural = "" if stage["epochs"] == 1 else "s"
            parts.append(f"{stage['trials']} {what} of {stage['epochs']} epoch{plural}")
    return ", ".join(parts)


def budget_note(spec: StudySpec, study: Study) -> str:
    """Return why a search ended before all promotions, and what the next training would take."""
    plan = Plan.of(spec)
    assert plan is not None
    entrants = entrants_of(study.get_trials(deepcopy=False), study.directions)
    purse = Purse(plan, entrants)
    spent, left = purse.spent_s / 60, max(0.0, purse.left_s / 60)
    text = (
        f"the budget of {plan.budget_s / 60:g} minutes of training is used up: {spent:.3g} "
        f"minutes are spent; {stages_note(stages_record(spec, study))}"
    )
    if purse.finished:
        return text
    costs = [
        (cost, entrant.number)
        for entrant in entrants
        if entrant.is_paused(plan.last)
        if (cost := purse.whole_cost_s(entrant.flops, entrant.stage + 1) or 0.0) > 60 * left
    ]
    text += f". It is too small: no trial ended {plan.label(plan.last)}, so the front is empty"
    if costs:
        cost, number = min(costs)
        text += (
            f"; the cheapest that is left, trial {number}, takes about {cost / 60:.3g} minutes to "
            f"get there, and {left:.3g} minutes are left"
        )
    return text


def _seconds(entrants: list[Entrant], stage: int) -> float:
    return sum(e.results[stage].seconds for e in entrants if stage in e.results)
