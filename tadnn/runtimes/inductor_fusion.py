"""What TorchInductor makes of a block: library calls, and fused kernels between them.

Inductor leaves convolutions and matrix products to the libraries that eager torch calls
and generates one kernel for each chain of everything else: elementwise arithmetic,
normalisation, softmax, pooling, copies. See "Pointwise fusion" and the scheduler in
Ansel et al., PyTorch 2 (ASPLOS 2024), sec. 4.4.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

from tadnn.kernels import EPILOGUES, OPS, Kernel
from tadnn.nets import Block, Shape, block_facts
from tadnn.nets.layers.base import layer_kernels

LIBRARY_OPS: Final = frozenset({"conv2d", "conv_transpose2d", "linear", "bmm"})
"""What is left to cuDNN, cuBLAS, oneDNN or MKL."""
# Pooling gives fewer values than it takes: what is fused with it works on those that it takes.
SHRINKING: Final = frozenset(
    {"max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "global_avg_pool", "token_mean"}
)


@functools.lru_cache(maxsize=16384)
def lower_fused(block: Block, shape: Shape, dtype: str) -> tuple[Kernel, ...]:
    """Return what Inductor launches for a block, in order of their first layers."""
    launches = _Launches(block, shape, dtype)
    return tuple(kernel for group in launches.groups for kernel in launches.kernels(group))


class _Launches:
    """Layers of a block in groups, each one launch, or the launches of one library layer.

    A layer joins those that feed it, unless that would close a cycle: a library call
    that needs a group's output and feeds the group.
    """

    def __init__(self, block: Block, shape: Shape, dtype: str) -> None:
        facts = block_facts(block, shape)
        self.raw = [
            layer_kernels(node.layer, dtype, shapes)
            for node, shapes in zip(block.nodes, facts.inputs, strict=True)
        ]
        self.groups: list[list[int]] = []
        # Layers that launch nothing (views, identity) stand for what feeds them.
        self._source: list[int] = []
        self._group_of: dict[int, list[int]] = {}
        self._ancestors: list[set[int]] = []
        self._users: dict[int, set[int]] = {}
        for index, node in enumerate(block.nodes):
            fed_by = list(dict.fromkeys(self._source[i] for i in node.inputs if i >= 0))
            fed_by = [i for i in fed_by if i >= 0]
            if not self.raw[index]:
                self._source.append(fed_by[0] if fed_by else -1)
                self._ancestors.append(set())
                continue
            self._source.append(index)
            self._ancestors.append(set(fed_by).union(*(self._ancestors[i] for i in fed_by)))
            for i in fed_by:
                self._users.setdefault(i, set()).add(index)
            self._place(index, fed_by)
        self._result = self._source[-1]

    def _place(self, index: int, fed_by: Sequence[int]) -> None:
        group = [index]
        self.groups.append(group)
        self._group_of[index] = group
        if not self._fusible(index):
            return
        for i in fed_by:
            other = self._group_of[i]
            if other is group or not self._fusible(i) or self._cyclic(other, group):
                continue
            if any(self._closes(member) for member in other):
                continue
            other.extend(group)
            self.groups.remove(group)
            for member in group:
                self._group_of[member] = other
            group = other

    def _fusible(self, index: int) -> bool:
        return all(kernel.op not in LIBRARY_OPS for kernel in self.raw[index])

    def _closes(self, index: int) -> bool:
        """Whether a layer ends its kernel: what follows has other values to run over."""
        return any(kernel.op in SHRINKING for kernel in self.raw[index])

    def _cyclic(self, before: Sequence[int], after: Sequence[int]) -> bool:
        members = {*before, *after}
        between = set().union(*(self._ancestors[i] for i in after)) - members
        return any(self._ancestors[i] & set(before) for i in between)

    def kernels(self, group: Sequence[int]) -> tuple[Kernel, ...]:
        """Return a group's launches."""
        raw = [kernel for index in group for kernel in self.raw[index]]
        if len(raw) == 1 or not self._fusible(group[0]):
            return tuple(raw)
        # What moves data only decides how the others read and write.
        working = [kernel for kernel in raw if kernel.op in EPILOGUES or kernel.op in SHRINKING]
        working = working or raw[:1]
        head = self._head(group, working)
        rest = [kernel for kernel in working if kernel is not head and kernel.op in EPILOGUES]
        fused = (*head.epilogue, *(kernel.op for kernel in rest))
        return (Kernel(head.op, head.sizes, head.dtype, fused, head.extra),)

    def _head(self, group: Sequence[int], working: Sequence[Kernel]) -> Kernel:
        pools = [kernel for kernel in working if kernel.op in SHRINKING]
        if pools and (pools[-1].op not in EPILOGUES or not self._read_elsewhere(group)):
            return pools[-1]
        wide = [kernel for kernel in working if kernel.op not in SHRINKING] or working
        return max(wide, key=lambda kernel: OPS[kernel.op].output(kernel.dims))

    def _read_elsewhere(self, group: Sequence[int]) -> bool:
        """Whether anything but a pooling's result is read outside of the group."""
        return any(
            not self._closes(i) and (i == self._result or self._users.get(i, set()) - {*group})
            for i in group
        )
