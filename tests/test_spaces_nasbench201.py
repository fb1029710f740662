from __future__ import annotations

import runpy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from spaces_contract import SpaceContract
from torch import Tensor, nn

from tadnn.errors import ArchitectureError, ShapeError
from tadnn.files import SEARCH_SPACES
from tadnn.spaces import Space, load_space

OPS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
BEST = (
    "|nor_conv_3x3~0|+|nor_conv_3x3~0|nor_conv_3x3~1|"
    "+|skip_connect~0|nor_conv_3x3~1|nor_conv_1x1~2|"
)


@pytest.fixture(scope="module")
def nasbench201() -> Space:
    return load_space("nasbench201")


@pytest.fixture(scope="module")
def helpers() -> dict[str, Any]:
    return runpy.run_path(str(SEARCH_SPACES.find("nasbench201")))


@pytest.fixture(scope="module")
def arch_of(helpers: dict[str, Any]) -> Callable[[str], dict[str, Any]]:
    return helpers["arch_of"]


@pytest.fixture(scope="module")
def text_of(helpers: dict[str, Any]) -> Callable[[dict[str, Any]], str]:
    return helpers["text_of"]


def everywhere(op: str) -> str:
    return f"|{op}~0|+|{op}~0|{op}~1|+|{op}~0|{op}~1|{op}~2|"


class TestContract(SpaceContract):
    name = "nasbench201"
    shape = (1, 8, 8)
    small = {}  # noqa: RUF012
    few = {"edge": ["none", "skip_connect", "nor_conv_1x1"]}  # noqa: RUF012
    count = 3**6


def test_all_points(
    nasbench201: Space,
    arch_of: Callable[[str], dict[str, Any]],
    text_of: Callable[[dict[str, Any]], str],
) -> None:
    archs = list(nasbench201.enumerate())
    assert nasbench201.size() == len(archs) == 5**6 == 15625
    texts = {text_of(arch): arch for arch in archs}
    assert len(texts) == 15625
    assert all(arch_of(text) == arch for text, arch in texts.items())


def test_edges_are_the_published_ones(arch_of: Callable[[str], dict[str, Any]]) -> None:
    text = "|none~0|+|skip_connect~0|nor_conv_1x1~1|+|nor_conv_3x3~0|avg_pool_3x3~1|none~2|"
    assert arch_of(text) == {
        "edge0_1": "none",
        "edge0_2": "skip_connect",
        "edge1_2": "nor_conv_1x1",
        "edge0_3": "nor_conv_3x3",
        "edge1_3": "avg_pool_3x3",
        "edge2_3": "none",
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "|none~0|",
        everywhere("sep_conv_3x3"),
        everywhere("none").replace("~2", "~1"),
        everywhere("none") + "+|none~0|none~1|none~2|none~3|",
    ],
)
def test_strings_that_are_no_cell(arch_of: Callable[[str], dict[str, Any]], text: str) -> None:
    with pytest.raises(ArchitectureError, match="a cell reads"):
        arch_of(text)


# The benchmark's files give these in millions, 0.073306 to 1.531546.
@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        (everywhere("none"), 73_306),
        (everywhere("skip_connect"), 73_306),
        (everywhere("avg_pool_3x3"), 73_306),
        (everywhere("nor_conv_1x1"), 73_306 + 6 * 28_000),
        (everywhere("nor_conv_3x3"), 1_531_546),
        (BEST, 1_073_466),
    ],
)
def test_published_parameters(
    nasbench201: Space, arch_of: Callable[[str], dict[str, Any]], text: str, parameters: int
) -> None:
    assert nasbench201.build(arch_of(text)).parameters == parameters


def test_parameters_by_hand(nasbench201: Space) -> None:
    """What no path leads to or from counts too, as in the benchmark."""
    # Five cells a stage; weights and batch norm at 16, 32 and 64 channels.
    conv1 = 5 * sum(c * c + 2 * c for c in (16, 32, 64))
    conv3 = 5 * sum(9 * c * c + 2 * c for c in (16, 32, 64))
    for arch in nasbench201.sample(300, seed=1):
        ops = list(arch.values())
        cells = conv1 * ops.count("nor_conv_1x1") + conv3 * ops.count("nor_conv_3x3")
        assert nasbench201.build(arch).parameters == 73_306 + cells


def test_flops_by_hand(nasbench201: Space, arch_of: Callable[[str], dict[str, Any]]) -> None:
    """Every stage's convolutions take as many multiply-adds: channels double, edges halve."""
    stem, classifier = 27 * 16 * 32**2, 64 * 10
    halving = (9 * 16 * 32 + 9 * 32 * 32 + 16 * 32) * 16**2
    cells = 3 * 5 * 6 * 9 * 16 * 16 * 32**2
    net = nasbench201.build(arch_of(everywhere("nor_conv_3x3")))
    assert net.flops() == 2 * (stem + cells + 2 * halving + classifier)


def reference(cell: nn.Module, arch: dict[str, Any], x: Tensor) -> Tensor:
    """A cell as the paper defines it, run with the weights of the built one."""
    nodes = [x]
    for j in (1, 2, 3):
        total = torch.zeros_like(x)
        for i in range(j):
            name, source = f"edge{i}_{j}", nodes[i]
            match arch[name]:
                case "skip_connect":
                    total = total + source
                case "avg_pool_3x3":
                    inside = nn.functional.avg_pool2d(torch.ones_like(source), 3, 1, 1)
                    total = total + nn.functional.avg_pool2d(source, 3, 1, 1) / inside
                case "nor_conv_1x1" | "nor_conv_3x3":
                    conv, norm = getattr(cell, f"{name}_conv"), getattr(cell, f"{name}_norm")
                    total = total + norm(conv(source.relu()))
        nodes.append(total)
    return nodes[3]


def test_cells_compute_what_is_published(nasbench201: Space) -> None:
    x = torch.randn((2, 16, 8, 8), generator=torch.Generator().manual_seed(0))
    for arch in nasbench201.sample(60, seed=2):
        module = nasbench201.build(arch, (3, 8, 8)).to_module(seed=0)
        cell = module.get_submodule("cell1_3")
        with torch.no_grad():
            # In training mode, so that the norms see what comes in.
            torch.testing.assert_close(cell(x), reference(cell, arch, x))


@pytest.mark.parametrize(
    "text",
    [
        everywhere("none"),
        "|nor_conv_3x3~0|+|nor_conv_3x3~0|none~1|+|none~0|none~1|none~2|",  # nothing reaches node 3
        "|none~0|+|none~0|avg_pool_3x3~1|+|none~0|skip_connect~1|skip_connect~2|",  # zeros do
    ],
)
def test_disconnected_cells_give_zeros(
    nasbench201: Space, arch_of: Callable[[str], dict[str, Any]], text: str
) -> None:
    net = nasbench201.build(arch_of(text), (3, 8, 8))
    module = net.to_module(seed=0)
    x = torch.randn((4, 3, 8, 8), generator=torch.Generator().manual_seed(0))
    cells = module.get_submodule("cell1_1")(module.get_submodule("stem")(x))
    assert cells.shape == (4, 16, 8, 8)
    assert not cells.any()
    module.eval()
    output = module(x)
    assert torch.isfinite(output).all()
    torch.testing.assert_close(output, output[:1].expand(4, -1))
    output.sum().backward()


@pytest.mark.parametrize("shape", [(3, 30, 32), (1, 32, 27)])
def test_images_that_cannot_be_halved_twice(nasbench201: Space, shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="multiples of 4"):
        nasbench201.build(nasbench201.sample(1, 0)[0], shape, 10)
