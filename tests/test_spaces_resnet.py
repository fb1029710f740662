from __future__ import annotations

import gc
import json
import weakref
from typing import Any

import pytest
import torch

from tadnn.kernels import Kernel
from tadnn.nets import Net, block_facts
from tadnn.runtimes import find_runtime, lower_net
from tadnn.spaces import Space, load_space


@pytest.fixture(scope="module")
def resnet() -> Space:
    return load_space("resnet")


@pytest.fixture(scope="module")
def small(resnet: Space) -> Space:
    return resnet.narrow({"width": {"low": 8, "high": 32}, "depth": {"high": 3}})


@pytest.fixture(scope="module")
def archs(small: Space) -> list[dict[str, Any]]:
    return small.sample(200, seed=0)


@pytest.fixture(scope="module")
def built(small: Space, archs: list[dict[str, Any]]) -> list[Net]:
    return [small.build(arch, (1, 32, 32), 10) for arch in archs]


class TestResnet:
    """200 random architectures at 1x32x32, widths up to 32."""

    def test_forward_passes(self, built: list[Net]) -> None:
        x = torch.randn((1, 1, 32, 32), generator=torch.Generator().manual_seed(0))
        for net in built:
            module = net.to_module().eval()
            with torch.inference_mode():
                output = module(x)
            assert output.shape == net.output_shape() == (1, 10)
            assert torch.isfinite(output).all()
            assert sum(p.numel() for p in module.parameters()) == net.parameters

    def test_json_round_trips(self, built: list[Net]) -> None:
        for net in built:
            again = Net.from_json(json.loads(json.dumps(net.to_json())))
            assert again == net
            assert again.key == net.key

    def test_keys_are_distinct_exactly_where_networks_are(
        self, small: Space, archs: list[dict[str, Any]], built: list[Net]
    ) -> None:
        assert len({small.key(arch) for arch in archs}) == len(archs)
        assert len({net.key for net in built}) == len(set(built)) == len(archs)
        for arch, net in zip(archs, built, strict=True):
            # A kernel that no block has: the network is the same, and so is the key.
            idle = {n: 5 for n in small.choices if n.startswith("kernel") and n not in arch}
            assert small.key({**arch, **idle}) == small.key(arch)
            assert small.build({**arch, **idle}, (1, 32, 32), 10) == net

    def test_kernels(self, built: list[Net]) -> None:
        runtime = find_runtime("torch-eager")
        for net in built:
            kernels = lower_net(net, 2, "fp32", runtime)
            assert all(Kernel.parse(kernel.key) == kernel for kernel in set(kernels))
            assert sum(kernel.flops for kernel in kernels) == net.flops(2)

    def test_the_arch_is_the_network(self, archs: list[dict[str, Any]], built: list[Net]) -> None:
        for arch, net in zip(archs, built, strict=True):
            names = [name for name, _ in net.blocks]
            depths = [arch[f"depth{stage}"] for stage in (1, 2, 3, 4)]
            assert [sum(n.startswith(f"stage{s}_") for n in names) for s in (1, 2, 3, 4)] == depths
            for name, made in net.blocks[1:-1]:
                kernel = arch[f"kernel{name.removeprefix('stage')}"]
                convs = {node.name: node.layer for node in made.nodes}
                widest = convs["conv2"]
                assert (widest.out, widest.kernel) == (arch[f"width{name[5]}"], kernel)  # type: ignore[attr-defined]
                assert made.label == arch["block"]

    @pytest.mark.parametrize(
        ("edge", "first", "last"), [(32, 32, 4), (64, 64, 8), (65, 17, 3), (224, 56, 7)]
    )
    def test_stems(self, small: Space, edge: int, first: int, last: int) -> None:
        arch = small.sample(1, seed=0)[0]
        shapes = {p.name: p.output for p in small.build(arch, (3, edge, edge), 10).layers()}
        assert shapes["stage1_1.add"][2:] == (first, first)
        assert shapes[f"stage4_{arch['depth4']}.add"][2:] == (last, last)

    def test_memory_stays_flat(self, small: Space) -> None:
        """Blocks are remembered, architectures aren't."""
        tiny = small.narrow({"width": [8, 16], "depth": [1, 2], "kernel": 3})
        seen = [tiny.build(arch, (1, 32, 32), 10) for arch in tiny.enumerate()]
        entries = block_facts.cache_info().currsize
        living = weakref.WeakSet(seen)
        assert len(living) == 2 * 2**8
        seen.clear()
        for arch in tiny.enumerate():
            tiny.build(arch, (1, 32, 32), 10)
        assert block_facts.cache_info().currsize == entries
        gc.collect()
        assert len(living) == 0
