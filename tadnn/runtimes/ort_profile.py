"""Nodes of ONNX Runtime's own profile, told apart by the kernels they are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tadnn.nets import Net
from tadnn.runtimes.ort_lowering import Launch, launches

_SUFFIX: Final = "_kernel_time"
# Views, and what ONNX Runtime makes of several of our layers at once.
_IGNORED: Final = frozenset({"Reshape", "Unsqueeze", "Squeeze", "Identity"})
_ACROSS: Final = frozenset({"SkipLayerNormalization"})
_REORDERS: Final = {"ReorderInput": "blocked", "ReorderOutput": "plain"}


OptimisedNode = tuple[str, str, Sequence[str], Sequence[str]]
"""Name, op, inputs and outputs of a node of the optimised model."""


@dataclass(frozen=True)
class NodeTime:
    """One node of one run; microseconds."""

    name: str
    op: str
    duration_us: float


def read_runs(path: Path) -> list[list[NodeTime]]:
    """Return the nodes of every run in a profile, in order."""
    runs: list[list[NodeTime]] = []
    current: list[NodeTime] = []
    for event in json.loads(path.read_text()):
        name, kind = event.get("name", ""), event.get("cat")
        if kind == "Node" and name.endswith(_SUFFIX):
            node = NodeTime(name[: -len(_SUFFIX)], event["args"]["op_name"], float(event["dur"]))
            current.append(node)
        elif kind == "Session" and name == "model_run":
            runs.append(current)
            current = []
    return [run for run in runs if run]


class NodeMap:
    """Says which kernel of a network each optimised node belongs to.

    Args:
        net: the network.
        batch: the batch size.
        dtype: of its kernels.
        optimised: the nodes of the optimised model.
    """

    def __init__(
        self,
        net: Net,
        batch: int,
        dtype: str,
        optimised: Sequence[OptimisedNode],
    ) -> None:
        self.launches: list[Launch] = []
        self._owner: dict[str, int] = {}
        taken, last = "input", ""
        for name, block, shape, _ in net.chain(batch):
            for launch in launches(block, shape, dtype):
                for node in launch.nodes:
                    layer = f"{name}.{node}"
                    if node.startswith(">"):
                        layer = f"{taken}{node}"
                    self._owner[layer] = len(self.launches)
                self.launches.append(launch)
            taken = last = f"{name}.{block.nodes[-1].name}"
        self._last = last
        self._of_node = {
            (name, op): self._find(name, op, inputs, outputs)
            for name, op, inputs, outputs in optimised
        }

    def owner(self, name: str, op: str) -> int | None:
        """Return which launch an optimised node belongs to; None where it is none of ours."""
        return self._of_node.get((name, op))

    def is_view(self, op: str) -> bool:
        """Tell whether nodes of an op move nothing."""
        return op in _IGNORED

    def kernel_times(self, run: Sequence[NodeTime]) -> tuple[dict[int, float], float]:
        """Return microseconds by launch of a run, and those of nodes that are no launch."""
        times: dict[int, float] = {}
        rest = pending = 0.0
        for node in run:
            if node.op in _IGNORED:
                rest += node.duration_us
                continue
            if not node.name:
                pending += node.duration_us  # the beginning of the next one
                continue
            owner = self.owner(node.name, node.op)
            duration, pending = node.duration_us + pending, 0.0
            if owner is None:
                rest += duration
            else:
                times[owner] = times.get(owner, 0.0) + duration
        return times, rest + pending

    def _find(
        self, name: str, op: str, inputs: Sequence[str], outputs: Sequence[str]
    ) -> int | None:
        if op in _ACROSS or op in _IGNORED:
            return None
        if op in _REORDERS:
            value = inputs[0] if op == "ReorderInput" else outputs[0]
            owners = [self._owner.get(f"{each}>{_REORDERS[op]}") for each in self._layers(value)]
            return next((owner for owner in owners if owner is not None), None)
        for candidate in (name.removeprefix("fused ").removesuffix("_nchwc"), *outputs):
            for layer in self._layers(candidate):
                if (found := self._exact(layer)) is not None:
                    return found
        return None

    def _layers(self, value: str) -> tuple[str, ...]:
        """Return what the layer of a value may be called."""
        if value == "output" or value == "output_nchwc":
            return (self._last,)
        # Optimisers append _bn to convolutions that took a normalisation.
        return value, value.removesuffix("_bn")

    def _exact(self, name: str) -> int | None:
        # What an optimiser appends to a name follows a slash: cut until it is known.
        while name:
            if name in self._owner:
                return self._owner[name]
            name, slash, _ = name.rpartition("/")
            if f"{name}/*" in self._owner:
                return self._owner[f"{name}/*"]
            if not slash:
                return None
        return None
