from __future__ import annotations

from typing import Any

import pytest
from spaces_contract import SpaceContract

from tadnn.errors import ShapeError
from tadnn.spaces import Space, load_space


@pytest.fixture(scope="module")
def vit() -> Space:
    return load_space("vit")


def published(width: int, heads: int) -> dict[str, Any]:
    """Twelve layers at patch 16, as ViT and DeiT have them."""
    arch = {"patch": 16, "pooling": "class_token", "width": width, "head_width": 64, "depth": 12}
    for i in range(1, 13):
        arch |= {f"heads{i}": heads, f"mlp{i}": 4}
    return arch


class TestContract(SpaceContract):
    name = "vit"
    shape = (1, 32, 32)
    small = {  # noqa: RUF012
        "patch": [8, 16],
        "width": {"low": 32, "high": 64},
        "head_width": [16, 32],
        "depth": {"high": 3},
        "heads": {"high": 3},
    }
    # 2 patches x 2 poolings x 2 widths x 2 head widths, and 4 of one layer or 16 of two.
    few = {  # noqa: RUF012
        "patch": [8, 16], "width": [32, 48], "head_width": [16, 32], "depth": [1, 2],
        "heads": [1, 2], "mlp": [1, 2],
    }  # fmt: skip
    count = 16 * (4 + 16)


@pytest.mark.parametrize(
    ("arch", "parameters"), [(published(768, 12), 86_567_656), (published(192, 3), 5_717_416)]
)
def test_published_networks(vit: Space, arch: dict[str, Any], parameters: int) -> None:
    """ViT-B/16 and DeiT-tiny."""
    assert vit.build(arch).parameters == parameters


def test_flops_count_attention(vit: Space) -> None:
    """DeiT-tiny by hand: per layer 12 d^2 multiply-adds a token, and 2 d for every pair."""
    d, tokens, layers = 192, 197, 12
    products = layers * (12 * d * d * tokens + 2 * d * tokens * tokens)
    patches = 196 * 3 * 16 * 16 * d
    assert vit.build(published(192, 3)).flops() == 2 * (products + patches + d * 1000)


def test_pooling(vit: Space) -> None:
    arch = published(192, 3)
    mean = vit.build({**arch, "pooling": "mean"})
    # Neither the class token nor its position.
    assert vit.build(arch).parameters - mean.parameters == 2 * 192
    shapes = {p.name: p.output for p in mean.layers()}
    assert shapes["layer12_mlp.add"] == (1, 196, 192)
    assert shapes["head.pool"] == (1, 192)


def test_images_need_not_be_square(vit: Space) -> None:
    net = vit.build(published(192, 3), (3, 32, 64), 10)
    assert net.chain()[1][2] == (1, 2 * 4 + 1, 192)


@pytest.mark.parametrize(
    ("shape", "valid"), [((1, 28, 28), "4, 7, 14"), ((3, 56, 20), "4"), ((3, 31, 31), "none")]
)
def test_a_patch_that_does_not_divide_the_image(
    vit: Space, shape: tuple[int, ...], valid: str
) -> None:
    with pytest.raises(ShapeError, match=rf"patch 16 for {shape[1]}x{shape[2]}. Valid: {valid} "):
        vit.build(published(192, 3), shape, 10)
