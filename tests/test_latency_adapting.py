"""Adapting a model to a device by a few of its kernels; devices and times are made up."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from latency_fakes import linear

from tadnn.errors import CorruptFile, TableError
from tadnn.hardware import find_device
from tadnn.kernels import Kernel, KernelRow
from tadnn.latency import (
    LatencyModel,
    adapt,
    evaluate_kernels,
    fit_kernels,
    load_latency_model,
    save_latency_model,
)
from tadnn.latency.adaptation import Adaptation
from tadnn.profiling import FakeClock
from tadnn.runtimes import Setting

SETTING = Setting(runtime="cuda-kernels")
V100, T4, A100 = (find_device(name) for name in ("v100", "t4", "a100-40gb"))


def products(count: int, seed: int) -> list[Kernel]:
    rng = np.random.default_rng(seed)
    sizes = {tuple(int(2**x) for x in rng.uniform(4, 11, 3)) for _ in range(3 * count)}
    return [linear(n, k, m) for m, n, k in sorted(sizes)[:: max(1, len(sizes) // count)]][:count]


def additions(count: int, seed: int) -> list[Kernel]:
    rng = np.random.default_rng(seed)
    sizes = {(int(2**x), int(2**y)) for x, y in rng.uniform(5, 12, (3 * count, 2))}
    return [Kernel.of("add", rows=a, cols=b) for a, b in sorted(sizes)[:count]]


def measured(
    device: str, kernels: list[Kernel], factor: Callable[[Kernel], float] = lambda _: 1.0
) -> list[KernelRow]:
    clock = FakeClock(SETTING, find_device(device))
    return [KernelRow(k, clock.kernel_us(k) * factor(k)) for k in kernels]


@functools.cache
def base() -> LatencyModel:
    kernels = products(60, 0) + additions(30, 1)
    tables = [(spec, measured(spec.slug, kernels)) for spec in (V100, T4)]
    model = fit_kernels("base", tables, SETTING)
    return LatencyModel(model.card, model.ops, model.nets, A100, "0123456789abcdef")


def error(model: LatencyModel, rows: list[KernelRow]) -> float:
    return float(evaluate_kernels(model, rows)["overall"]["mape"])


def throttled(kernel: Kernel) -> float:
    """A card that runs at half its clock, and at more where memory binds."""
    return 2.0 if kernel.op == "linear" else 1.3


def test_a_handful_takes_the_bias_away() -> None:
    few = measured("a100-40gb", products(12, 7) + additions(6, 8), throttled)
    rest = measured("a100-40gb", products(40, 9) + additions(20, 10), throttled)
    adapted = adapt("a100", base(), few)
    before, after = evaluate_kernels(base(), rest), evaluate_kernels(adapted, rest)
    assert before["overall"]["mape"] > 25
    for op in ("linear", "add"):
        assert after["by_op"][op]["mape"] < 0.5 * before["by_op"][op]["mape"]
    assert abs(after["overall"]["bias"]) < 6


def test_more_rows_err_less() -> None:
    rest = measured("a100-40gb", products(40, 9), throttled)
    errors = [
        error(adapt("a", base(), measured("a100-40gb", products(n, 7), throttled)), rest)
        for n in (5, 100)
    ]
    assert errors[1] < errors[0]


def test_what_one_op_says_of_the_device_reaches_the_others() -> None:
    few = measured("a100-40gb", products(20, 7), lambda _: 2.0)
    rest = measured("a100-40gb", additions(20, 8), lambda _: 2.0)
    adapted = adapt("a", base(), few)
    assert error(adapted, rest) < error(base(), rest)
    known, strange = (adapted.predict([k]) for k in (products(1, 7)[0], rest[0].kernel))
    assert known.in_range[0]
    assert not strange.in_range[0]
    assert strange.std_us[0] / strange.latency_us[0] >= 0.25


def test_a_constant_factor_is_found_exactly_enough() -> None:
    # The base's own predictions times 3: nothing but the device's factor is to be learned.
    kernels = products(30, 11)
    few = [KernelRow(k, 3 * us) for k, us in zip(kernels, base().predict_us(kernels), strict=True)]
    adapted = adapt("a", base(), few)
    others = products(30, 12)
    ratio = adapted.predict_us(others) / base().predict_us(others)
    np.testing.assert_allclose(ratio, 3, rtol=0.02)


def test_left_out_rows_have_the_closed_form() -> None:
    rows = measured("a100-40gb", products(8, 7), throttled)
    adaptation = adapt("a", base(), rows).adjustments[0]
    assert isinstance(adaptation, Adaptation)
    mean, deviation = adaptation.left_out()
    keep = np.arange(8) != 3
    without = Adaptation(
        adaptation.device,
        adaptation.peers,
        adaptation.ops,
        adaptation.x[keep],
        adaptation.y[keep],
        adaptation.scales,
        adaptation.stretch,
    )
    model = LatencyModel(base().card, base().ops, base().nets, A100, adjustments=(without,))
    kernel = [row.kernel for row in sorted(rows, key=lambda r: rows.index(r))][3]
    log_factor = math.log(model.predict_us([kernel])[0] / base().predict_us([kernel])[0])
    assert log_factor == pytest.approx(mean[3], abs=1e-4)
    said = model.predict([kernel])
    assert said.std_us[0] / said.latency_us[0] == pytest.approx(deviation[3], rel=1e-3)


def test_the_card_names_the_base_and_the_rows_and_needs_neither(in_tmp_path: Path) -> None:
    few = measured("a100-40gb", products(12, 7) + additions(6, 8), throttled)
    made = adapt("a100", base(), few, source="few.csv")
    saved = save_latency_model(made, in_tmp_path / "latency_models" / "a100")
    loaded = load_latency_model("a100")
    assert loaded.name == "a100"
    assert loaded.device == A100
    data = loaded.card.data
    assert data["base"]["latency_model"] == "base@a100-40gb"
    assert data["base"]["hash"] == "0123456789abcdef"
    assert (data["rows"], data["source"]) == (18, "few.csv")
    assert len(data["rows_hash"]) >= 12
    kernels = [*products(20, 3), *additions(9, 4), linear(60000, 60000, 4096)]
    for model in (saved, loaded):
        got, wanted = model.predict(kernels), made.predict(kernels)
        assert (got.latency_us == wanted.latency_us).all()
        assert (got.std_us == wanted.std_us).all()
        assert (got.in_range == wanted.in_range).all()
        assert (model.predict_us(kernels) == got.latency_us).all()
    held_out = made.adjustments[0].to_dict()["held_out"]
    assert set(held_out) == {"overall", "linear", "add"}
    assert held_out["overall"]["n"] == 18


def test_other_devices_of_an_adapted_model_are_left_as_they_were() -> None:
    few = measured("a100-40gb", products(12, 7), throttled)
    kernels = products(5, 3)
    adapted = adapt("a", base(), few).on(V100)
    assert (adapted.predict_us(kernels) == base().on(V100).predict_us(kernels)).all()


def test_adapting_twice_continues() -> None:
    first = adapt("a", base(), measured("a100-40gb", products(20, 7), lambda _: 2.0))
    rows = measured("a100-40gb", products(20, 17), lambda _: 4.0)
    second = adapt("b", first, rows)
    assert len(second.adjustments) == 2
    assert error(second, measured("a100-40gb", products(20, 27), lambda _: 4.0)) < 15


def test_too_few_rows() -> None:
    with pytest.raises(TableError, match="at least 5 distinct kernels adapt a model; got 4"):
        adapt("a", base(), measured("a100-40gb", products(4, 7)) * 2)


def test_a_damaged_adaptation(in_tmp_path: Path) -> None:
    folder = in_tmp_path / "latency_models" / "a100"
    save_latency_model(adapt("a100", base(), measured("a100-40gb", products(8, 7))), folder)
    card = (folder / "card.yaml").read_text()
    (folder / "card.yaml").write_text(card.replace("kind: adaptation", "kind: magic"))
    with pytest.raises(CorruptFile, match="unknown adjustment 'magic'"):
        load_latency_model("a100")
