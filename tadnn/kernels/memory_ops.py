"""Ops priced by the memory they move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tadnn.kernels.op import Dims, Op, across, got, pool_out


@dataclass(frozen=True)
class RowwiseOp(Op):
    """Reads ``inputs`` tensors of rows x cols, a number per row and one row, writes one tensor."""

    inputs: int = 1
    per_row: int = 0
    per_col: int = 0
    sizes: ClassVar[tuple[str, ...]] = ("rows", "cols")

    def output(self, d: Dims) -> Any:
        """Return rows cols."""
        return d["rows"] * d["cols"]

    def read(self, d: Dims) -> Any:
        """Return the inputs."""
        whole = self.inputs * d["rows"] * d["cols"]
        return whole + self.per_row * d["rows"] + self.per_col * d["cols"]


class _ImageOp(Op):
    """Reads images n x c x h x w."""

    sizes: ClassVar[tuple[str, ...]] = ("n", "c", "h", "w")

    def read(self, d: Dims) -> Any:
        """Return n c h w."""
        return d["n"] * d["c"] * d["h"] * d["w"]


class BatchNormOp(_ImageOp):
    """Scale and shift of every channel, from four numbers."""

    def output(self, d: Dims) -> Any:
        """Return n c h w."""
        return d["n"] * d["c"] * d["h"] * d["w"]

    def read(self, d: Dims) -> Any:
        """Return images and statistics."""
        return super().read(d) + 4 * d["c"]


class GroupNormOp(_ImageOp):
    """Normalisation of each group of channels of each image; two numbers per channel."""

    sizes = ("n", "c", "h", "w", "groups")

    def output(self, d: Dims) -> Any:
        """Return n c h w."""
        return d["n"] * d["c"] * d["h"] * d["w"]

    def read(self, d: Dims) -> Any:
        """Return images, scale and shift."""
        return super().read(d) + 2 * d["c"]

    def fault(self, d: Mapping[str, int]) -> str:
        """Check groups."""
        return f"groups divide c; {got(d, 'c', 'groups')}" if d["c"] % d["groups"] else ""


class Pool2dOp(_ImageOp):
    """One value of every window; ceil = 1 rounds the output's size up."""

    sizes = ("n", "c", "h", "w", "r", "s", "stride", "pad")
    may_be_zero = frozenset({"pad", "pad_w", "ceil"})
    optional: ClassVar[Mapping[str, str | int]] = {"stride_w": "stride", "pad_w": "pad", "ceil": 0}

    def output(self, d: Dims) -> Any:
        """Return n c p q."""
        ceil = d.get("ceil", 0)
        p = pool_out(d["h"], d["r"], d["stride"], d["pad"], ceil)
        q = pool_out(d["w"], d["s"], across(d, "stride"), across(d, "pad"), ceil)
        return d["n"] * d["c"] * p * q

    def fault(self, d: Mapping[str, int]) -> str:
        """Check window and padding."""
        wide = across(d, "pad")
        if d["h"] + 2 * d["pad"] < d["r"] or d["w"] + 2 * wide < d["s"]:
            return f"the window must fit the padded image; {got(d, 'h', 'w', 'r', 's', 'pad')}"
        if 2 * d["pad"] > d["r"] or 2 * wide > d["s"]:
            return f"a pool's padding is at most half its window; {got(d, 'r', 's', 'pad')}"
        return f"ceil is 0 or 1; got {d['ceil']}" if d.get("ceil", 0) > 1 else ""


class GlobalAvgPoolOp(_ImageOp):
    """The mean of every channel."""

    def output(self, d: Dims) -> Any:
        """Return n c."""
        return d["n"] * d["c"]


class AdaptiveAvgPool2dOp(_ImageOp):
    """The means of p x q windows that cover each channel evenly."""

    sizes = ("n", "c", "h", "w", "p", "q")

    def output(self, d: Dims) -> Any:
        """Return n c p q."""
        return d["n"] * d["c"] * d["p"] * d["q"]


class UpsampleOp(_ImageOp):
    """Images ``scale`` times as high and wide."""

    sizes = ("n", "c", "h", "w", "scale")

    def output(self, d: Dims) -> Any:
        """Return n c h w scale^2."""
        return self.read(d) * d["scale"] * d["scale"]


class TokenMeanOp(Op):
    """The mean over t of n x t x cols."""

    sizes = ("n", "t", "cols")

    def output(self, d: Dims) -> Any:
        """Return n cols."""
        return d["n"] * d["cols"]

    def read(self, d: Dims) -> Any:
        """Return n t cols."""
        return d["n"] * d["t"] * d["cols"]


class EmbeddingOp(Op):
    """Gathers rows of a table with ``count`` of them; the indices are not counted."""

    sizes = ("rows", "cols", "count")

    def output(self, d: Dims) -> Any:
        """Return rows cols."""
        return d["rows"] * d["cols"]

    def read(self, d: Dims) -> Any:
        """Return rows cols."""
        return d["rows"] * d["cols"]


class PermuteOp(Op):
    """b x rows x cols x inner copied as b x cols x rows x inner."""

    sizes = ("b", "rows", "cols", "inner")

    def output(self, d: Dims) -> Any:
        """Return all values."""
        return d["b"] * d["rows"] * d["cols"] * d["inner"]

    def read(self, d: Dims) -> Any:
        """Return all values."""
        return d["b"] * d["rows"] * d["cols"] * d["inner"]


class OpaqueOp(Op):
    """An operator that nothing is known of but its work: n times these FLOPs and elements."""

    sizes = ("n", "flops", "read", "written")
    may_be_zero = frozenset({"flops"})

    def output(self, d: Dims) -> Any:
        """Return n written."""
        return d["n"] * d["written"]

    def read(self, d: Dims) -> Any:
        """Return n read."""
        return d["n"] * d["read"]

    def flops(self, d: Dims) -> Any:
        """Return n flops."""
        return d["n"] * d["flops"]
