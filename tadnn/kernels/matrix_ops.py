"""Ops that are matrix products: convolutions too, as implicit GEMMs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from tadnn.kernels.op import Dims, MatrixOp, across, conv_out, got, transposed_out


class Conv2dOp(MatrixOp):
    """2-D convolution; a 1-D one has h = r = 1 and pad = 0, and its padding in pad_w."""

    sizes = ("n", "c", "h", "w", "k", "r", "s", "stride", "pad", "dilation", "groups")
    may_be_zero = frozenset({"pad", "pad_w"})
    optional: ClassVar[Mapping[str, str | int]] = {
        "stride_w": "stride",
        "pad_w": "pad",
        "dilation_w": "dilation",
    }

    def pixels(self, d: Dims) -> Any:
        """Return the output pixels of one image."""
        return conv_out(d["h"], d["r"], d["stride"], d["pad"], d["dilation"]) * conv_out(
            d["w"], d["s"], across(d, "stride"), across(d, "pad"), across(d, "dilation")
        )

    def output(self, d: Dims) -> Any:
        """Return n k p q."""
        return d["n"] * d["k"] * self.pixels(d)

    def read(self, d: Dims) -> Any:
        """Return image and weights."""
        weights = d["k"] * (d["c"] // d["groups"]) * d["r"] * d["s"]
        return d["n"] * d["c"] * d["h"] * d["w"] + weights

    def matrix(self, d: Dims) -> tuple[Any, Any, Any, Any]:
        """Return the implicit GEMM."""
        groups = d["groups"]
        return (
            groups,
            d["n"] * self.pixels(d),
            d["k"] // groups,
            d["c"] // groups * d["r"] * d["s"],
        )

    def fault(self, d: Mapping[str, int]) -> str:
        """Check groups and window."""
        if d["c"] % d["groups"] or d["k"] % d["groups"]:
            return f"groups divide c and k; {got(d, 'c', 'k', 'groups')}"
        reach_h = d["dilation"] * (d["r"] - 1) + 1
        reach_w = across(d, "dilation") * (d["s"] - 1) + 1
        if d["h"] + 2 * d["pad"] < reach_h or d["w"] + 2 * across(d, "pad") < reach_w:
            seen = got(d, "h", "w", "r", "s", "pad", "dilation")
            return f"the window must fit the padded image; {seen}"
        return ""


class ConvTranspose2dOp(MatrixOp):
    """2-D transposed convolution; every input pixel is spread over a window of the output."""

    sizes = ("n", "c", "h", "w", "k", "r", "s", "stride", "pad", "out_pad", "groups")
    may_be_zero = frozenset({"pad", "out_pad", "pad_w", "out_pad_w"})
    optional: ClassVar[Mapping[str, str | int]] = {
        "stride_w": "stride",
        "pad_w": "pad",
        "out_pad_w": "out_pad",
        "dilation": 1,
        "dilation_w": "dilation",
    }

    def pixels(self, d: Dims) -> Any:
        """Return the output pixels of one image."""
        p, q = self._edges(d)
        return p * q

    def _edges(self, d: Dims) -> tuple[Any, Any]:
        dilation = d.get("dilation", 1)
        return (
            transposed_out(d["h"], d["r"], d["stride"], d["pad"], d["out_pad"], dilation),
            transposed_out(
                d["w"],
                d["s"],
                across(d, "stride"),
                across(d, "pad"),
                across(d, "out_pad"),
                d.get("dilation_w", dilation),
            ),
        )

    def output(self, d: Dims) -> Any:
        """Return n k p q."""
        return d["n"] * d["k"] * self.pixels(d)

    def read(self, d: Dims) -> Any:
        """Return image and weights."""
        weights = d["c"] * (d["k"] // d["groups"]) * d["r"] * d["s"]
        return d["n"] * d["c"] * d["h"] * d["w"] + weights

    def matrix(self, d: Dims) -> tuple[Any, Any, Any, Any]:
        """Return m = input pixels, n = output channels per group x window, k = input channels."""
        groups = d["groups"]
        window = d["r"] * d["s"]
        return groups, d["n"] * d["h"] * d["w"], d["k"] // groups * window, d["c"] // groups

    def fault(self, d: Mapping[str, int]) -> str:
        """Check groups and paddings."""
        if d["c"] % d["groups"] or d["k"] % d["groups"]:
            return f"groups divide c and k; {got(d, 'c', 'k', 'groups')}"
        dilation = d.get("dilation", 1)
        steps = (
            max(d["stride"], dilation),
            max(across(d, "stride"), d.get("dilation_w", dilation)),
        )
        if d["out_pad"] >= steps[0] or across(d, "out_pad") >= steps[1]:
            return f"out_pad is less than the stride; {got(d, 'out_pad', 'stride')}"
        if min(self._edges(d)) < 1:
            return f"padding must leave some output; {got(d, 'h', 'w', 'r', 's', 'stride', 'pad')}"
        return ""


class LinearOp(MatrixOp):
    """m rows of k values to m rows of n values."""

    sizes = ("m", "n", "k")

    def output(self, d: Dims) -> Any:
        """Return m n."""
        return d["m"] * d["n"]

    def read(self, d: Dims) -> Any:
        """Return input and weights."""
        return d["m"] * d["k"] + d["k"] * d["n"]

    def matrix(self, d: Dims) -> tuple[Any, Any, Any, Any]:
        """Return one product."""
        return (0 * d["m"] + 1, d["m"], d["n"], d["k"])


class BatchedMatmulOp(MatrixOp):
    """b products of m x k and k x n matrices."""

    sizes = ("b", "m", "n", "k")

    def output(self, d: Dims) -> Any:
        """Return b m n."""
        return d["b"] * d["m"] * d["n"]

    def read(self, d: Dims) -> Any:
        """Return both operands."""
        return d["b"] * (d["m"] * d["k"] + d["k"] * d["n"])

    def matrix(self, d: Dims) -> tuple[Any, Any, Any, Any]:
        """Return the products."""
        return (d["b"], d["m"], d["n"], d["k"])


class AttentionOp(MatrixOp):
    """softmax(q k^T) v of b heads in one kernel: t queries, s keys of width d, values of width e.

    The scores stay on chip (Dao et al. 2022); its FLOPs are those of both products.
    """

    sizes = ("b", "t", "s", "d", "e")

    def output(self, d: Dims) -> Any:
        """Return b t e."""
        return d["b"] * d["t"] * d["e"]

    def read(self, d: Dims) -> Any:
        """Return queries, keys and values."""
        return d["b"] * (d["t"] * d["d"] + d["s"] * (d["d"] + d["e"]))

    def matrix(self, d: Dims) -> tuple[Any, Any, Any, Any]:
        """Return one product of the scores' m and n, contracted over both widths."""
        return (d["b"], d["t"], d["s"], d["d"] + d["e"])
