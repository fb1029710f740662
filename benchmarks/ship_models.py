"""Fits the latency models that tadnn ships to public tables, and writes ``latency_models/``.

    python benchmarks/ship_models.py [--data DIR] [--only WORD ...] [--out DIR] [--rows N]

One model per GPU and dtype, runtime ``cuda-kernels``: a network that serves one device errs less
there than one that serves several. And one of several GPUs, for those that nobody profiled: it
holds what GPUs share, and ``tadnn adapt`` learns the rest. Fitted numbers and held-out errors are
kept; of the rows, nothing. Seeds are fixed, so that the same tables give the same models.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from public_tables import DATA, read_device
from threadpoolctl import threadpool_limits

from tadnn.errors import TadnnError
from tadnn.hardware import DeviceSpec
from tadnn.kernels import KernelRow
from tadnn.latency import LatencyModel, error_summary, fit_kernels, save_latency_model
from tadnn.runtimes import Setting

OUT = Path(__file__).resolve().parents[1] / "latency_models"
SEED = 0
SAME_CHIP = 0.8
"""Log deviation a generation away: 0.25 for the same chip with a quarter more bandwidth."""

NEUSIGHT = ("sitar-lab/NeuSight, commit 6945927d9afc", "MIT")
CDE = ("CDECatapult/ml-performance-prediction, commit e649f32d354d", "Apache-2.0")
AICONFIGURATOR = ("ai-dynamo/aiconfigurator (NVIDIA), commit 095f58a51c4c", "Apache-2.0")
LLMSERVINGSIM = ("casys-kaist/LLMServingSim, commit 5daddb21a545", "MIT")
SOURCES = {
    "neusight_gemm_fp32": NEUSIGHT,
    "neusight_elementwise_fp32": NEUSIGHT,
    "neusight_conv3x3_fp32": NEUSIGHT,
    "cdecatapult_conv_fp32_forward": CDE,
    "aiconfigurator_gemm_bf16": AICONFIGURATOR,
    "llmservingsim_gemm_16bit_every_m": LLMSERVINGSIM,
}

Part = tuple[str, str]
"""A table and a device of it."""


@dataclass(frozen=True)
class Shipped:
    """A model: the tables that it is fitted to, those that check it, and what to know of it."""

    name: str
    dtype: str
    parts: tuple[Part, ...]
    notes: str
    checks: tuple[Part, ...] = ()
    same_chip: bool = False
    """The devices are one chip with several memories; each is predicted by the others' rows."""


_BASICS = (
    "Covers kernels of fp32 networks without TF32: linear and batched products, add, mul, relu, "
    "gelu, tanh, arithmetic with a number, softmax and layer norm"
)
_REST = (
    "Anything else (depthwise and grouped convolutions, other windows, batch norm, pooling, other "
    "activations) has no rows: the physical core prices it after its likes, a factor of two either "
    "way, and reports name its share of a network's latency. Kernel times alone: launch gaps and "
    "the framework's overhead are not in it."
)
_SMALL = "3x3 convolutions of stride 1 with padding 1. "
_BF16 = (
    "Covers products with a weight matrix (linear) in bf16, as libraries of three serving engines "
    "run them (medians over their versions). Nothing else has rows: the physical core prices it "
    "after its likes, a factor of two either way (convolutions as the linear of their implicit "
    "GEMM), and reports name its share of a network's latency. Kernel times alone."
)


SEVERAL = ("p4", "p100", "v100", "t4", "a100-40gb")
"""The GPUs of NeuSight's tables."""


def _basics(device: str) -> tuple[Part, ...]:
    return (("neusight_gemm_fp32", device), ("neusight_elementwise_fp32", device))


SHIPPED = (
    Shipped(
        "v100-cuda-kernels-fp32",
        "fp32",
        (*_basics("v100"), ("cdecatapult_conv_fp32_forward", "v100")),
        f"{_BASICS}; convolutions of square images and windows of 1 to 7, stride 1 to 4, without "
        "groups and dilation. Convolutions were measured as wall times of TensorFlow 1 sessions: "
        "the overhead of a session (fitted to the table, about 0.2 ms) and the passes of bias and "
        "activation are taken off, and convolutions of less than some 30 us are guessed. The "
        "libraries of those sessions are old: against 3x3 convolutions that torch 2.1 ran, which "
        f"the fit never saw, the model is a third off (see checks). {_REST}",
        (("neusight_conv3x3_fp32", "v100"),),
    ),
    Shipped(
        "a100-cuda-kernels-fp32",
        "fp32",
        (*_basics("a100-40gb"), ("neusight_conv3x3_fp32", "a100-80gb")),
        f"{_BASICS}, all measured on the card with 40 GB; {_SMALL}They were measured on the card "
        "with 80 GB, the same chip with a quarter more bandwidth. Each predicts the other's, out "
        f"of range and by 25 % at least. {_REST}",
        same_chip=True,
    ),
    *(
        Shipped(
            f"{device}-cuda-kernels-fp32",
            "fp32",
            (*_basics(device), ("neusight_conv3x3_fp32", device)),
            f"{_BASICS}; {_SMALL}Rows of this card scatter more than those of others: its clock "
            f"may not have been steady. {_REST}",
        )
        for device in ("t4", "p100")
    ),
    Shipped(
        "nvidia-cuda-kernels-fp32",
        "fp32",
        (
            *(part for device in SEVERAL for part in _basics(device)),
            *(("neusight_conv3x3_fp32", d) for d in (*SEVERAL[:-1], "a100-80gb")),
        ),
        f"{_BASICS}; {_SMALL}Fitted to P4, P100, V100, T4 and A100 (40 GB; convolutions 80 GB) "
        "together, to predict GPUs that nobody profiled (NAME@DEVICE), with the deviation that "
        "each of these has where it is left out, and to be adapted to one by a few of its kernels "
        f"(tadnn adapt). Of one of these GPUs its own model knows more. {_REST}",
    ),
    *(
        Shipped(f"{name}-cuda-kernels-bf16", "bf16", (("aiconfigurator_gemm_bf16", device),), _BF16)
        for name, device in (("a100", "a100-80gb-sxm"), ("h200", "h200"))
    ),
    Shipped(
        "h100-cuda-kernels-bf16",
        "bf16",
        (("aiconfigurator_gemm_bf16", "h100"),),
        f"{_BF16} Checked against rows of another profiler that the fit never saw; those don't "
        "say which 16 bits.",
        (("llmservingsim_gemm_16bit_every_m", "h100"),),
    ),
)


def build(shipped: Shipped, data: Path, most: int | None = None) -> LatencyModel:
    """Fit a model to its tables.

    Args:
        shipped: which.
        data: where the tables are.
        most: rows an op at most, for trying this out; None for all.

    Raises:
        TadnnError: a table is absent.
    """
    tables: dict[str, tuple[DeviceSpec, list[KernelRow]]] = {}
    facts = []
    for table, device in shipped.parts:
        spec, rows = _read(table, device, data)
        rows = _thinned(rows, most)
        tables.setdefault(spec.slug, (spec, []))[1].extend(rows)
        facts.append(_facts(table, spec, len(rows)))
    setting = Setting(runtime="cuda-kernels", dtype=shipped.dtype)
    model = fit_kernels(
        shipped.name,
        list(tables.values()),
        setting,
        source="public tables",
        notes=shipped.notes,
        seed=SEED,
    )
    if shipped.same_chip:
        ops = {op: replace(fitted, abroad=SAME_CHIP) for op, fitted in model.ops.items()}
        model = LatencyModel(model.card, ops, model.nets, model.device)
    checks = [_checked(model, table, device, data) for table, device in shipped.checks]
    card = replace(
        model.card, data={**model.card.data, "tables": facts, "seed": SEED, "checks": checks}
    )
    return LatencyModel(card, model.ops, model.nets, model.device)


def _read(table: str, device: str, data: Path) -> tuple[DeviceSpec, list[KernelRow]]:
    spec, rows = read_device(table, device, data)
    return spec, [row for row in rows if isinstance(row, KernelRow)]


def _thinned(rows: list[KernelRow], most: int | None) -> list[KernelRow]:
    if most is None:
        return rows
    kept: dict[str, list[KernelRow]] = {}
    for i in np.random.default_rng(SEED).permutation(len(rows)):
        of_op = kept.setdefault(rows[i].kernel.op, [])
        if len(of_op) < most:
            of_op.append(rows[i])
    return [row for of_op in kept.values() for row in of_op]


def _facts(table: str, spec: DeviceSpec, rows: int) -> dict[str, Any]:
    source, licence = SOURCES[table]
    return {
        "table": table,
        "source": source,
        "licence": licence,
        "device": spec.slug,
        "rows": rows,
    }


def _checked(model: LatencyModel, table: str, device: str, data: Path) -> dict[str, Any]:
    """Return how far the model is off a table that it never saw."""
    spec, rows = _read(table, device, data)
    predicted = model.on(spec).predict([row.kernel for row in rows])
    errors = error_summary(predicted.latency_us, np.array([row.latency_us for row in rows]))
    return _facts(table, spec, len(rows)) | {"errors": errors}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="the tables")
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD", help="names with all")
    parser.add_argument("--out", type=Path, default=OUT, metavar="DIR", help="where to write")
    parser.add_argument("--rows", type=int, metavar="N", help="rows an op at most, to try it out")
    args = parser.parse_args(argv)
    written = 0
    with threadpool_limits(1):
        for shipped in SHIPPED:
            if not all(word in shipped.name for word in args.only):
                continue
            try:
                model = build(shipped, args.data, args.rows)
                save_latency_model(model, args.out / shipped.name)
            except TadnnError as error:
                print(f"{shipped.name}: {error}", file=sys.stderr)
                continue
            written += 1
            for op, fitted in sorted(model.ops.items()):
                held_out = fitted.held_out
                print(
                    f"{shipped.name:26} {op:11} {fitted.rows:7,} rows, "
                    f"MAPE {held_out.get('mape', float('nan')):5.1f} %, inside 1 and 2 sigma "
                    f"{held_out.get('one_sigma')} and {held_out.get('two_sigma')} %",
                    flush=True,
                )
    return 0 if written else 1


if __name__ == "__main__":
    sys.exit(main())
