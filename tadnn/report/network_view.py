"""One network as a frozen record: its drawing, where its latency goes, how it was trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from itertools import groupby
from typing import Any

from tadnn.nets import INPUT, Block, Layer, Net, Shape
from tadnn.report.tail_view import GroupView
from tadnn.report.views import BreakdownView, PairView, PredictionView


@dataclass(frozen=True)
class BlockView:
    """Equal blocks in a row.

    Args:
        name: of the first.
        label: what kind of block.
        layers: its layers in short, in order.
        output: the shape it gives, without the batch.
        repeats: how many blocks.
        parameters: of all of them.
        flops: of all of them, for one input.
        skips: whether a layer adds the block's input, or a projection of it, to what it gives.
        latency_us: of all of them, as predicted; None where no latency model is at hand.
    """

    name: str
    label: str
    layers: tuple[str, ...]
    output: Shape
    repeats: int
    parameters: int
    flops: int
    skips: bool
    latency_us: float | None = None


@dataclass(frozen=True)
class StageView:
    """Blocks that work at one resolution."""

    title: str
    blocks: tuple[BlockView, ...]


@dataclass(frozen=True)
class EpochView:
    """What one epoch of a finalist's training reached on the validation split."""

    epoch: int
    accuracy: float
    loss: float


@dataclass(frozen=True)
class CommandView:
    """A command line, and what it does."""

    purpose: str
    line: str


@dataclass(frozen=True)
class NetworkView:
    """One trial's network.

    Args:
        study: the study's name.
        trial: its number.
        subtitle: the setting in one line.
        standing: what became of it, such as ``on the front, the knee``.
        facts: label and text of what is known in one number.
        choices: name and value of each choice.
        input_shape: one input without the batch.
        stages: the drawing.
        breakdown: where the predicted latency goes; None without a latency model.
        groups: every group of widths that change together on its stairs, the costliest first.
        remarks: what the groups come to, in plain words.
        note: why there is no breakdown; empty where there is one.
        pair: predicted and measured latency; None where it was not measured.
        pairs: those of all measured networks of the study.
        disagreement: what to say where the two differ too much; empty where they agree.
        curve: the training of a finalist; empty where there was none.
        commands: what gives this network again.
    """

    study: str
    trial: int
    subtitle: str
    standing: str
    facts: tuple[tuple[str, str], ...]
    choices: tuple[tuple[str, Any], ...]
    input_shape: Shape
    stages: tuple[StageView, ...]
    breakdown: BreakdownView | None
    groups: tuple[GroupView, ...]
    remarks: tuple[str, ...]
    note: str
    pair: PairView | None
    pairs: PredictionView
    disagreement: str
    curve: tuple[EpochView, ...]
    commands: tuple[CommandView, ...]

    @property
    def title(self) -> str:
        """``STUDY #TRIAL``."""
        return f"{self.study} #{self.trial}"


def stage_views(net: Net, latency_us: Mapping[str, float] | None = None) -> tuple[StageView, ...]:
    """Return a network's drawing.

    Args:
        net: the network.
        latency_us: predicted latency by block name, where it is known.
    """
    stages = []
    for title, blocks in groupby(_blocks(net, latency_us), key=lambda b: _resolution(b.output)):
        stages.append(StageView(title, tuple(_merged(blocks))))
    return tuple(stages)


def _blocks(net: Net, latency_us: Mapping[str, float] | None) -> Iterator[BlockView]:
    for name, block, _, facts in net.chain():
        yield BlockView(
            name,
            block.label,
            tuple(layer_text(node.layer) for node in block.nodes),
            tuple(facts.output[1:]),
            1,
            facts.parameters,
            facts.flops,
            _skips(block),
            None if latency_us is None else latency_us[name],
        )


def _merged(blocks: Iterator[BlockView]) -> Iterator[BlockView]:
    """Yield equal neighbours as one, so that a deep network is drawn short."""
    kept: BlockView | None = None
    for block in blocks:
        if kept is not None and _alike(kept, block):
            latency = (
                None
                if kept.latency_us is None or block.latency_us is None
                else kept.latency_us + block.latency_us
            )
            kept = replace(
                kept,
                repeats=kept.repeats + 1,
                parameters=kept.parameters + block.parameters,
                flops=kept.flops + block.flops,
                latency_us=latency,
            )
            continue
        if kept is not None:
            yield kept
        kept = block
    if kept is not None:
        yield kept


def _alike(a: BlockView, b: BlockView) -> bool:
    # Layers don't name their input's channels: equal parameters say that they agree.
    same = a.label == b.label and a.layers == b.layers and a.output == b.output
    return same and a.parameters == b.parameters * a.repeats


def _skips(block: Block) -> bool:
    return any(
        type(node.layer).__name__ == "Add" and len(node.inputs) > 1 for node in block.nodes
    ) and any(INPUT in node.inputs for node in block.nodes[1:])


def _resolution(shape: Shape) -> str:
    if len(shape) == 3:
        return f"{shape[1]}×{shape[2]}"
    if len(shape) == 2:
        return f"{shape[0]} tokens"
    return "vector"


def layer_text(layer: Layer) -> str:
    """Return a layer as it would be written: what differs from the default."""
    required, named = [], []
    for field in fields(layer):  # type: ignore[arg-type]
        value = getattr(layer, field.name)
        if field.default is MISSING and field.default_factory is MISSING:
            required.append(str(value))
        elif value != field.default:
            named.append(f"{field.name}={value}")
    arguments = ", ".join([*required, *named])
    name = type(layer).__name__
    return f"{name}({arguments})" if arguments else name


def shape_text(shape: Shape) -> str:
    """Return a shape without its batch, such as ``64×28×28``."""
    return "×".join(map(str, shape))
