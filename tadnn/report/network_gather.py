"""Making a network's view from what its trial stored and the study's latency model."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tadnn.errors import CorruptFile, UnknownName
from tadnn.report.network_view import (
    CommandView,
    EpochView,
    NetworkView,
    stage_views,
)
from tadnn.report.study_view import FRONT, INFEASIBLE, StudyView
from tadnn.report.tail_view import GroupView, group_views
from tadnn.report.text import count_text, pair_text
from tadnn.report.views import (
    BreakdownView,
    PairView,
    PredictionView,
    StairView,
    setting_text,
)

if TYPE_CHECKING:
    from tadnn.kernels import Kernel
    from tadnn.latency import LatencyModel
    from tadnn.nets import Net
    from tadnn.search import Study

_WIDTHS: Final = 128


def frozen_model(study: Study) -> tuple[LatencyModel | None, str]:
    """Return the latency model that a study began with, or why it is not at hand."""
    from tadnn.latency import load_latency_model

    facts = study.user_attrs.get("tadnn:latency_model")
    if facts is None:
        return None, "the study has no latency model"
    try:
        model = load_latency_model(facts["name"])
    except (UnknownName, CorruptFile) as error:
        return None, str(error)
    if model.hash != facts["hash"]:
        return None, f"latency model {model.name} is not the one that the study began with"
    return model, ""


def network_view(
    view: StudyView, study: Study, trial: int, model: LatencyModel | None, note: str, where: str
) -> NetworkView:
    """Return the view of one trial's network.

    Args:
        view: of its study.
        study: the study, opened to be read.
        trial: its number.
        model: the study's latency model; None where it is not at hand.
        note: why it is not.
        where: how the study is named on the command line.

    Raises:
        TargetError: there is no evaluated trial of that number.
    """
    from tadnn.search import evaluated_trial, unpack_net
    from tadnn.tail import Rewriter, tail_report

    stored = evaluated_trial(study, trial).user_attrs
    net, result = unpack_net(stored["tadnn:net"]), stored["tadnn:result"]
    batch = int(view.spec.get("batch", 1))
    finalist = view.finalists.get(trial, {})
    subtitle = setting_text(view.front)
    breakdown, latency = None, None
    groups: tuple[GroupView, ...] = ()
    remarks: tuple[str, ...] = ()
    if model is not None:
        breakdown = breakdown_view(view.name, trial, subtitle, net, batch, model)
        tail = tail_report(Rewriter(net, model, batch))
        groups, remarks = group_views(tail), tuple(tail.remarks())
        latency = _block_latency(net, batch, model)
    pair = _pair(trial, result, finalist)
    return NetworkView(
        study=view.name,
        trial=trial,
        subtitle=subtitle,
        standing=_standing(view, trial, finalist),
        facts=tuple(_facts(result, finalist)),
        choices=tuple(result["arch"].items()),
        input_shape=net.input_shape,
        stages=stage_views(net, latency),
        breakdown=breakdown,
        groups=groups,
        remarks=remarks,
        note="" if model is not None else note,
        pair=pair,
        pairs=PredictionView.from_front(view.front),
        disagreement=_disagreement(pair),
        curve=tuple(
            EpochView(int(e["epoch"]), float(e["validation_accuracy"]), float(e["validation_loss"]))
            for e in (finalist.get("trained") or {}).get("history", ())
        ),
        commands=tuple(_commands(where, trial, batch, result, model)),
    )


def breakdown_view(
    study: str, trial: int, subtitle: str, net: Net, batch: int, model: LatencyModel
) -> BreakdownView:
    """Return where a network's predicted latency goes."""
    from tadnn.latency import to_json

    prediction = to_json(model.predict_net(net, batch), model)
    return BreakdownView.from_prediction(f"{study} #{trial}", subtitle, prediction)


def costliest_stair(
    study: str, trial: int, net: Net, batch: int, model: LatencyModel
) -> StairView | None:
    """Return the stairs of the costliest layer with a width of its own; None without any.

    Only layers that the model was fitted on, over the widths that it was fitted on.
    """
    from tadnn.latency import width_of

    for share in model.predict_net(net, batch).kernels:
        size = width_of(share.kernel)
        if size is None or not share.in_range or share.kernel.op not in model.ops:
            continue
        stair = _stair(f"{study} #{trial}", share.kernel, size, model)
        if len(stair.widths) > 1:  # not profiled at one width, such as the number of classes
            return stair
    return None


def _stair(title: str, kernel: Kernel, size: str, model: LatencyModel) -> StairView:
    from tadnn.tail import sweep_kernel

    present = kernel.dim(size)
    low, high = model.ops[kernel.op].box[size]
    widths = sorted({*range(low, high + 1, max(1, (high - low) // _WIDTHS)), present})
    swept = sweep_kernel(model, kernel, size, widths)
    return StairView(
        title=f"{title}: one layer's latency against its width",
        subtitle=kernel.key,
        axis="output channels" if kernel.op == "conv2d" else "output features",
        widths=swept.values,
        latency_us=swept.latency_us,
        std_us=swept.std_us,
        present=present,
        label=title,
        efficient=swept.efficient_values,
    )


def _block_latency(net: Net, batch: int, model: LatencyModel) -> dict[str, float]:
    """Return the sum of each block's kernels, microseconds."""
    from tadnn.runtimes import find_runtime, lower_blocks

    runtime = find_runtime(model.setting.runtime)
    blocks = lower_blocks(net, batch, model.setting.dtype, runtime)
    launched = {name: kernels for (name, _), kernels in zip(net.blocks, blocks, strict=True)}
    known = model.remember_costs(kernel for kernels in launched.values() for kernel in kernels)
    return {name: sum(known[k][0] for k in kernels) for name, kernels in launched.items()}


def _standing(view: StudyView, trial: int, finalist: Any) -> str:
    at = view.index(trial)
    status = None if at is None else int(view.status[at])
    parts = {FRONT: "on the front", INFEASIBLE: "beyond a constraint"}
    words = [parts.get(status, "dominated") if status is not None else "not completed"]
    words += ["the knee"] if trial == view.knee else []
    words += ["a finalist"] if finalist else []
    return ", ".join(words)


def _facts(result: Any, finalist: Any) -> Sequence[tuple[str, str]]:
    predicted, measured, proxy = result["predicted"], finalist.get("measured"), result["proxy"]
    trained = finalist.get("trained") or result["trained"]
    facts = []
    if predicted:
        text = f"{pair_text(predicted['latency_ms'], predicted['std_ms'])} ms"
        facts.append(("predicted latency", text))
        if not predicted.get("in_range", True):
            facts.append(("prediction", "outside of the latency model's range"))
    if measured:
        text = f"{pair_text(measured['latency_ms'], measured['spread_ms'])} ms"
        facts.append(("measured latency", text))
    if trained:
        epochs = f"{trained['epochs']} epoch{'' if trained['epochs'] == 1 else 's'}"
        facts.append((f"{trained['split']} accuracy", f"{trained['accuracy']:.4f}, {epochs}"))
    else:
        facts.append(("weights", "untrained"))
    if proxy:
        facts.append((f"{proxy['name']} score", f"{proxy['value']:.5g}"))
    facts += [
        ("parameters", count_text(result["parameters"])),
        ("FLOPs", count_text(result["flops"])),
        ("memory", f"{count_text(result['memory_bytes'])}B"),
        ("space", str(result["space"])),
    ]
    return facts


def _pair(trial: int, result: Any, finalist: Any) -> PairView | None:
    predicted, measured = result["predicted"], finalist.get("measured")
    if not predicted or not measured:
        return None
    return PairView(
        f"#{trial}",
        predicted["latency_ms"],
        predicted["std_ms"],
        measured["latency_ms"],
        measured["spread_ms"],
    )


def _disagreement(pair: PairView | None) -> str:
    from tadnn.export import CardFacts, Measured, Predicted

    if pair is None:
        return ""
    facts = CardFacts(
        predicted=Predicted(pair.predicted_ms, pair.std_ms, True),
        measured=Measured(pair.measured_ms, pair.spread_ms, 1),
    )
    return facts.disagreement() or ""


def _commands(
    where: str, trial: int, batch: int, result: Any, model: LatencyModel | None
) -> Sequence[CommandView]:
    study = shlex.quote(where)
    commands = [
        CommandView(
            "writes this network as files that run without tadnn",
            f"tadnn export {study} --trial {trial} -o {shlex.quote(f'trial-{trial}')}",
        )
    ]
    if model is not None:
        target = shlex.quote(f"{where}#{trial}")
        again = f" --batch {batch}" if batch != 1 else ""
        commands.append(
            CommandView(
                "predicts its latency again, kernel by kernel",
                f"tadnn latency {target} --on {shlex.quote(model.name)}{again}",
            )
        )
    commands.append(
        CommandView(
            "runs the study that found it; with one worker it comes again under this number",
            f"tadnn search {study}",
        )
    )
    return commands
