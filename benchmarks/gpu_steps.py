"""The steps of ``gpu_check.py``; each writes into the working directory and ``facts/NAME.json``."""

from __future__ import annotations

import argparse
import csv
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tadnn.kernels import Kernel, read_kernel_table
from tadnn.latency import LatencyModel, evaluate_kernels, fit_kernels, load_latency_model
from tadnn.profiling import measure, open_clock
from tadnn.runtimes import Setting

DTYPES = ("fp32", "bf16")
IMAGES = 24


@dataclass(frozen=True)
class Work:
    """How much is done where."""

    device: str
    short: bool

    @property
    def on_cpu(self) -> bool:
        """Whether this is a rehearsal on the real CPU."""
        return self.device == "cpu"

    @property
    def runtime(self) -> str:
        """Graphs strip launches: what remains is what the kernels take, stairs and all."""
        return "torch-eager" if self.on_cpu else "cuda-graph"

    @property
    def small(self) -> bool:
        """Whether networks are small ones."""
        return self.on_cpu or self.short

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Of the networks."""
        return (3, 32, 32) if self.small else (3, 224, 224)

    @property
    def batch(self) -> int:
        """Images at a time; one wouldn't fill a large GPU."""
        return 1 if self.small else 16

    @property
    def spaces(self) -> tuple[str, ...]:
        """What is profiled."""
        return ("resnet",) if self.small else ("resnet", "mbconv", "vit")

    def setting(self, dtype: str) -> Setting:
        """What everything is measured in."""
        return Setting(runtime=self.runtime, dtype=dtype, threads=1)


def environment(work: Work) -> dict[str, Any]:
    """Note what this machine is, and that the clock gives sane numbers."""
    import torch

    clock = open_clock(work.device, work.setting("fp32"))
    kernels = [Kernel.of("linear", m=1024, n=n, k=1024) for n in (1024, 4096)]
    small, large = measure(clock, kernels, max_repeats=10)
    print(json.dumps(clock.environment(), indent=2))
    if torch.cuda.is_available():
        subprocess.run(["nvidia-smi", "-q"], check=False)
    if large.latency_us <= small.latency_us:
        raise SystemExit(f"four times the work takes {large.latency_us}, not {small.latency_us} us")
    times = {"linear_1024_us": small.latency_us, "linear_4096_us": large.latency_us}
    return {"device": clock.device.to_dict(), "environment": clock.environment(), **times}


def profile(work: Work, dtype: str) -> dict[str, Any]:
    """Learn the spaces' kernels through the command line."""
    kernels, minutes = (1000, 1.2) if dtype == "fp32" else (800, 1.0)
    if work.short:
        kernels, minutes = 40, 0.05
    program = [sys.executable, "-c", "from tadnn.cli import main; main()"]
    command = [*program, "profile", "--name", f"gpu-{dtype}", "--json"]
    command += [f"--space={space}" for space in work.spaces]
    command += ["--device", work.device, "--runtime", work.runtime, "--dtype", dtype]
    command += ["--threads", "1", "--batch", str(work.batch)]
    command += ["--input", ",".join(map(str, work.input_shape))]
    command += ["--kernels", str(kernels), "--minutes", str(minutes)]
    told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    record: dict[str, Any] = json.loads(told.stdout)
    return record


def held_out(work: Work) -> dict[str, Any]:
    """Fit four fifths of the measured shapes and judge on the others."""
    found = {}
    for dtype in DTYPES:
        if not Path(f"latency_models/gpu-{dtype}").is_dir():
            continue
        model = load_latency_model(f"gpu-{dtype}")
        rows = read_kernel_table(Path(f"latency_models/gpu-{dtype}/kernels.csv.gz"))
        random.Random(0).shuffle(rows)
        cut = len(rows) // 5
        fitted = fit_kernels("held-out", [(model.device, rows[cut:])], model.setting)
        found[dtype] = {"fitted_on": len(rows) - cut, **evaluate_kernels(fitted, rows[:cut])}
        print(dtype, json.dumps(found[dtype], indent=2))
    if not found:
        raise SystemExit("nothing was profiled")
    return found


def sweeps(work: Work) -> dict[str, Any]:
    """Measure latency against width and draw it: the stairs."""
    Path("sweeps").mkdir(exist_ok=True)
    last = 256 if work.small else 4096
    facts = {}
    for dtype in DTYPES:
        model = _model(dtype)
        clock = open_clock(work.device, work.setting(dtype))
        rows = 128 if work.small else 2048
        linear = [
            Kernel.of("linear", m=rows, n=n, k=1024, dtype=dtype)
            for n in range(last // 64, last + 1, last // 64)
        ]
        widths = range(last // 256, last // 4 + 1, last // 256)
        convolution = [_convolution(work, width, dtype) for width in widths]
        for name, size, kernels in (("linear", "n", linear), ("conv2d", "k", convolution)):
            found = measure(clock, kernels, min_repeats=5, max_repeats=15)
            table = [
                (kernel.key, kernel.dim(size), m.latency_us, m.spread_us, m.repeats, *predicted)
                for kernel, m, predicted in zip(
                    kernels, found, _predicted(model, kernels), strict=True
                )
            ]
            _write_sweep(f"{name}-{dtype}", table)
            facts[f"{name}-{dtype}"] = len(table)
    return facts


def study(work: Work) -> dict[str, Any]:
    """Search on the learned model and measure the finalists again."""
    from tadnn.search import load_spec, run_search

    # What it says about accuracy doesn't matter here: FLOPs stand for it.
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (IMAGES, *work.input_shape), dtype=np.uint8)
    np.savez("images.npz", images=images, labels=np.arange(IMAGES) % 4)
    spec = {
        "name": "gpu-check",
        "space": "resnet",
        "dataset": f"npz:{Path('images.npz').resolve()}",
        "input_shape": list(work.input_shape),
        "latency_model": "gpu-fp32",
        "runtime": work.runtime,
        "threads": 1,
        "batch": work.batch,
        "objectives": ["latency", "accuracy"],
        "accuracy": {"proxy": "flops"},
        "trials": 20 if work.short else 150,
        "finalists": {"count": 3 if work.short else 6, "measure": True},
    }
    Path("studies").mkdir(exist_ok=True)
    path = Path("studies/gpu-check.yaml")
    path.write_text(yaml.safe_dump(spec), encoding="utf-8")
    result = run_search(load_spec(str(path)), device=work.device)
    finalists = [member for member in result.record["members"] if member.get("measured")]
    if not finalists:
        raise SystemExit(f"no finalist was measured: {'; '.join(result.notes)}")
    return {"check": result.check, "notes": list(result.notes), "front": result.record["members"]}


def _convolution(work: Work, width: int, dtype: str) -> Kernel:
    size = 14 if work.small else 28
    sizes = {"n": work.batch, "c": 128, "h": size, "w": size, "k": width, "r": 3, "s": 3}
    return Kernel.of("conv2d", dtype=dtype, **sizes, stride=1, pad=1, dilation=1, groups=1)


def _model(dtype: str) -> LatencyModel | None:
    there = Path(f"latency_models/gpu-{dtype}").is_dir()
    return load_latency_model(f"gpu-{dtype}") if there else None


def _predicted(
    model: LatencyModel | None, kernels: Sequence[Kernel]
) -> list[tuple[float | str, float | str]]:
    if model is None:
        return [("", "")] * len(kernels)
    told = model.predict(kernels)
    return [(float(t), float(s)) for t, s in zip(told.latency_us, told.std_us, strict=True)]


def _write_sweep(name: str, table: list[tuple[Any, ...]]) -> None:
    header = ["kernel", "width", "latency_us", "spread_us", "repeats", "predicted_us", "std_us"]
    with open(f"sweeps/{name}.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *table])
    if find_spec("matplotlib") is None:
        return
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    widths, measured = [row[1] for row in table], [row[2] for row in table]
    axes.step(widths, measured, where="mid", label="measured")
    if table[0][5] != "":
        axes.plot(widths, [row[5] for row in table], ".", label="predicted")
    axes.set(xlabel="width", ylabel="latency (µs)", ylim=(0, None), title=name)
    axes.legend()
    figure.savefig(f"sweeps/{name}.png", dpi=120)
    pyplot.close(figure)


def main() -> None:
    """Run one step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", required=True)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("step", choices=("environment", "profile", "held-out", "sweeps", "study"))
    parser.add_argument("dtype", nargs="?", choices=DTYPES)
    asked = parser.parse_args()
    work = Work(asked.device, asked.short)
    name = asked.step
    if asked.step == "profile":
        name = f"profile-{asked.dtype}"
        facts = profile(work, asked.dtype)
    else:
        steps = {"environment": environment, "held-out": held_out, "sweeps": sweeps, "study": study}
        facts = steps[asked.step](work)
    Path("facts").mkdir(exist_ok=True)
    Path(f"facts/{name}.json").write_text(json.dumps(facts, default=str), encoding="utf-8")


if __name__ == "__main__":
    main()
