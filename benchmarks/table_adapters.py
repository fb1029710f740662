"""From the rows of public tables to kernels and networks; see :mod:`public_tables`.

One adapter a table. Each yields, for a row, what was measured, or in one phrase why the row
can't be expressed: the phrases are counted and shown.
"""

from __future__ import annotations

import ast
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from tadnn.errors import KernelError
from tadnn.hardware import DeviceSpec
from tadnn.kernels import Kernel

Row = Mapping[str, str]
Pick = Callable[[Sequence[str]], str]
"""Picks one of a column's values, where no one else does."""


@dataclass(frozen=True)
class Measured:
    """One row: a kernel, or a network's target and batch; microseconds."""

    subject: Kernel | tuple[str, int]
    latency_us: float
    spread_us: float | None = None
    repeats: int | None = None


class TableAdapter(ABC):
    """Reads one public table."""

    about: ClassVar[str]
    timings: ClassVar[bool] = False
    defaults: ClassVar[Mapping[str, Pick]] = {}

    def device(self, row: Row) -> str:
        """Return the device's name as the table writes it."""
        return row["device"]

    @abstractmethod
    def convert(self, rows: Sequence[Row], spec: DeviceSpec) -> Iterator[Measured | str]:
        """Yield what was measured on one device, or why a row is left out."""


class _RowByRow(TableAdapter):
    """Rows that don't need each other."""

    def convert(self, rows: Sequence[Row], spec: DeviceSpec) -> Iterator[Measured | str]:
        for row in rows:
            try:
                yield self.one(row)
            except KernelError as error:
                yield f"no such kernel: {str(error).split(';')[0]}"
            except (KeyError, ValueError, OverflowError) as error:
                yield f"unreadable row ({type(error).__name__})"

    @abstractmethod
    def one(self, row: Row) -> Measured | str:
        """Return what a row measured, or why it is left out."""


def _us(row: Row, column: str, scale: float = 1e3) -> float:
    value = float(row[column]) * scale
    if not (math.isfinite(value) and value > 0):
        raise ValueError(column)
    return value


def _int(text: str) -> int:
    value = float(text)
    if value != int(value):
        raise ValueError(text)
    return int(value)


def _prefer(*wanted: str) -> Pick:
    """Return a pick of the first of ``wanted`` that is there, or the last value."""
    return lambda values: next((w for w in wanted if w in values), values[-1])


class NeuSightGemm(_RowByRow):
    about = "linear and batched products, fp32"

    def one(self, row: Row) -> Measured | str:
        m, n, k = (_int(row[c]) for c in ("m", "n", "k"))
        if row["op"] == "linear":
            kernel = Kernel.of("linear", m=m * _int(row["batch"]), n=n, k=k)
        elif row["op"] == "bmm":
            kernel = Kernel.of("bmm", b=_int(row["batch"]), m=m, n=n, k=k)
        else:
            return f"op {row['op']} is no kernel of tadnn"
        return Measured(kernel, _us(row, "latency_ms"))


class NeuSightConv(_RowByRow):
    about = "3x3 convolutions, stride 1, fp32"

    def one(self, row: Row) -> Measured | str:
        r, hw = _int(row["ksize"]), _int(row["hw_in"])
        sizes = {"n": _int(row["batch"]), "c": _int(row["cin"]), "k": _int(row["cout"])}
        more = {"stride": _int(row["stride"]), "pad": _int(row["pad"])}
        kernel = Kernel.of("conv2d", h=hw, w=hw, r=r, s=r, dilation=1, groups=1, **sizes, **more)
        return Measured(kernel, _us(row, "latency_ms"))


# Two tensors divided or raised aren't in the vocabulary. Arithmetic with a number is one op there.
_VECTOR_OPS: Final = (
    {"ln": "layer_norm"}
    | {op: op for op in ("add", "mul", "relu", "gelu", "tanh", "softmax")}
    | dict.fromkeys(("addu", "mulu", "divu"), "scalar")
)


class NeuSightElementwise(_RowByRow):
    about = "elementwise ops, softmax and layer norm, fp32"

    def one(self, row: Row) -> Measured | str:
        op = _VECTOR_OPS.get(row["op"])
        if op is None:
            return f"op {row['op']} is no kernel of tadnn"
        kernel = Kernel.of(op, rows=_int(row["rows"]), cols=_int(row["cols"]))
        return Measured(kernel, _us(row, "latency_ms"))


_LINEAR_MODULES: Final = frozenset(
    [
        "query",
        "key",
        "value",
        "dense",
        "q_proj",
        "k_proj",
        "v_proj",
        "out_proj",
        "fc1",
        "fc2",
        "lm_head",
    ]
)
_NORM_MODULES: Final = frozenset(
    ["LayerNorm", "ln_1", "ln_2", "ln_f", "self_attn_layer_norm", "final_layer_norm"]
)
_CALLS: Final = frozenset(["add", "mul", "softmax", "tanh", "gelu", "relu"])


class NeuSightPerOp(_RowByRow):
    about = "operators of transformer layers as they are called, fp32"

    def one(self, row: Row) -> Measured | str:
        target = row["target"].rsplit(".", 1)[-1]
        ins, out = ast.literal_eval(row["input_shapes"]), ast.literal_eval(row["output_shape"])
        kernel = self._kernel(target, [tuple(shape) for shape in ins], tuple(out))
        return Measured(kernel, _us(row, "fw_latency_ms")) if kernel else f"operator {target}"

    @staticmethod
    def _kernel(target: str, ins: list[tuple[int, ...]], out: tuple[int, ...]) -> Kernel | None:
        if target in _LINEAR_MODULES:
            return Kernel.of("linear", m=math.prod(out[:-1]), n=out[-1], k=ins[0][-1])
        if target == "addmm":
            return Kernel.of("linear", m=out[0], n=out[1], k=ins[1][1])
        if target in ("matmul", "bmm"):
            return Kernel.of("bmm", b=math.prod(out[:-2]), m=out[-2], n=out[-1], k=ins[0][-1])
        if target in _NORM_MODULES:
            return Kernel.of("layer_norm", rows=math.prod(out[:-1]), cols=out[-1])
        # A broadcast or a scalar moves less than the op of two whole tensors.
        same = len(ins) == (2 if target in ("add", "mul") else 1) and set(ins) == {out}
        if target in _CALLS and same:
            return Kernel.of(target, rows=math.prod(out[:-1]), cols=out[-1])
        return None


class NeuSightNets(_RowByRow):
    about = "whole transformers, fp32 (a timing table)"
    timings = True
    defaults: ClassVar[Mapping[str, Pick]] = {"mode": _prefer("inf"), "variant": _prefer("")}

    def one(self, row: Row) -> Measured | str:
        target = f"neusight:{row['model']}@{_int(row['seq'])}"
        return Measured((target, _int(row["batch"])), _us(row, "e2e_latency"))


class AiConfigurator(_RowByRow):
    about = "linear, bf16"

    def one(self, row: Row) -> Measured | str:
        kernel = _linear(row, "bf16")
        # The range of n values over their deviation, for the few runs there are: about 1.7 to 3.
        spread = (_us(row, "latency_ms_max") - _us(row, "latency_ms_min")) / 2
        repeats = _int(row["n_runs"])
        return Measured(
            kernel, _us(row, "latency_ms_median"), spread if repeats > 1 else None, repeats
        )


class Vidur(_RowByRow):
    about = "linear, fp16"

    def one(self, row: Row) -> Measured | str:
        spread = float(row["latency_ms_std"]) * 1e3
        return Measured(_linear(row, "fp16"), _us(row, "latency_ms_median"), spread)


class LlmServingSim(_RowByRow):
    about = "linear, bf16 (its older rows say only that they are of 16 bits)"

    def one(self, row: Row) -> Measured | str:
        return Measured(_linear(row, "bf16"), _us(row, "latency_us", 1.0))


def _linear(row: Row, dtype: str) -> Kernel:
    return Kernel.of("linear", m=_int(row["m"]), n=_int(row["n"]), k=_int(row["k"]), dtype=dtype)


class MIOpen(_RowByRow):
    about = "convolutions, fp32, fp16 or bf16 (--where dtype=...)"
    defaults: ClassVar[Mapping[str, Pick]] = {"dtype": _prefer("fp32")}

    def one(self, row: Row) -> Measured | str:
        get = {
            name: _int(row[name])
            for name in row
            if name not in ("device", "dtype", "solver", "best_ms", "n_solvers")
        }
        kernel = Kernel.of(
            "conv2d",
            dtype=row["dtype"],
            n=get["batch"],
            c=get["cin"],
            h=get["h"],
            w=get["w"],
            k=get["cout"],
            r=get["kh"],
            s=get["kw"],
            stride=get["stride_h"],
            stride_w=get["stride_w"],
            pad=get["pad_h"],
            pad_w=get["pad_w"],
            dilation=get["dil_h"],
            dilation_w=get["dil_w"],
            groups=get["groups"],
        )
        return Measured(kernel, _us(row, "best_ms"))


class Timm(_RowByRow):
    about = "image networks of timm (a timing table)"
    timings = True
    defaults: ClassVar[Mapping[str, Pick]] = {
        "mode": _prefer("infer"),
        "precision": _prefer("amp"),
        "layout": _prefer("nchw"),
        "compile": _prefer("eager"),
        "torch": _prefer("pt240"),
    }

    def one(self, row: Row) -> Measured | str:
        target = f"timm:{row['model']}@{_int(row['img_size'])}"
        batch = _int(row["batch_size"])
        # Throughput has more digits than the time of a step.
        return Measured((target, batch), batch / float(row["samples_per_sec"]) * 1e6)


_NEGLIGIBLE_US: Final = 10.0
_REACHED: Final = 0.8  # of nominal bandwidth, by passes over a tensor


class _Session(TableAdapter):
    """TensorFlow 1 wall times: what a session costs is fitted to the table and taken off.

    The overhead is what the fastest rows take whose roofline is negligible. Beside it, a session
    launches bias and activation as kernels of their own: each one reads and writes the output,
    at the 80 % of nominal bandwidth that held-out errors on two devices settle for.
    Rows that leave less than the overhead's own scatter say nothing about the kernel.
    """

    @abstractmethod
    def kernel(self, row: Row) -> tuple[Kernel, int]:
        """Return a row's kernel, and how many passes over its output follow it."""

    def convert(self, rows: Sequence[Row], spec: DeviceSpec) -> Iterator[Measured | str]:
        kept: list[tuple[Row, Kernel, int]] = []
        for row in rows:
            try:
                kept.append((row, *self.kernel(row)))
            except KernelError as error:
                yield f"no such kernel: {str(error).split(';')[0]}"
        if not kept:
            return
        wall = np.array([_us(row, "ms_median") for row, _, _ in kept])
        passes = np.array([2.0 * k.output_bytes * n for _, k, n in kept])
        passes /= _REACHED * spec.bandwidth_gbps * 1e3
        overhead, scatter = self.overhead(wall, [k for _, k, _ in kept], spec)
        for (row, kernel, _), us, after in zip(kept, wall, passes, strict=True):
            left = us - overhead - after
            if left < 3 * scatter:
                yield f"within the scatter of the session's overhead ({overhead:.0f} us)"
            else:
                yield Measured(kernel, float(left), float(row["ms_std"]) * 1e3)

    def overhead(
        self, wall_us: np.ndarray, kernels: Sequence[Kernel], spec: DeviceSpec
    ) -> tuple[float, float]:
        """Return a session's overhead and its scatter, microseconds."""
        peak = spec.peak_tflops["fp32"] * 1e6
        rate = spec.bandwidth_gbps * 1e3
        roofline = np.array([k.flops / peak + k.bytes_moved / rate for k in kernels])
        # At least a hundredth of the rows, where a table has no small kernels at all.
        limit = max(_NEGLIGIBLE_US, float(np.quantile(roofline, 0.01)))
        small = wall_us[roofline <= limit]
        low, quarter = np.quantile(small, [0.05, 0.25])
        return float(quarter), float(max(quarter - low, 0.01 * quarter))


class CdeConv(_Session):
    about = "convolutions, fp32, the session's overhead removed"

    def kernel(self, row: Row) -> tuple[Kernel, int]:
        h, r, stride = (_int(row[c]) for c in ("hw_in", "ksize", "stride"))
        pad = 0
        if row["same_pad"] == "1":
            pad = max((-(-h // stride) - 1) * stride + r - h, 0)
        if pad % 2:
            # TensorFlow pads the far side by one more, in a kernel of its own that takes 15 %.
            raise KernelError("a convolution pads both sides alike; one side has a pixel more")
        bias = row["bias"] == "1"
        kernel = Kernel.of(
            "conv2d",
            n=_int(row["batch"]),
            c=_int(row["cin"]),
            h=h,
            w=h,
            k=_int(row["cout"]),
            r=r,
            s=r,
            stride=stride,
            pad=pad // 2,
            dilation=1,
            groups=1,
        )
        return kernel, int(bias) + int(row["activation"] != "none")


class CdeDense(_Session):
    about = "linear, fp32, the session's overhead removed"

    def kernel(self, row: Row) -> tuple[Kernel, int]:
        sizes = {"m": row["batch"], "n": row["out_features"], "k": row["in_features"]}
        kernel = Kernel.of("linear", **{name: _int(text) for name, text in sizes.items()})
        return kernel, int(row["activation"] != "none")


ADAPTERS: Final[dict[str, TableAdapter]] = {
    "neusight_gemm_fp32": NeuSightGemm(),
    "neusight_conv3x3_fp32": NeuSightConv(),
    "neusight_elementwise_fp32": NeuSightElementwise(),
    "neusight_per_op_transformers": NeuSightPerOp(),
    "neusight_e2e_transformers": NeuSightNets(),
    "aiconfigurator_gemm_bf16": AiConfigurator(),
    "vidur_gemm_fp16": Vidur(),
    "llmservingsim_gemm_16bit_every_m": LlmServingSim(),
    "cdecatapult_conv_fp32_forward": CdeConv(),
    "cdecatapult_dense_fp32_forward": CdeDense(),
    "miopen_conv_fwd_amd": MIOpen(),
    "timm_benchmark": Timm(),
}
REFUSED: Final[dict[str, str]] = {
    "help_ofa_mbv3_latency_ms": "latencies of Once-for-All choices, for judging how searches "
    "transfer between devices by rank",
    "hat_transformer_latency_ms": "its architectures are given by averages over layers, which "
    "don't tell the layers",
    "accelnasbench_imagenet_mnasnet": "throughputs of a tabular benchmark's choices, for judging "
    "searches",
    "timm_imagenet_accuracy": "accuracies, no latencies",
    "devices": "facts of devices, no measurements",
}
