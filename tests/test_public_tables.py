from __future__ import annotations

import csv
import gzip
import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tadnn.hardware import devices
from tadnn.kernels import Kernel, read_kernel_table, read_timing_table

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
A100, V100 = "NVIDIA A100-PCIE-40GB", "Tesla V100-PCIE-32GB"


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("public_tables")
    for name in ("public_tables", "table_adapters", "table_adapter", "session_adapters"):
        sys.modules.pop(name, None)


def write(folder: Path, name: str, rows: Sequence[dict[str, object]], zipped: bool = True) -> None:
    path = folder / f"{name}.csv{'.gz' if zipped else ''}"
    with gzip.open(path, "wt") if zipped else path.open("w") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def gemm(
    device: str = A100, op: str = "linear", ms: float = 0.1, **sizes: int
) -> dict[str, object]:
    dims = {"batch": 1, "m": 7, "n": 8, "k": 9} | sizes
    return {"split": "train", "op": op, "device": device, **dims, "latency_ms": ms}


def convert(tables: Any, folder: Path, *args: str) -> tuple[int, Path]:
    out = folder / "out.csv"
    return tables.main([*args, "--data", str(folder), "-o", str(out)]), out


def test_products_of_one_device(
    tables: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        gemm(op="bmm", batch=3, ms=0.2),
        gemm(ms=0.5),
        gemm(V100, ms=0.9),
        gemm(op="gemv"),
        gemm(n=0),
    ]
    write(tmp_path, "neusight_gemm_fp32", rows)
    code, out = convert(tables, tmp_path, "neusight_gemm_fp32", "--device", "a100-40gb")
    assert code == 0
    assert {r.kernel: r.latency_us for r in read_kernel_table(out)} == {
        Kernel.of("bmm", b=3, m=7, n=8, k=9): 200.0,
        Kernel.of("linear", m=7, n=8, k=9): 500.0,
    }
    said = capsys.readouterr().err
    assert "left out 1 rows: op gemv is no kernel of tadnn" in said
    assert "a100-40gb: 2 rows" in said


def test_repeated_shapes_are_one_row(tables: Any, tmp_path: Path) -> None:
    write(tmp_path, "neusight_gemm_fp32", [gemm(ms=ms) for ms in (0.1, 0.4, 0.2)], zipped=False)
    first = convert(tables, tmp_path, "neusight_gemm", "--device", A100)[1].read_bytes()
    (row,) = read_kernel_table(tmp_path / "out.csv")
    assert (row.latency_us, row.spread_us, row.repeats) == (200.0, pytest.approx(148.26), 3)
    assert convert(tables, tmp_path, "neusight_gemm", "--device", A100)[1].read_bytes() == first


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("neusight_gem", "--device", "tpu"), "Valid: a100-40gb, v100, weird chip."),
        (("neusight_gem", "--device", "t4"), "Valid: a100-40gb, v100, weird chip."),
        (("neusight_gem",), "Valid: a100-40gb, v100, weird chip."),
        (("neusight_gemmm", "--device", "v100"), "unknown table 'neusight_gemmm'"),
        (("neusight", "--device", "v100"), "Valid: neusight_conv3x3_fp32, neusight_e2e"),
        (("hat_transformer_latency_ms", "--device", "v100"), "averages over layers"),
        (("vidur_gemm_fp16", "--device", "v100"), "there is no vidur_gemm_fp16 in"),
        (("neusight_gem", "--device", "v100", "--where", "op=conv"), "values there: linear"),
        (("neusight_gem", "--device", "v100", "--where", "color=red"), "Columns: split, op"),
    ],
)
def test_wrong_requests(
    tables: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    args: tuple[str, ...],
    said: str,
) -> None:
    write(tmp_path, "neusight_gemm_fp32", [gemm(), gemm(V100), gemm("weird chip")])
    code, out = convert(tables, tmp_path, *args)
    assert code == 2
    assert said in capsys.readouterr().err
    assert not out.exists()


def test_what_may_not_be_mixed_is_picked(
    tables: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"batch": 1, "cin": 4, "h": 8, "w": 9, "cout": 6, "kh": 3, "kw": 1, "pad_h": 1}
    more = {"pad_w": 0, "stride_h": 2, "stride_w": 1, "dil_h": 1, "dil_w": 1, "groups": 2}
    common = {**sizes, **more, "best_ms": 0.5, "solver": "x", "n_solvers": 3}
    rows = [{"device": "gfx90a68", "dtype": d, **common} for d in ("bf16", "fp16", "fp32")]
    write(tmp_path, "miopen_conv_fwd_amd", rows)
    for more_args, dtype in (((), "fp32"), (("--where", "dtype=bf16"), "bf16")):
        assert convert(tables, tmp_path, "miopen", "--device", "mi210", *more_args)[0] == 0
        (row,) = read_kernel_table(tmp_path / "out.csv")
        kernel = Kernel.parse(
            "conv2d(n=1,c=4,h=8,w=9,k=6,r=3,s=1,stride=2,pad=1,dilation=1,groups=2,"
            f"stride_w=1,pad_w=0,dtype={dtype})"
        )
        assert (row.kernel, row.latency_us) == (kernel, 500.0)
    assert "dtype: fp32 of bf16, fp16, fp32" in capsys.readouterr().err


def test_operators_as_they_are_called(tables: Any, tmp_path: Path) -> None:
    calls = [
        ("bert.encoder.layer.0.intermediate.dense", "[[2, 3, 4]]", "(2, 3, 8)"),
        ("addmm", "[[8], [6, 4], [4, 8]]", "(6, 8)"),
        ("matmul", "[[2, 5, 3, 4], [2, 5, 4, 7]]", "(2, 5, 3, 7)"),
        ("transformer.h.0.ln_1", "[[2, 3, 4]]", "(2, 3, 4)"),
        ("softmax", "[[2, 3, 4]]", "(2, 3, 4)"),
        ("add", "[[2, 3, 4], [2, 3, 4]]", "(2, 3, 4)"),
        ("add", "[[2, 3, 4], [1, 3, 4]]", "(2, 3, 4)"),
        ("where", "[[1], [2, 3], [1]]", "(2, 3)"),
    ]
    rows = [
        {"device": "Tesla T4", "target": t, "input_shapes": i, "output_shape": o}
        | {"fw_latency_ms": 0.1 + 0.1 * n}
        for n, (t, i, o) in enumerate(calls)
    ]
    write(tmp_path, "neusight_per_op_transformers", rows)
    assert convert(tables, tmp_path, "neusight_per_op", "--device", "t4")[0] == 0
    found = {r.kernel.key: r.latency_us for r in read_kernel_table(tmp_path / "out.csv")}
    assert found == {
        "linear(m=6,n=8,k=4,dtype=fp32)": 150.0,  # the module's and the function's
        "bmm(b=10,m=3,n=7,k=4,dtype=fp32)": 300.0,
        "layer_norm(rows=6,cols=4,dtype=fp32)": 400.0,
        "softmax(rows=6,cols=4,dtype=fp32)": 500.0,
        "add(rows=6,cols=4,dtype=fp32)": 600.0,
    }


def session(batch: int, ms: float, **changed: object) -> dict[str, object]:
    sizes = {"batch": batch, "hw_in": 8, "cin": 4, "cout": 4, "ksize": 3, "stride": 1}
    how = {"same_pad": 1, "bias": 0, "activation": "none"}
    times = {"ms_median": ms, "ms_min": ms, "ms_std": 0.01}
    return {"device": "V100", **sizes, **how, **times, **changed}


def test_a_sessions_overhead_is_taken_off(
    tables: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = [session(1 + i, 0.200 + 0.001 * (i % 5), cin=1 + i // 8) for i in range(40)]
    large = [
        session(64, 5.2, hw_in=256, cin=64, cout=64),
        session(64, 5.2, hw_in=256, cin=64, cout=64, ksize=2),  # padded on one side only
        session(64, 9.0, hw_in=256, cin=32, cout=64, bias=1, activation="tanh"),
    ]
    write(tmp_path, "cdecatapult_conv_fp32_forward", small + large)
    assert convert(tables, tmp_path, "cdecatapult_conv", "--device", "v100")[0] == 0
    rows = {r.kernel.dim("c"): r for r in read_kernel_table(tmp_path / "out.csv")}
    assert set(rows) == {32, 64}
    assert rows[64].kernel.dim("pad") == 1
    assert rows[64].latency_us == pytest.approx(5000, abs=2)
    # Two passes that read and write 64 x 64 x 256 x 256 values at 80 % of 900 GB/s.
    passes = 2 * 2 * 4 * 64 * 64 * 256 * 256 / (0.8 * 900e3)
    assert rows[32].latency_us == pytest.approx(8800 - passes, abs=2)
    said = capsys.readouterr().err
    assert "left out 40 rows: within the scatter of the session's overhead" in said
    assert "left out 1 rows: no such kernel: a convolution pads both sides alike" in said


def test_whole_networks_are_a_timing_table(tables: Any, tmp_path: Path) -> None:
    common = {"mode": "infer", "precision": "amp", "layout": "nchw", "compile": "eager"}
    rows = [
        {**common, "device": "RTX 3090", "torch": torch, "model": "resnet50", "img_size": 224}
        | {"batch_size": 256.0, "samples_per_sec": rate}
        for torch, rate in (("pt113", 1000), ("pt240", 2000))
    ]
    write(tmp_path, "timm_benchmark", rows)
    assert convert(tables, tmp_path, "timm_bench", "--device", "RTX3090")[0] == 0
    (row,) = read_timing_table(tmp_path / "out.csv")
    assert (row.target, row.batch, row.latency_ms) == ("timm:resnet50@224", 256, 128.0)


PUBLIC = Path(__file__).parents[2] / "shared" / "data"


@pytest.mark.slow
@pytest.mark.skipif(not PUBLIC.is_dir(), reason="the public tables are absent")
def test_every_public_table_converts(tables: Any) -> None:
    for name in tables.ADAPTERS:
        adapter, path = tables.find_table(name, PUBLIC)
        source = tables.read_rows(path)
        for slug in tables.devices_of(source, adapter).keys() & devices().keys():
            spec, picked = tables.select(source, adapter, slug, {})
            rows, _ = tables.convert(picked, adapter, spec)
            assert len(rows) > 2
