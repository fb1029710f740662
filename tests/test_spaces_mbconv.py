from __future__ import annotations

from typing import Any

import pytest
from spaces_contract import SpaceContract
from studies_examples import finished

from tadnn.cli.pictures import draw_study
from tadnn.nets import Net
from tadnn.progress import SILENT
from tadnn.spaces import Space, load_space


@pytest.fixture(scope="module")
def mbconv() -> Space:
    return load_space("mbconv")


def published(
    activation: str,
    depths: tuple[int, ...],
    widths: tuple[int, ...],
    kernels: tuple[int, ...],
    squeeze: bool,
) -> dict[str, Any]:
    """The settings that MobileNetV2 and EfficientNet-B0 share, and those given."""
    arch: dict[str, Any] = {"activation": activation, "stem": 32, "head": 1280}
    for stage, (depth, width, kernel) in enumerate(zip(depths, widths, kernels, strict=True), 1):
        arch |= {f"depth{stage}": depth, f"width{stage}": width}
        for i in range(1, depth + 1):
            arch[f"expansion{stage}_{i}"] = 1 if stage == 1 else 6
            arch[f"kernel{stage}_{i}"] = kernel
            arch[f"squeeze{stage}_{i}"] = squeeze
    return arch


MOBILENET_V2 = published(
    "relu6", (1, 2, 3, 4, 3, 3, 1), (16, 24, 32, 64, 96, 160, 320), (3,) * 7, squeeze=False
)
EFFICIENTNET_B0 = published(
    "silu",
    (1, 2, 2, 3, 3, 4, 1),
    (16, 24, 40, 80, 112, 192, 320),
    (3, 3, 5, 3, 5, 5, 3),
    squeeze=True,
)


def layers_of(net: Net, block: str) -> dict[str, str]:
    (made,) = [b for name, b in net.blocks if name == block]
    return {node.name: type(node.layer).__name__ for node in made.nodes}


class TestContract(SpaceContract):
    name = "mbconv"
    shape = (1, 32, 32)
    small = {  # noqa: RUF012
        "width": {"low": 8, "high": 24},
        "depth": {"high": 2},
        "expansion": {"high": 3},
        "stem": {"high": 16},
        "head": {"high": 64},
    }
    # One block in every stage but the first, which has one or two; what varies there is
    # expansion x kernel x squeeze-excite: 8 of one block, 64 of two. Three activations.
    few = {  # noqa: RUF012
        "depth": 1, "width": 8, "stem": 8, "head": 32, "kernel": 3, "expansion": 1,
        "squeeze": False, "depth1": [1, 2],
        **{f"{c}1_{i}": v for i in (1, 2) for c, v in
           (("expansion", [1, 2]), ("kernel", [3, 5]), ("squeeze", [False, True]))},
    }  # fmt: skip
    count = 3 * (8 + 64)


@pytest.mark.parametrize(
    ("arch", "parameters"), [(MOBILENET_V2, 3_504_872), (EFFICIENTNET_B0, 5_288_548)]
)
def test_published_networks(mbconv: Space, arch: dict[str, Any], parameters: int) -> None:
    assert mbconv.build(arch).parameters == parameters


def test_published_flops(mbconv: Space) -> None:
    """torchvision's counts of multiply-adds: 0.300 and 0.386 billion."""
    assert mbconv.build(MOBILENET_V2).flops() / 2e9 == pytest.approx(0.300, abs=1e-3)
    assert mbconv.build(EFFICIENTNET_B0).flops() / 2e9 == pytest.approx(0.386, abs=1e-3)


@pytest.mark.parametrize(
    ("edge", "edges"),
    [(28, (28, 14, 7, 4, 4, 2, 2)), (64, (64, 32, 16, 8, 8, 4, 4)), (65, (33, 17, 9, 5, 5, 3, 3))],
)
def test_edges(mbconv: Space, edge: int, edges: tuple[int, ...]) -> None:
    shapes = {p.name: p.output for p in mbconv.build(MOBILENET_V2, (3, edge, edge), 10).layers()}
    last = [shapes[f"stage{stage}_1_narrow.project_norm"] for stage in range(1, 8)]
    assert [shape[2:] for shape in last] == [(edge, edge) for edge in edges]


def test_the_arch_is_the_block(mbconv: Space) -> None:
    net = mbconv.build(EFFICIENTNET_B0)
    second = layers_of(net, "stage2_2")
    assert list(second) == [
        *("expand", "expand_norm", "expand_act", "depthwise", "depthwise_norm", "depthwise_act"),
        *("squeeze_pool", "squeeze", "squeeze_act", "excite", "gate", "scale"),
        *("project", "project_norm", "add"),
    ]
    assert (second["expand_act"], second["squeeze_act"], second["gate"]) == (
        "SiLU",
        "SiLU",
        "Sigmoid",
    )
    # The first halves the image, so nothing is added.
    wide, narrow = layers_of(net, "stage2_1_wide"), layers_of(net, "stage2_1_narrow")
    assert [*wide, *narrow, "add"] == list(second)
    assert "expand" not in layers_of(net, "stage1_1_wide")  # an expansion of 1
    shapes = {p.name: p.output for p in net.layers()}
    assert shapes["stage2_2.squeeze"] == (1, 6, 1, 1)  # a quarter of the 24 that come in
    hard = mbconv.build({**EFFICIENTNET_B0, "activation": "hard_swish"})
    assert layers_of(hard, "stage2_2")["gate"] == "HardSigmoid"


def test_a_study(tmp_path: Any) -> None:
    """From the YAML to the front: kernels profiled (on a computed clock), searched, re-measured."""
    overrides = {
        "depth": 1, "width": {"low": 8, "high": 24}, "stem": 8, "head": 32, "expansion": [1, 2],
        "kernel": 3, "activation": "relu6",
    }  # fmt: skip
    with finished(tmp_path, space="mbconv", overrides=overrides, trials=8) as (spec, result):
        pictures = draw_study(spec, ("svg",), SILENT)
        assert {"pareto.svg", "breakdown.svg", "stairs.svg"} <= pictures.keys()
        members = result.record["members"]
        assert members
        assert sum(m["measured"] is not None for m in members) == min(3, len(members))
        assert all(m["arch"]["stem"] == 8 for m in members)
        assert all(m["predicted"]["in_range"] for m in members if m["measured"])
