"""The card: what an exported network is, how it was found, and what to expect of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tadnn.export.facts import CardFacts, Measured, Predicted, Trained
from tadnn.export.request import ExportRequest


@dataclass(frozen=True)
class Check:
    """How far one of the exported forms is from the module, and on what."""

    what: str
    inputs: str
    difference: float


def card_text(request: ExportRequest, checks: list[Check], opset: int) -> str:
    """Return the card as Markdown."""
    card = request.card
    title = f"{card.study} #{card.trial}" if card.study is not None else request.net.key
    parts = [
        f"# {title}\n",
        f"**{_sentence(request.status)}**\n",
        *_warnings(card),
        "## What it is\n",
        _table(_identity(request)),
        "## Latency\n",
        _table(_latency(card)),
        "## Accuracy\n",
        _table(_accuracy(request)),
        "## Files\n",
        _files(request, opset),
        "Checked when it was written, in evaluation mode, against the module on the CPU "
        "(largest difference of any output):\n",
        _table((c.what, f"{c.difference:.1e} on {c.inputs}") for c in checks),
    ]
    if card.environment:
        of = "search" if card.measured is None else "measurements"
        parts += [f"## Environment of the {of}\n", _table(sorted(card.environment.items()))]
    return "\n".join(parts)


def _warnings(card: CardFacts) -> Iterator[str]:
    disagreement, remark = card.disagreement(), card.remark()
    if disagreement is not None:
        yield f"> **WARNING: {disagreement}. Trust the measurement.**\n"
    if remark is not None:
        yield f"> **NOTE: {remark}.**\n"
    every = (card.predicted, *(phase.predicted for phase in card.phases))
    if any(predicted is not None and not predicted.in_range for predicted in every):
        yield (
            "> **WARNING: the prediction is outside of the range that the latency model was "
            "fitted on.**\n"
        )


def _identity(request: ExportRequest) -> Iterator[tuple[str, str]]:
    card, net = request.card, request.net
    yield "network", net.key
    yield "space", request.space or "none: it was not built by a space"
    if card.study is None:
        yield "found by", "no study"
    else:
        seed = "unknown" if card.study_seed is None else str(card.study_seed)
        yield "found by", f"study {card.study}, trial {card.trial}, study seed {seed}"
    if card.search is not None:
        yield "searched for", card.search
    if card.origin is not None:
        yield "rewritten from", card.origin
    shape = " × ".join(map(str, net.input_shape))
    kind = "float32" if net.input_dtype == "float" else f"int64 below {net.input_limit:,}"
    yield "input", f"{kind}, batch × {shape}; the batch is free"
    yield "output", f"float32, batch × {request.classes}"
    yield "parameters", f"{net.parameters:,}"
    batch = f"at batch {card.batch}"
    yield "FLOPs", f"{net.flops(card.batch):,} {batch}, two per multiply-add"
    memory = f"{net.memory_bytes(card.batch) / 2**20:.2f} MiB {batch}"
    yield "memory", f"{memory}: fp32 weights and peak activations"


def _latency(card: CardFacts) -> Iterator[tuple[str, str]]:
    yield "batch", str(card.batch)
    yield "device", card.device or "unknown"
    yield "setting", card.setting or "unknown"
    yield "predicted", _predicted(card, card.predicted)
    if card.predicted is not None and card.latency_model_error is not None:
        error = f"{card.latency_model_error:.1f} % on average, on what it was not fitted on"
        yield "latency model's error", error
    yield "measured", _measured(card.measured)
    for phase in card.phases:
        yield f"{phase.name}, predicted", _predicted(card, phase.predicted)
        yield f"{phase.name}, measured", _measured(phase.measured)
    for gap in card.agreement():
        what, _, rest = gap.partition(" is ")
        yield what.removeprefix("the "), rest
    if card.measuring is not None:
        yield "measured when", card.measuring
    if card.unmeasured is not None and card.measured is None:
        yield "not measured for this export", card.unmeasured
    elif card.unmeasured is not None:
        yield "measured again for this export", f"no: {card.unmeasured}"
    if card.against_itself is not None:
        yield "measured twice", f"the two differ by {card.against_itself:.1f} % at most"
    if card.drift is not None:
        took = f"took {abs(card.drift):.1f} % {'more' if card.drift > 0 else 'less'} than then"
        yield "networks that the machine was learned on", took
    if card.in_search is not None:
        yield "measured in the search", _measured(card.in_search)


def _predicted(card: CardFacts, predicted: Predicted | None) -> str:
    if predicted is None:
        return "not predicted"
    value = f"{predicted.latency_ms:.4g} ms, standard deviation {predicted.std_ms:.2g} ms"
    if predicted.unprofiled_share:
        value += f", {predicted.unprofiled_share:.1%} of it of kinds of kernels never measured"
    return f"{value}, by {card.latency_model or 'an unnamed latency model'}"


def _measured(measured: Measured | None) -> str:
    if measured is None:
        return "not measured: what is predicted is all there is"
    value = f"{measured.latency_ms:.4g} ms, spread {measured.spread_ms:.2g} ms"
    return f"{value} (median of {measured.repeats} repeats)"


def _accuracy(request: ExportRequest) -> Iterator[tuple[str, str]]:
    card, preprocess = request.card, request.preprocess or {}
    yield "data set", str(preprocess.get("dataset") or "unknown")
    yield "licence of the data", str(preprocess.get("licence") or "unknown")
    if card.trained is None:
        yield "accuracy", f"none; {request.status}"
    else:
        yield "accuracy", _reached(card.trained)
        yield "training", _epochs(card.trained)
    if card.trained_in_search is not None:
        reached, epochs = _reached(card.trained_in_search), _epochs(card.trained_in_search)
        yield "trained in the search", f"{epochs}: {reached}; those weights were not kept"
    if card.proxy is not None:
        yield "proxy score in the search", f"{card.proxy.name} {card.proxy.value:.6g}"


def _reached(trained: Trained) -> str:
    of = "" if trained.images is None else f", {trained.images:,} images"
    return f"{trained.accuracy:.4f} on the {trained.split} split{of}"


def _epochs(trained: Trained) -> str:
    return f"{trained.epochs} epoch{'' if trained.epochs == 1 else 's'}"


def _files(request: ExportRequest, opset: int) -> str:
    lines = {
        "model.py": "defines `Model`; imports only torch",
        "weights.safetensors": "its weights",
        "model.onnx": f"ONNX, opset {opset}, free batch, input `input`, output `output`",
        "model.pt2": "for `torch.export.load`, free batch",
        "architecture.json": "the architecture and the network as data",
    }
    lines["preprocess.json"] = "how a raw input becomes the network's, and the class names"
    lines["run.py"] = "times `model.onnx` with onnxruntime"
    lines["SHA256SUMS"] = "for `sha256sum -c SHA256SUMS`"
    text = "".join(f"- `{name}`: {what}\n" for name, what in lines.items())
    if request.preprocess is None:
        text += "\nHow a raw input becomes the network's is unknown: no data set was handed in.\n"
    return text


def _table(rows: Iterator[tuple[str, str]] | list[tuple[str, str]]) -> str:
    body = "".join(f"| {name} | {value.replace('|', '/')} |\n" for name, value in rows)
    return f"| | |\n|---|---|\n{body}"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."
