"""Models of GPUs that nobody measured."""

from __future__ import annotations

import pytest

from tadnn.errors import SettingMismatch, UnknownName
from tadnn.kernels import Kernel
from tadnn.latency import load_latency_model
from tadnn.latency.physics import physics_names


def test_every_name_loads_on_every_gpu() -> None:
    assert "physics-cuda-kernels-fp32" in physics_names()
    assert not any("onnxruntime" in name for name in physics_names())
    for name in physics_names():
        model = load_latency_model(f"{name}@T4")
        assert model.name == name
        assert f"physics-{model.setting.runtime}-{model.setting.dtype}" == name
        assert model.device.slug == "t4"


def test_it_is_the_core_and_says_how_little_it_knows() -> None:
    model = load_latency_model("physics-cuda-kernels-fp32@a100-40gb")
    predicted = model.predict([Kernel("add", (1000, 1000))])
    # Three tensors of 4 MB at 1555 GB/s, three times as long, and a launch.
    assert predicted.latency_us[0] == pytest.approx(5 + 3 * 12e6 / 1555e3, rel=1e-5)
    assert predicted.std_us[0] / predicted.latency_us[0] == pytest.approx(0.7, rel=1e-5)
    assert not predicted.in_range[0]


def test_what_there_is_not() -> None:
    with pytest.raises(UnknownName, match="physics-torch-eager-fp64"):
        load_latency_model("physics-torch-eager-fp64@t4")
    with pytest.raises(SettingMismatch, match="serves every GPU; name one"):
        load_latency_model("physics-torch-eager-fp32")
    with pytest.raises(UnknownName, match="a1000"):
        load_latency_model("physics-torch-eager-fp32@a1000")
