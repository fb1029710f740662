"""The fronts of several studies beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tadnn import pareto
from tadnn.errors import RequestError
from tadnn.report.study_view import FRONT, StudyView, losses, worst_corner


@dataclass(frozen=True)
class ComparedView:
    """One study of a comparison.

    Args:
        key: how the study is named in links.
        name: its name.
        subtitle: its setting.
        trials: numbers of its front's members.
        values: [members, objectives], as the study has them.
        volume: what its front dominates up to the common reference; None where the objectives
            are too many.
    """

    key: str
    name: str
    subtitle: str
    trials: tuple[int, ...]
    values: tuple[tuple[float, ...], ...]
    volume: float | None


@dataclass(frozen=True)
class CompareView:
    """Several studies' fronts over the objectives that all of them have.

    Args:
        studies: the studies.
        objectives: keys of the shared objectives.
        titles: what their axes say.
        better: ``min`` or ``max`` of each.
        reference: the common worst corner; empty where no front has a member.
        doubts: why the comparison may mislead; empty where nothing does.
    """

    studies: tuple[ComparedView, ...]
    objectives: tuple[str, ...]
    titles: tuple[str, ...]
    better: tuple[str, ...]
    reference: tuple[float, ...]
    doubts: tuple[str, ...]


def compare_view(studies: Sequence[tuple[str, StudyView]]) -> CompareView:
    """Return the comparison of studies, given with how they are named in links.

    The reference is the worst of each shared objective among all members of all fronts, a
    tenth of its range worse; hypervolumes up to it compare.

    Raises:
        RequestError: the studies share no objective.
    """
    shared = [
        goal.key
        for goal in studies[0][1].goals
        if all(goal.key in {g.key for g in view.goals} for _, view in studies)
    ]
    if not shared:
        named = "; ".join(f"{k} has {', '.join(g.key for g in v.goals)}" for k, v in studies)
        raise RequestError(f"studies are compared over objectives that all of them have; {named}")
    fronts = []
    for _, view in studies:
        goals = [next(g for g in view.goals if g.key == key) for key in shared]
        at = np.flatnonzero(view.status == FRONT)
        values = np.stack([goal.values[at] for goal in goals], axis=1)
        fronts.append((view.trials[at], values, losses(goals)[at]))
    every = np.concatenate([loss for *_, loss in fronts])
    corner = worst_corner(every) if len(every) else None
    goals = [next(g for g in studies[0][1].goals if g.key == key) for key in shared]
    signs = np.array([-1.0 if goal.better == "max" else 1.0 for goal in goals])
    return CompareView(
        studies=tuple(
            ComparedView(
                key,
                view.name,
                view.subtitle,
                tuple(trials.tolist()),
                tuple(map(tuple, values.tolist())),
                pareto.hypervolume(loss, corner)
                if corner is not None and len(shared) < 4
                else None,
            )
            for (key, view), (trials, values, loss) in zip(studies, fronts, strict=True)
        ),
        objectives=tuple(shared),
        titles=tuple(goal.title for goal in goals),
        better=tuple(goal.better for goal in goals),
        reference=() if corner is None else tuple((corner * signs).tolist()),
        doubts=tuple(_doubts([view for _, view in studies], shared)),
    )


def _doubts(views: Sequence[StudyView], shared: Sequence[str]) -> list[str]:
    doubts = []
    if "latency" in shared and len({view.subtitle for view in views}) > 1:
        doubts.append("The studies' settings differ, and so does what their latencies mean.")
    judges = {(str(view.spec.get("accuracy")), str(view.spec.get("dataset"))) for view in views}
    if "accuracy" in shared and len(judges) > 1:
        doubts.append("The studies judge accuracy in different ways or on different data.")
    if any({g.key for g in view.goals} != set(shared) for view in views):
        doubts.append("Not all objectives are shared: a front may look dominated where it isn't.")
    return doubts
