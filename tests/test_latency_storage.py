from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from latency_fakes import SETTING, conv, convs, linear, pool, rows, small_nets

from tadnn.errors import CorruptFile, SettingMismatch, UnknownName, Unwritable
from tadnn.hardware import find_device
from tadnn.kernels import KernelRow, read_kernel_table
from tadnn.latency import (
    LatencyModel,
    NetTiming,
    calibrate_nets,
    fit_kernels,
    load_latency_model,
    models_for,
    read_card,
    save_latency_model,
    storage,
)
from tadnn.profiling import FAKE_DEVICE, FakeClock, NetRun
from tadnn.runtimes import Setting

CLOCK = FakeClock(SETTING)
GPUS = Setting()
V100, T4 = find_device("v100"), find_device("t4")


@pytest.fixture(scope="module")
def model() -> LatencyModel:
    """Calibrated; with processes, trees and ops of a core alone."""
    nets = small_nets(8, 4)
    timings = [NetTiming(net, 1, CLOCK.true_us(NetRun(net)) / 1e3) for net in nets]
    kernels = [*convs(101), *pool(small_nets(3)), *(linear(n) for n in range(8, 24))]
    fitted = fit_kernels(
        "small",
        [(FAKE_DEVICE, rows(CLOCK, kernels))],
        SETTING,
        environment=CLOCK.environment(),
        source="the fake clock",
        notes="Of no use: ünïcode.",
        purpose="tests",
    )
    assert {"blend", "process", None} == {
        m.learner.kind if m.learner else None for m in fitted.ops.values()
    }
    return calibrate_nets(fitted, timings)


@pytest.fixture(scope="module")
def gpus() -> LatencyModel:
    tables = [
        (spec, rows(FakeClock(GPUS, spec), [linear(n, k) for n in range(16, 216, 20)]))
        for spec, k in ((V100, 64), (T4, 128))
    ]
    return fit_kernels("gpus", tables, GPUS)


@pytest.fixture(scope="module")
def written(model: LatencyModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written") / "small"
    save_latency_model(model, folder, ROWS)
    return folder


@pytest.fixture
def saved(written: Path, in_tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, in_tmp_path / "latency_models" / "small"))


ROWS = [KernelRow(conv(16), 12.5, 0.25, 9), KernelRow(conv(24), 13.0)]


def same(got: LatencyModel, wanted: LatencyModel) -> None:
    kernels = [*pool(small_nets(4, 9)), conv(500), linear(9)]
    a, b = got.predict(kernels), wanted.predict(kernels)
    assert (a.latency_us == b.latency_us).all()
    assert (a.std_us == b.std_us).all()
    assert (a.in_range == b.in_range).all()
    net = small_nets(1, 9)[0]
    assert got.predict_net(net) == wanted.predict_net(net)


def test_a_saved_model_predicts_the_same_bit_by_bit(model: LatencyModel, saved: Path) -> None:
    loaded = load_latency_model("small")
    same(loaded, model)
    assert loaded.card.name == loaded.name == "small"
    assert loaded.nets == model.nets
    assert loaded.card.environment == CLOCK.environment()
    assert {op: m.to_dict() for op, m in loaded.ops.items()} == {
        op: m.to_dict() for op, m in model.ops.items()
    }
    data = dict(loaded.card.data)
    assert len(data.pop("sha256")) == 64
    assert data == model.card.data
    assert read_kernel_table(saved / "kernels.csv.gz") == ROWS


def test_saving_again_gives_the_same_bytes_and_hash(saved: Path, tmp_path: Path) -> None:
    first = load_latency_model("small")
    again = save_latency_model(first, tmp_path / "elsewhere", ROWS)
    for file in ("card.yaml", "model.npz", "kernels.csv.gz"):
        assert (tmp_path / "elsewhere" / file).read_bytes() == (saved / file).read_bytes()
    assert again.hash == first.hash
    assert len(again.hash) == 16


def test_another_model_has_another_hash(model: LatencyModel, saved: Path, tmp_path: Path) -> None:
    other = LatencyModel(
        model.card, model.ops, replace(model.nets, gap_us=model.nets.gap_us + 1e-9), FAKE_DEVICE
    )
    assert save_latency_model(other, tmp_path / "x", ROWS).hash != load_latency_model("small").hash


def test_saved_without_rows_a_loaded_model_still_loads(saved: Path, tmp_path: Path) -> None:
    loaded = load_latency_model("small")
    again = save_latency_model(loaded, tmp_path / "bare")
    assert sorted(os.listdir(tmp_path / "bare")) == ["card.yaml", "model.npz"]
    assert "sha256" not in again.card.data
    same(again, loaded)


def test_what_a_card_shows(saved: Path) -> None:
    card = yaml.safe_load((saved / "card.yaml").read_text(encoding="utf-8"))
    assert card["notes"] == "Of no use: ünïcode."
    assert card["setting"] == SETTING.to_dict()
    assert card["devices"] == [FAKE_DEVICE.to_dict()]
    assert card["data"]["source"] == "the fake clock"
    assert card["data"]["purpose"] == "tests"
    conv2d = card["ops"]["conv2d"]
    assert conv2d["rows"] == conv2d["held_out"]["n"] > 100
    assert conv2d["range"]["r"] == [1, 3, 5]
    assert card["ops"]["batch_norm"]["rows"] > 0
    assert len(card["data"]["calibration_nets"]) == 8


def test_a_model_is_called_by_its_folder(saved: Path) -> None:
    saved.rename(saved.with_name("renamed"))
    assert load_latency_model("renamed").name == "renamed"
    assert models_for(SETTING) == ["renamed"]


# Devices


def test_names_with_devices(gpus: LatencyModel, in_tmp_path: Path) -> None:
    save_latency_model(gpus, in_tmp_path / "latency_models" / "gpus")
    loaded = load_latency_model("gpus@t4")
    assert (loaded.name, loaded.device) == ("gpus@t4", T4)
    assert load_latency_model("gpus@Tesla T4").device.slug == "t4"
    assert loaded.predict([linear(100, 128)]).in_range[0]
    with pytest.raises(
        SettingMismatch, match=r"gpus serves several devices; name one of gpus@v100, gpus@t4"
    ):
        load_latency_model("gpus")
    with pytest.raises(UnknownName, match=r"unknown device 'a100-50gb'; did you mean 'a100-"):
        load_latency_model("gpus@a100-50gb")
    with pytest.raises(UnknownName, match="unknown device ''"):
        load_latency_model("gpus@")
    with pytest.raises(UnknownName, match=r"latency model 'gpu'; did you mean 'gpus'"):
        load_latency_model("gpu@t4")


def test_an_unseen_device_is_never_in_range_and_as_unsure_as_abroad(
    gpus: LatencyModel, in_tmp_path: Path
) -> None:
    save_latency_model(gpus, in_tmp_path / "latency_models" / "gpus")
    unseen = load_latency_model("gpus@a100-40gb")
    assert unseen.name == "gpus@a100-40gb"
    predicted = unseen.predict([linear(100, 128), linear(16, 64)])
    assert not predicted.in_range.any()
    assert (predicted.std_us / predicted.latency_us >= gpus.ops["linear"].abroad * 0.999).all()


def test_a_device_of_the_card_need_not_be_in_the_table(model: LatencyModel, saved: Path) -> None:
    assert load_latency_model("small@cpu-fake").device == FAKE_DEVICE
    assert load_latency_model("small@FAKE").name == "small"
    with pytest.raises(SettingMismatch, match=r"small predicts a cpu; got t4, a gpu"):
        load_latency_model("small@t4")


def test_which_models_would_do(saved: Path, gpus: LatencyModel) -> None:
    save_latency_model(gpus, saved.with_name("gpus"))
    (saved.with_name("broken")).mkdir()
    (saved.with_name("broken") / "card.yaml").write_text("format: none", encoding="utf-8")
    assert models_for(SETTING, FAKE_DEVICE) == ["small"]
    assert models_for(GPUS, T4) == ["gpus@t4"]
    assert models_for(SETTING) == ["gpus@v100", "gpus@t4", "small"], "GPUs don't mind threads"
    assert models_for(replace(GPUS, threads=3)) == ["gpus@v100", "gpus@t4"]
    assert models_for(replace(SETTING, threads=3), FAKE_DEVICE) == []
    with pytest.raises(SettingMismatch, match=r"would do: gpus@t4, gpus@v100"):
        load_latency_model("small").require(GPUS, None, models_for(GPUS))


# Damage


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("harm", [cut, flip, Path.unlink], ids=["cut", "flip", "missing"])
@pytest.mark.parametrize("file", ["model.npz", "kernels.csv.gz"])
def test_damaged_numbers_are_noticed(saved: Path, file: str, harm: Callable[[Path], None]) -> None:
    harm(saved / file)
    with pytest.raises(CorruptFile, match=file):
        load_latency_model("small")


def test_a_model_without_its_card_is_none(saved: Path) -> None:
    (saved / "card.yaml").unlink()
    with pytest.raises(UnknownName, match="unknown latency model 'small'"):
        load_latency_model("small")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "- a list",
        "{unbalanced",
        "format: tadnn-latency-model-1",
        "format: another",
        "!!python/object/apply:os.system ['false']",
    ],
)
def test_what_is_no_card_is_refused(saved: Path, text: str) -> None:
    (saved / "card.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(CorruptFile, match=r"card\.yaml"):
        load_latency_model("small")
    with pytest.raises(CorruptFile, match=r"card\.yaml"):
        read_card(saved)


def test_a_card_that_is_no_text_is_refused(saved: Path) -> None:
    (saved / "card.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CorruptFile, match=r"card\.yaml"):
        load_latency_model("small")


@pytest.mark.parametrize(
    ("at", "value"),
    [
        ("devices", []),
        ("devices", [{"slug": "x"}]),
        ("devices", 3),
        ("setting", {"threads": 0}),
        ("setting", {"speed": 1}),
        ("environment", []),
        ("data", 5),
        ("nets", {}),
        ("nets", None),
        ("ops", {"conv2d": {}}),
        ("ops", []),
        ("ops", {"conv2d": {"learner": "forest"}}),
        ("model_sha256", None),
    ],
)
def test_a_card_with_a_wrong_value_is_refused(saved: Path, at: str, value: object) -> None:
    card = yaml.safe_load((saved / "card.yaml").read_text(encoding="utf-8"))
    card[at] = value
    (saved / "card.yaml").write_text(yaml.safe_dump(card), encoding="utf-8")
    with pytest.raises(CorruptFile, match="small"):
        load_latency_model("small")


@pytest.mark.parametrize("key", ["data", "nets", "ops", "model_sha256", "notes", "devices"])
def test_a_card_that_lacks_a_part_is_refused(saved: Path, key: str) -> None:
    card = yaml.safe_load((saved / "card.yaml").read_text(encoding="utf-8"))
    del card[key]
    (saved / "card.yaml").write_text(yaml.safe_dump(card), encoding="utf-8")
    with pytest.raises(CorruptFile, match="small"):
        load_latency_model("small")


@pytest.mark.parametrize("number", [float("inf"), "many", None, [1]])
def test_an_op_with_a_wrong_number_is_refused(saved: Path, number: object) -> None:
    card = yaml.safe_load((saved / "card.yaml").read_text(encoding="utf-8"))
    card["ops"]["conv2d"]["rows"] = number
    (saved / "card.yaml").write_text(yaml.safe_dump(card), encoding="utf-8")
    with pytest.raises(CorruptFile, match="damaged"):
        load_latency_model("small")


def test_no_pickle_is_loaded(saved: Path) -> None:
    with open(saved / "model.npz", "wb") as file:
        np.savez(file, **{"conv2d/lengths": np.array([{"an": "object"}], dtype=object)})
    card = yaml.safe_load((saved / "card.yaml").read_text(encoding="utf-8"))
    card["model_sha256"] = storage.file_hash(saved / "model.npz")
    (saved / "card.yaml").write_text(yaml.safe_dump(card), encoding="utf-8")
    with pytest.raises(CorruptFile, match="allow_pickle"):
        load_latency_model("small")


# Writing


def test_a_half_written_model_is_never_seen(
    model: LatencyModel, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = load_latency_model("small").hash

    def full(path: Path, table: object) -> None:
        assert (path.parent / "model.npz").is_file(), "the numbers are written by now"
        assert models_for(SETTING) == ["small"], "and nobody sees them"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage, "write_kernel_table", full)
    for folder in (saved, saved.with_name("new")):
        with pytest.raises(Unwritable, match="No space left"):
            save_latency_model(model, folder, ROWS)
    assert os.listdir(saved.parent) == ["small"], "nothing is left lying around"
    assert load_latency_model("small").hash == before


def test_a_model_takes_the_place_of_the_one_before(saved: Path) -> None:
    (saved / "stray.txt").write_text("x", encoding="utf-8")
    loaded = load_latency_model("small")
    save_latency_model(replace_notes(loaded, "second"), saved, ROWS)
    assert sorted(os.listdir(saved)) == ["card.yaml", "kernels.csv.gz", "model.npz"]
    assert load_latency_model("small").card.notes == "second"
    assert load_latency_model("small").hash != loaded.hash


def replace_notes(model: LatencyModel, notes: str) -> LatencyModel:
    return LatencyModel(replace(model.card, notes=notes), model.ops, model.nets, model.device)


def test_a_folder_that_cannot_be_written(model: LatencyModel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(Unwritable, match="cannot write"):
        save_latency_model(model, tmp_path / "file" / "small")
