"""From the rows of public tables to kernels and networks; see :mod:`public_tables`.

One adapter a table. Each yields, for a row, what was measured, or in one phrase why the row
can't be expressed: the phrases are counted and shown.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from typing import ClassVar, Final

from session_adapters import CdeConv, CdeDense
from table_adapter import Measured, Pick, Row, RowByRow, TableAdapter, int_of, prefer, us_of

from tadnn.kernels import Kernel
from tadnn.nets.published.configurations import CONFIGS


class NeuSightGemm(RowByRow):
    about = "linear and batched products, fp32"

    def one(self, row: Row) -> Measured | str:
        m, n, k = (int_of(row[c]) for c in ("m", "n", "k"))
        if row["op"] == "linear":
            kernel = Kernel.of("linear", m=m * int_of(row["batch"]), n=n, k=k)
        elif row["op"] == "bmm":
            kernel = Kernel.of("bmm", b=int_of(row["batch"]), m=m, n=n, k=k)
        else:
            return f"op {row['op']} is no kernel of tadnn"
        return Measured(kernel, us_of(row, "latency_ms"))


class NeuSightConv(RowByRow):
    about = "3x3 convolutions, stride 1, fp32"

    def one(self, row: Row) -> Measured | str:
        r, hw = int_of(row["ksize"]), int_of(row["hw_in"])
        sizes = {"n": int_of(row["batch"]), "c": int_of(row["cin"]), "k": int_of(row["cout"])}
        more = {"stride": int_of(row["stride"]), "pad": int_of(row["pad"])}
        kernel = Kernel.of("conv2d", h=hw, w=hw, r=r, s=r, dilation=1, groups=1, **sizes, **more)
        return Measured(kernel, us_of(row, "latency_ms"))


# Two tensors divided or raised aren't in the vocabulary. Arithmetic with a number is one op there.
_VECTOR_OPS: Final = (
    {"ln": "layer_norm"}
    | {op: op for op in ("add", "mul", "relu", "gelu", "tanh", "softmax")}
    | dict.fromkeys(("addu", "mulu", "divu"), "scalar")
)


class NeuSightElementwise(RowByRow):
    about = "elementwise ops, softmax and layer norm, fp32"

    def one(self, row: Row) -> Measured | str:
        op = _VECTOR_OPS.get(row["op"])
        if op is None:
            return f"op {row['op']} is no kernel of tadnn"
        kernel = Kernel.of(op, rows=int_of(row["rows"]), cols=int_of(row["cols"]))
        return Measured(kernel, us_of(row, "latency_ms"))


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


class NeuSightPerOp(RowByRow):
    about = "operators of transformer layers as they are called, fp32"

    def one(self, row: Row) -> Measured | str:
        target = row["target"].rsplit(".", 1)[-1]
        ins, out = ast.literal_eval(row["input_shapes"]), ast.literal_eval(row["output_shape"])
        kernel = self._kernel(target, [tuple(shape) for shape in ins], tuple(out))
        return Measured(kernel, us_of(row, "fw_latency_ms")) if kernel else f"operator {target}"

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


class NeuSightNets(RowByRow):
    about = "whole transformers, fp32 (a timing table)"
    timings = True
    defaults: ClassVar[Mapping[str, Pick]] = {"mode": prefer("inf"), "variant": prefer("")}

    def one(self, row: Row) -> Measured | str:
        if row["model"] not in CONFIGS:
            return "a network that isn't written here (mixture of experts)"
        target = f"neusight:{row['model']}@{int_of(row['seq'])}"
        return Measured((target, int_of(row["batch"])), us_of(row, "e2e_latency"))


class AiConfigurator(RowByRow):
    about = "linear, bf16"

    def one(self, row: Row) -> Measured | str:
        kernel = _linear(row, "bf16")
        # The range of n values over their deviation, for the few runs there are: about 1.7 to 3.
        spread = (us_of(row, "latency_ms_max") - us_of(row, "latency_ms_min")) / 2
        repeats = int_of(row["n_runs"])
        return Measured(
            kernel, us_of(row, "latency_ms_median"), spread if repeats > 1 else None, repeats
        )


class Vidur(RowByRow):
    about = "linear, fp16"

    def one(self, row: Row) -> Measured | str:
        spread = float(row["latency_ms_std"]) * 1e3
        return Measured(_linear(row, "fp16"), us_of(row, "latency_ms_median"), spread)


class LlmServingSim(RowByRow):
    about = "linear, bf16 (its older rows say only that they are of 16 bits)"

    def one(self, row: Row) -> Measured | str:
        return Measured(_linear(row, "bf16"), us_of(row, "latency_us", 1.0))


def _linear(row: Row, dtype: str) -> Kernel:
    m, n, k = (int_of(row[name]) for name in ("m", "n", "k"))
    return Kernel.of("linear", m=m, n=n, k=k, dtype=dtype)


class MIOpen(RowByRow):
    about = "convolutions, fp32, fp16 or bf16 (--where dtype=...)"
    defaults: ClassVar[Mapping[str, Pick]] = {"dtype": prefer("fp32")}

    def one(self, row: Row) -> Measured | str:
        get = {
            name: int_of(row[name])
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
        return Measured(kernel, us_of(row, "best_ms"))


class Timm(RowByRow):
    about = "image networks of timm (a timing table)"
    timings = True
    defaults: ClassVar[Mapping[str, Pick]] = {
        "mode": prefer("infer"),
        "precision": prefer("amp"),
        "layout": prefer("nchw"),
        "compile": prefer("eager"),
        "torch": prefer("pt240"),
    }

    def one(self, row: Row) -> Measured | str:
        target = f"timm:{row['model']}@{int_of(row['img_size'])}"
        batch = int_of(row["batch_size"])
        # Throughput has more digits than the time of a step.
        return Measured((target, batch), batch / float(row["samples_per_sec"]) * 1e6)


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
