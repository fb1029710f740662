from __future__ import annotations

import copy
import json
import pickle
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tadnn.errors import CorruptFile, RequestError, UnknownName
from tadnn.hardware import (
    DeviceSpec,
    block_count,
    ceil_div,
    detect,
    detect_devices,
    devices,
    find_device,
    lane_efficiency,
    resolve_device,
    tail_fraction,
    tile_efficiency,
    utilisation,
    vector_blocks,
    wave_count,
)

# How public tables of measurements write the devices.
NAMES = {
    "k40": ["K40"],
    "k80": ["K80"],
    "m60": ["M60"],
    "gtx1080ti": ["1080Ti", "NV_1080Ti"],
    "m40": ["NV_M40"],
    "titanx-maxwell": ["NV_TitanX"],
    "titanx-pascal": ["NV_TitanX_Pascal"],
    "titanxp": ["NV_TitanXp", "gpu_titanxp"],
    "p4": ["Tesla P4"],
    "p100": ["Tesla P100-PCIE-16GB", "P100", "NV_P100"],
    "t4": ["Tesla T4", "NV_T4"],
    "v100-sxm2": ["Tesla V100-SXM2-32GB", "Tesla V100-SXM2-16GB"],
    "rtx2080ti": ["RTX 2080 Ti", "NVIDIA GeForce RTX 2080 Ti"],
    "v100": ["Tesla V100-PCIE-32GB", "V100", "NV_V100"],
    "a100-40gb": ["NVIDIA A100-PCIE-40GB"],
    "a100-40gb-sxm": ["NVIDIA A100-SXM4-40GB"],
    "a100-80gb": ["NVIDIA A100 80GB PCIe"],
    "a100-80gb-sxm": ["NVIDIA A100-SXM4-80GB", "A100"],
    "a30": ["NVIDIA A30"],
    "a10": ["NVIDIA A10"],
    "a40": ["A40"],
    "rtx-a6000": ["A6000"],
    "l4": ["NVIDIA L4"],
    "l40": ["NVIDIA L40"],
    "l40s": ["NVIDIA L40S"],
    "rtx3080": ["RTX 3080", "NVIDIA GeForce RTX 3080"],
    "rtx3090": ["RTX 3090", "RTX3090"],
    "rtx4090": ["RTX 4090", "RTX4090"],
    "rtx5090": ["RTX 5090"],
    "rtx-pro-6000": ["NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTXPRO6000"],
    "rtx-pro-6000-maxq": ["RTX PRO 6000 Max-Q"],
    "h100": ["NVIDIA H100 80GB HBM3", "H100"],
    "h100-pcie": ["NVIDIA H100 PCIe"],
    "h100-nvl": ["NVIDIA H100 NVL"],
    "h200": ["NVIDIA H200"],
    "b200": ["NVIDIA B200"],
    "b300": ["NVIDIA B300 SXM6 AC"],
    "gb200": ["NVIDIA GB200"],
    "gb300": ["NVIDIA GB300"],
    "mi100": ["AMD Instinct MI100", "gfx90878"],
    "mi210": ["AMD Instinct MI210", "gfx90a68"],
    "mi250": ["AMD Instinct MI250", "gfx90a6e"],
    "mi300x": ["gfx942130"],
}


class TestWaves:
    """Worked examples of NVIDIA's matrix multiplication guide: A100, 108 SMs, tiles of 256x128."""

    def test_108_tiles_are_one_wave_109_two(self) -> None:
        assert wave_count(108, 108) == 1
        assert wave_count(109, 108) == 2
        assert utilisation(108, 108) == 1
        assert utilisation(109, 108) == Fraction(109, 216)
        assert tail_fraction(108, 108) == 0
        assert tail_fraction(109, 108) == Fraction(107, 108)

    def test_one_column_more_starts_another_wave(self) -> None:
        # 9 x 12 tiles fill the device, 9 x 13 need a second wave of 9.
        assert block_count(2304, 1536, 256, 128) == 108
        assert block_count(2304, 1537, 256, 128) == 117
        assert wave_count(117, 108) == 2
        assert utilisation(117, 108) == Fraction(13, 24)

    def test_square_of_1792_fits_and_1793_does_not(self) -> None:
        assert block_count(1792, 1792, 256, 128) == 7 * 14
        assert block_count(1793, 1793, 256, 128) == 8 * 15
        assert wave_count(98, 108) == 1
        assert wave_count(120, 108) == 2

    def test_two_blocks_per_sm_double_the_slots(self) -> None:
        assert wave_count(216, 2 * 108) == 1
        assert wave_count(217, 2 * 108) == 2

    def test_tile_quantisation(self) -> None:
        # A width of 136 runs two tiles of 128 that hold 256.
        assert tile_efficiency(128, 136, 128, 128) == Fraction(136, 256)
        assert tile_efficiency(256, 256, 128, 128) == 1
        assert tile_efficiency(1, 1, 256, 128) == Fraction(1, 256 * 128)

    def test_vector_blocks(self) -> None:
        assert [vector_blocks(width, 16) for width in (1, 16, 17, 160, 168)] == [1, 1, 2, 10, 11]
        assert lane_efficiency(160, 16) == 1
        assert lane_efficiency(168, 16) == Fraction(168, 176)

    def test_exact_where_floats_are_not(self) -> None:
        big = 3 * 10**17
        assert ceil_div(big + 1, 3) == 10**17 + 1
        assert utilisation(big + 1, big) == Fraction(big + 1, 2 * big)

    @pytest.mark.parametrize("slots", [1, 2, 7, 108])
    def test_identities(self, slots: int) -> None:
        for blocks in range(1, 300):
            waves = wave_count(blocks, slots)
            assert (waves - 1) * slots < blocks <= waves * slots
            # Idle slots of the last wave are all that separates the utilisation from one.
            assert utilisation(blocks, slots) == 1 - tail_fraction(blocks, slots) / waves

    @pytest.mark.parametrize("pair", [(0, 1), (1, 0), (-3, 2), (3, -2)])
    def test_what_is_not_positive_is_refused(self, pair: tuple[int, int]) -> None:
        with pytest.raises(ValueError, match="positive integers"):
            ceil_div(*pair)


class TestTable:
    @pytest.mark.parametrize("slug", NAMES)
    def test_every_name_resolves_whatever_its_case(self, slug: str) -> None:
        for name in (slug, *NAMES[slug]):
            for written in (name, name.upper(), name.lower(), f" {name} "):
                assert find_device(written).slug == slug

    def test_no_device_beyond_the_list(self) -> None:
        assert sorted(devices()) == sorted(NAMES)

    def test_no_name_is_given_twice(self) -> None:
        of_each = ({n.casefold() for n in (d.slug, *d.aliases)} for d in devices().values())
        names = [name for names in of_each for name in names]
        assert len(names) == len(set(names))

    def test_known_multiprocessor_counts(self) -> None:
        counts = {
            "p4": 20, "gtx1080ti": 28, "t4": 40, "p100": 56, "l4": 58, "v100": 80,
            "a100-40gb": 108, "a100-80gb-sxm": 108, "h100": 132, "h200": 132, "b200": 148,
            "mi100": 120, "mi210": 104, "mi250": 104,
        }  # fmt: skip
        assert {slug: devices()[slug].units for slug in counts} == counts

    @pytest.mark.parametrize("slug", NAMES)
    def test_facts_are_plausible(self, slug: str) -> None:
        spec = devices()[slug]
        assert spec.kind == "gpu"
        assert spec.vector_bytes == 0
        assert spec.vendor in {"NVIDIA", "AMD"}
        assert set(spec.peak_tflops) <= {"fp32", "tf32", "fp16", "bf16"}
        # Peak = units x clock x (FLOPs per unit and clock), which is 128 (64 cores), 256 (128), or
        # 384 (Kepler's 192), and 256 on MI300X (paired instructions); boost clocks differ by 3 %.
        per_clock = spec.peak_tflops["fp32"] * 1e6 / (spec.units * spec.clock_mhz)
        assert min(abs(per_clock / known - 1) for known in (128, 256, 384)) < 0.03
        assert spec.bandwidth_gbps > 100
        assert 1 <= spec.l2_mb <= 128
        assert 8 <= spec.memory_gb <= 300

    def test_a_mistyped_name_shows_near_matches(self) -> None:
        with pytest.raises(UnknownName, match=r"unknown device 'h1000'; did you mean .*'h100'"):
            find_device("h1000")
        with pytest.raises(UnknownName, match="did you mean 'rtx3090'"):
            find_device("rtx-3090")


class TestSpec:
    @pytest.mark.parametrize("slug", ["t4", "mi300x"])
    def test_round_trip_through_json(self, slug: str) -> None:
        spec = devices()[slug]
        assert DeviceSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec

    def test_travels_to_workers_and_serves_as_a_key(self) -> None:
        spec = devices()["t4"]
        assert pickle.loads(pickle.dumps(spec)) == copy.deepcopy(spec) == spec
        assert {spec: 1}[copy.deepcopy(spec)] == 1

    def test_to_dict_is_a_copy(self) -> None:
        spec = devices()["t4"]
        spec.to_dict()["peak_tflops"]["fp32"] = 0.0
        assert spec.peak_tflops["fp32"] == 8.14

    def test_missing_unknown_and_wrong_fields(self) -> None:
        good = devices()["t4"].to_dict()
        with pytest.raises(CorruptFile, match="missing or unknown: units"):
            DeviceSpec.from_dict({k: v for k, v in good.items() if k != "units"})
        with pytest.raises(CorruptFile, match="missing or unknown: speed"):
            DeviceSpec.from_dict(good | {"speed": 1})
        with pytest.raises(CorruptFile, match="'t4' has a value of the wrong type"):
            DeviceSpec.from_dict(good | {"units": "forty"})
        with pytest.raises(CorruptFile, match="'t4' has a value of the wrong type"):
            DeviceSpec.from_dict(good | {"peak_tflops": 3})
        assert DeviceSpec.from_dict({k: v for k, v in good.items() if k != "note"}).note == ""

    def test_cards_of_before_likeness_had_facts_are_read(self) -> None:
        likeness = ("base_clock_mhz", "capability", "power_w", "process_nm")
        good = devices()["t4"].to_dict()
        assert [good[name] for name in likeness] == [585, 7.5, 70, 12]
        old = DeviceSpec.from_dict({k: v for k, v in good.items() if k not in likeness})
        assert [getattr(old, name) for name in likeness] == [0, 0, 0, 0]
        with pytest.raises(CorruptFile, match="'t4' has a value of the wrong type"):
            DeviceSpec.from_dict(good | {"power_w": "lots"})

    def test_every_card_of_the_table_has_a_generation_and_watts(self) -> None:
        for spec in devices().values():
            if spec.vendor == "NVIDIA":
                assert spec.capability >= 3, spec.slug
                assert 50 <= spec.power_w <= 2000, spec.slug
                assert spec.base_clock_mhz <= spec.clock_mhz, spec.slug


INTEL = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Core(TM) i9-10940X CPU @ 3.30GHz
cpu MHz\t\t: 1200.5
flags\t\t: fpu sse sse2 avx avx2 fma avx512f

processor\t: 1
model name\t: another
"""
ARM = "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\n"


class TestCpu:
    @pytest.fixture(autouse=True)
    def machine(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tmp_path, self.monkeypatch = tmp_path, monkeypatch
        monkeypatch.setattr(detect, "_CPUINFO", tmp_path / "cpuinfo")
        monkeypatch.setattr(detect, "_CACHES", tmp_path / "cpu")
        monkeypatch.setattr(detect.psutil, "cpu_count", lambda logical=True: 14)
        self.frequency(None)

    def frequency(self, maximum: float | None, current: float = 0.0) -> None:
        value = None if maximum is None else SimpleNamespace(max=maximum, current=current)
        self.monkeypatch.setattr(detect.psutil, "cpu_freq", lambda: value)

    def test_a_known_processor(self) -> None:
        (self.tmp_path / "cpuinfo").write_text(INTEL)
        spec = detect.detect_cpu()
        assert spec.slug == "cpu-intel-core-i9-10940x"
        assert (spec.kind, spec.vendor, spec.units) == ("cpu", "Intel", 14)
        assert spec.vector_bytes == 64
        assert spec.clock_mhz == 3300
        # 14 cores x 3.3 GHz x 2 units x 16 lanes x 2 FLOPs.
        assert spec.peak_tflops == {"fp32": pytest.approx(2.9568)}
        assert "estimate" in spec.note

    @pytest.mark.parametrize(
        ("flags", "width"),
        [("sse2 avx", 32), ("avx avx2", 32), ("sse sse2", 16), ("", 16), ("avx512f", 64)],
    )
    def test_vector_width(self, flags: str, width: int) -> None:
        (self.tmp_path / "cpuinfo").write_text(f"model name : X\nflags : {flags}\n")
        assert detect.detect_cpu().vector_bytes == width

    def test_clock_from_the_first_source_that_knows(self) -> None:
        (self.tmp_path / "cpuinfo").write_text("model name : X\ncpu MHz : 2299.998\n")
        assert detect.detect_cpu().clock_mhz == 2300
        self.frequency(0.0, current=1500.0)
        assert detect.detect_cpu().clock_mhz == 2300
        self.frequency(4100.0)
        assert detect.detect_cpu().clock_mhz == 4100

    def test_arm_without_a_model_name(self) -> None:
        (self.tmp_path / "cpuinfo").write_text(ARM)
        self.monkeypatch.setattr(detect.platform, "processor", lambda: "")
        self.monkeypatch.setattr(detect.platform, "machine", lambda: "aarch64")
        self.frequency(0.0, current=1800.0)
        spec = detect.detect_cpu()
        assert (spec.slug, spec.vector_bytes, spec.clock_mhz) == ("cpu-aarch64", 16, 1800)

    def test_a_system_that_tells_nothing(self) -> None:
        self.monkeypatch.setattr(detect.platform, "processor", lambda: "")
        self.monkeypatch.setattr(detect.platform, "machine", lambda: "")
        spec = detect.detect_cpu()
        assert spec.slug == "cpu-unknown"
        assert spec.vector_bytes == 16
        assert "clock assumed: 2000 MHz" in spec.note
        assert spec.l2_mb == 0

    def test_caches_are_summed_over_those_who_share_them(self) -> None:
        for cpu in range(4):
            for index, level, size, shared in (
                (0, 1, "48K", str(cpu)),
                (2, 2, "1280K", str(cpu)),
                (3, 3, "30M", "0-1" if cpu < 2 else "2-3"),
            ):
                folder = self.tmp_path / "cpu" / f"cpu{cpu}" / "cache" / f"index{index}"
                folder.mkdir(parents=True)
                (folder / "level").write_text(f"{level}\n")
                (folder / "size").write_text(f"{size}\n")
                (folder / "shared_cpu_list").write_text(f"{shared}\n")
        (self.tmp_path / "cpu" / "cpu0" / "cache" / "index9").mkdir()
        spec = detect.detect_cpu()
        assert spec.l2_mb == 5.0
        assert spec.note.endswith("L3 60 MB")


def properties(**changes: Any) -> SimpleNamespace:
    """What torch tells about an A100, or about a device that differs in ``changes``."""
    facts = {
        "name": "NVIDIA A100-SXM4-80GB",
        "major": 8,
        "minor": 0,
        "multi_processor_count": 108,
        "total_memory": 80 * 2**30,
        "L2_cache_size": 40 * 2**20,
        "clock_rate": 1_410_000,
        "memory_clock_rate": 1_593_000,
        "memory_bus_width": 5120,
    }
    return SimpleNamespace(**(facts | changes))


class TestGpu:
    def test_a_known_device_comes_from_the_table(self) -> None:
        assert detect.gpu_spec(properties()) is find_device("a100-80gb-sxm")

    def test_an_unknown_device_comes_from_the_driver(self) -> None:
        spec = detect.gpu_spec(properties(name="NVIDIA A100X"))
        assert spec.slug == "nvidia-a100x"
        assert spec.aliases == ("NVIDIA A100X",)
        assert (spec.units, spec.clock_mhz, spec.l2_mb, spec.memory_gb) == (108, 1410, 40, 80)
        # The A100's own figures: 19.5, 156, 312 and 312 TFLOPS, 2039 GB/s.
        assert spec.peak_tflops == pytest.approx(
            {"fp32": 19.49, "tf32": 155.9, "fp16": 311.9, "bf16": 311.9}, rel=1e-3
        )
        assert spec.bandwidth_gbps == pytest.approx(2039, rel=1e-3)
        assert spec.capability == 8.0

    def test_a_slice_of_a_known_device_is_not_taken_for_the_whole(self) -> None:
        spec = detect.gpu_spec(properties(multi_processor_count=42, total_memory=40 * 2**30))
        assert (spec.slug, spec.units, spec.memory_gb) == ("a100-80gb-sxm-42sm", 42, 40)
        assert spec.aliases == ()
        assert spec.peak_tflops["fp16"] == pytest.approx(312 * 42 / 108, rel=1e-3)

    @pytest.mark.parametrize(
        ("capability", "clock", "sms", "known"),
        [
            ((6, 1), 1582, 28, "gtx1080ti"),
            ((7, 0), 1380, 80, "v100"),
            ((7, 5), 1590, 40, "t4"),
            ((8, 6), 1740, 84, "a40"),
            ((8, 9), 2520, 142, "l40s"),
            ((9, 0), 1830, 132, "h100"),
            ((10, 0), 1855, 148, "b200"),
            ((12, 0), 2430, 188, "rtx-pro-6000"),
        ],
    )
    def test_peaks_by_capability_agree_with_the_table(
        self, capability: tuple[int, int], clock: int, sms: int, known: str
    ) -> None:
        major, minor = capability
        spec = detect.gpu_spec(
            properties(
                name="Nobody's",
                major=major,
                minor=minor,
                multi_processor_count=sms,
                clock_rate=clock * 1000,
            )
        )
        expected = dict(devices()[known].peak_tflops)
        assert set(spec.peak_tflops) == set(expected)
        # Makers state the cores' peak at another clock than the tensor cores'.
        for dtype, value in expected.items():
            assert spec.peak_tflops[dtype] == pytest.approx(value, rel=0.09), dtype

    def test_older_torch_tells_less(self) -> None:
        facts = vars(properties(name="NVIDIA New"))
        for name in ("clock_rate", "memory_clock_rate", "memory_bus_width", "L2_cache_size"):
            del facts[name]
        spec = detect.gpu_spec(SimpleNamespace(**facts))
        assert "clock assumed" in spec.note
        assert "bandwidth assumed" in spec.note
        assert spec.clock_mhz > 0
        assert spec.bandwidth_gbps > 0
        assert spec.l2_mb == 0

    def test_an_unknown_amd_device_claims_no_tensor_peaks(self) -> None:
        spec = detect.gpu_spec(properties(name="AMD Instinct MI999", major=9, minor=4))
        assert spec.vendor == "AMD"
        assert set(spec.peak_tflops) == {"fp32"}
        assert spec.capability == 0

    @pytest.mark.gpu
    def test_this_machines_gpu(self) -> None:
        key, spec = resolve_device("auto")
        assert key == "cuda:0"
        assert spec.kind == "gpu"
        assert spec.units > 0


class TestResolve:
    @pytest.fixture
    def two_gpus(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch

        names = ["NVIDIA A100-SXM4-80GB", "NVIDIA New"]
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(
            torch.cuda, "get_device_properties", lambda index: properties(name=names[index])
        )

    @pytest.fixture
    def no_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch

        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    @pytest.mark.usefixtures("two_gpus")
    def test_detects_all(self) -> None:
        found = detect_devices()
        assert list(found) == ["cpu", "cuda:0", "cuda:1"]
        assert [spec.slug for spec in found.values()][1:] == ["a100-80gb-sxm", "nvidia-new"]
        assert found["cpu"].slug.startswith("cpu-")

    @pytest.mark.usefixtures("two_gpus")
    @pytest.mark.parametrize(
        ("name", "key"),
        [
            ("auto", "cuda:0"),
            ("cpu", "cpu"),
            ("cuda", "cuda:0"),
            ("CUDA:1", "cuda:1"),
            ("A100", "cuda:0"),
            ("nvidia-new", "cuda:1"),
            ("NVIDIA New", "cuda:1"),
        ],
    )
    def test_names_of_present_devices(self, name: str, key: str) -> None:
        assert resolve_device(name) == (key, detect_devices()[key])

    @pytest.mark.usefixtures("no_gpu")
    def test_auto_falls_back_to_the_cpu_which_also_has_a_slug(self) -> None:
        key, spec = resolve_device("auto")
        assert key == "cpu"
        assert resolve_device(spec.slug) == ("cpu", spec)

    @pytest.mark.usefixtures("no_gpu")
    @pytest.mark.parametrize("name", ["cuda:0", "cuda", "h100", "Tesla T4"])
    def test_known_but_absent(self, name: str) -> None:
        with pytest.raises(RequestError, match=r"this machine has no device .*; it has cpu \(cpu-"):
            resolve_device(name)

    @pytest.mark.usefixtures("no_gpu")
    def test_mistyped(self) -> None:
        with pytest.raises(UnknownName, match="did you mean 'cpu'"):
            resolve_device("cpuu")


def test_specs_are_frozen() -> None:
    spec = devices()["t4"]
    with pytest.raises(AttributeError):
        spec.units = 1  # type: ignore[misc]
    assert replace(spec, units=41) != spec
