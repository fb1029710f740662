"""Latency models on disk: ``card.yaml``, numbers in ``model.npz``, measurements beside them.

Nothing is executed on loading: YAML is loaded safely, arrays without pickle.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tadnn.errors import CorruptFile, SettingMismatch, UnknownName
from tadnn.files import LATENCY_MODELS, atomic_folder, file_hash
from tadnn.hardware import DeviceSpec, find_device
from tadnn.kernels import KernelRow, write_kernel_table
from tadnn.latency.adaptation import Adaptation
from tadnn.latency.adjustment import Adjustment
from tadnn.latency.card import Card
from tadnn.latency.kind_factors import KindFactors
from tadnn.latency.model import LatencyModel
from tadnn.latency.nets import NetCalibration
from tadnn.latency.op_model import OpModel
from tadnn.latency.physics import PHYSICS, physics_model
from tadnn.latency.summed_process import SummedProcess
from tadnn.runtimes import Setting

CARD, NUMBERS, KERNELS = "card.yaml", "model.npz", "kernels.csv.gz"
_ADJUSTMENT = "adjustment"  # no op has such a name
_DAMAGE = (
    KeyError,
    TypeError,
    ValueError,
    np.linalg.LinAlgError,
    AttributeError,
    OverflowError,
    OSError,
    zipfile.BadZipFile,
)


def save_latency_model(
    model: LatencyModel, folder: Path, rows: Sequence[KernelRow] | None = None
) -> LatencyModel:
    """Write a model as ``folder``, replacing what stands there, whole or not at all.

    Args:
        model: the model.
        folder: usually ``latency_models/NAME``.
        rows: measurements to keep beside it; only those that tadnn made may be kept.

    Returns:
        The model as :func:`load_latency_model` would give it, hash included.

    Raises:
        Unwritable: the folder cannot be written or the disk is full.
    """
    arrays = {
        f"{op}/{name}": array
        for op, fitted in model.ops.items()
        if fitted.learner
        for name, array in fitted.learner.to_arrays().items()
    } | {
        f"{_ADJUSTMENT}{i}/{name}": array
        for i, adjustment in enumerate(model.adjustments)
        for name, array in adjustment.to_arrays().items()
    }
    with atomic_folder(folder) as made:
        np.savez_compressed(made / NUMBERS, allow_pickle=False, **arrays)
        card = model.card.to_dict()
        # Of rows that stood beside it where it was loaded from.
        card["data"].pop("sha256", None)
        if rows is not None:
            write_kernel_table(made / KERNELS, rows)
            card["data"]["sha256"] = file_hash(made / KERNELS)
        card["model_sha256"] = file_hash(made / NUMBERS)
        card["nets"] = model.nets.to_dict()
        card["adjustments"] = [adjustment.to_dict() for adjustment in model.adjustments]
        card["ops"] = {op: fitted.to_dict() for op, fitted in sorted(model.ops.items())}
        text = yaml.safe_dump(card, sort_keys=False, allow_unicode=True, width=100)
        (made / CARD).write_text(text, encoding="utf-8")
    return _load(folder).on(model.device)


def load_latency_model(name: str) -> LatencyModel:
    """Load ``NAME`` or ``NAME@DEVICE`` from ``latency_models/``; ``physics-...`` needs no file.

    Raises:
        UnknownName: there is no such model or device; near matches are shown.
        SettingMismatch: the model serves several devices and none was named, or the one
            named is of another kind.
        CorruptFile: a file is damaged, or the data isn't what the card says.
    """
    plain, at, wanted = name.partition("@")
    if plain.startswith(PHYSICS) and plain not in LATENCY_MODELS.entries():
        return physics_model(plain, wanted)
    model = _load(LATENCY_MODELS.find(plain), plain)
    if not at:
        devices = model.card.devices
        if len(devices) != 1:
            names = ", ".join(f"{plain}@{device.slug}" for device in devices)
            raise SettingMismatch(f"{plain} serves several devices; name one of {names}")
        return model
    for device in model.card.devices:
        if wanted.casefold() in {n.casefold() for n in (device.slug, *device.aliases)}:
            return model.on(device)
    try:
        return model.on(find_device(wanted))
    except UnknownName as error:
        own = {device.slug for device in model.card.devices}
        raise UnknownName("device", wanted, {*own, *error.choices}) from None


def models_for(setting: Setting, device: DeviceSpec | None = None) -> list[str]:
    """Return the names of the models that predict a setting (on a device)."""
    found = []
    for name, folder in LATENCY_MODELS.entries().items():
        try:
            card = replace(read_card(folder), name=name)
        except CorruptFile:
            continue  # loaded by name it says what is wrong; it would not do here
        for spec in card.devices:
            if not LatencyModel(card, {}, NetCalibration(), spec).mismatches(setting, device):
                found.append(name if len(card.devices) == 1 else f"{name}@{spec.slug}")
    return found


def read_card(folder: Path) -> Card:
    """Read a model's card alone.

    Raises:
        CorruptFile: it is damaged.
    """
    return Card.from_dict(_read_yaml(folder / CARD), str(folder / CARD))


def _load(folder: Path, name: str = "") -> LatencyModel:
    """Load a model; where a name is given, that is what it is found by, whatever its card says."""
    data = _read_yaml(folder / CARD)
    card = Card.from_dict(data, str(folder / CARD))
    card = replace(card, name=name or card.name)
    try:
        _check_hash(folder / NUMBERS, str(data["model_sha256"]))
        if "sha256" in card.data:
            _check_hash(folder / KERNELS, str(card.data["sha256"]))
        with np.load(folder / NUMBERS, allow_pickle=False) as stored:
            arrays = {key: stored[key] for key in stored.files}
        ops = {
            str(op): OpModel.from_dict(
                facts,
                _under(arrays, str(op)),
            )
            for op, facts in data["ops"].items()
        }
        nets = NetCalibration.from_dict(data["nets"])
        # Models of before there were any have none.
        adjustments = [
            _adjustment(facts, _under(arrays, f"{_ADJUSTMENT}{i}"))
            for i, facts in enumerate(data.get("adjustments", ()))
        ]
    except _DAMAGE as error:
        raise CorruptFile(
            f"latency model {folder} is damaged: {type(error).__name__}: {error}"
        ) from error
    found = file_hash(folder / CARD)[:16]
    return LatencyModel(card, ops, nets, card.devices[0], found, adjustments)


def _under(arrays: Mapping[str, np.ndarray], part: str) -> dict[str, np.ndarray]:
    return {k.split("/", 1)[1]: a for k, a in arrays.items() if k.split("/", 1)[0] == part}


def _adjustment(data: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Adjustment:
    if data["kind"] == Adaptation.kind:
        return Adaptation.from_dict(data, arrays)
    if data["kind"] == KindFactors.kind:
        return KindFactors.from_dict(data)
    if data["kind"] == SummedProcess.kind:
        return SummedProcess.from_dict(data, arrays)
    raise ValueError(f"unknown adjustment {data['kind']!r}")


def _check_hash(path: Path, expected: str) -> None:
    if not path.is_file():
        raise CorruptFile(f"{path} is missing; the card beside it says it belongs to the model")
    if file_hash(path) != expected:
        raise CorruptFile(f"{path} is not the file that the card beside it describes (SHA-256)")


def _read_yaml(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise CorruptFile(f"{path} cannot be read: {error}") from error
