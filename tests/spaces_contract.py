"""What every built-in space owes: subclass, name the space, narrow it to what is quick."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from tadnn.kernels import Kernel
from tadnn.nets import Net
from tadnn.runtimes import find_runtime, lower_net
from tadnn.spaces import Space, load_space


class SpaceContract:
    """200 architectures of the space narrowed by ``small``; all of it narrowed by ``few``."""

    name: ClassVar[str]
    shape: ClassVar[tuple[int, ...]]
    output: ClassVar[tuple[int, ...]] = (10,)
    small: ClassVar[dict[str, Any]]
    few: ClassVar[dict[str, Any]]
    count: ClassVar[int]
    """How many architectures ``few`` leaves, counted by hand."""

    def example(self, net: Net, batch: int) -> Tensor:
        return torch.randn(
            (batch, *net.input_shape), generator=torch.Generator().manual_seed(batch)
        )

    @pytest.fixture(scope="class")
    @classmethod
    def space(cls) -> Space:
        return load_space(cls.name).narrow(cls.small)

    @pytest.fixture(scope="class")
    @classmethod
    def archs(cls, space: Space) -> list[dict[str, Any]]:
        return space.sample(200, seed=0)

    @pytest.fixture(scope="class")
    @classmethod
    def nets(cls, space: Space, archs: list[dict[str, Any]]) -> list[Net]:
        return [space.build(arch, cls.shape, cls.output[-1]) for arch in archs]

    def test_forward_passes(self, nets: list[Net]) -> None:
        for net in nets:
            module = net.to_module(seed=0).eval()
            with torch.inference_mode():
                output = module(self.example(net, 1))
            assert output.shape == net.output_shape() == (1, *self.output)
            assert torch.isfinite(output).all()
            assert sum(p.numel() for p in module.parameters()) == net.parameters

    def test_json_round_trips(self, nets: list[Net]) -> None:
        for net in nets:
            again = Net.from_json(json.loads(json.dumps(net.to_json())))
            assert again == net
            assert again.key == net.key

    def test_lowers(self, nets: list[Net]) -> None:
        runtime = find_runtime("torch-eager")
        for net in nets:
            kernels = lower_net(net, 2, "fp32", runtime)
            assert all(Kernel.parse(kernel.key) == kernel for kernel in set(kernels))
            assert sum(kernel.flops for kernel in kernels) == net.flops(2) > 0

    def test_written_source_computes_the_same(self, nets: list[Net]) -> None:
        for net in nets[:3]:
            module = net.to_module(seed=0).eval()
            scope: dict[str, Any] = {"__name__": "written"}
            exec(compile(net.to_source(), "written.py", "exec"), scope)
            written = scope["Model"]().eval()
            written.load_state_dict(module.state_dict())
            x = self.example(net, 2)
            with torch.inference_mode():
                torch.testing.assert_close(written(x), module(x))

    def test_every_architecture_is_one_network(self) -> None:
        """Equal keys for equal networks: no choice without effect, none whose effect is lost."""
        few = load_space(self.name).narrow(self.few)
        archs = list(few.enumerate())
        assert few.size() == len(archs) == len({few.key(arch) for arch in archs}) == self.count
        assert len({few.build(arch, self.shape, self.output[-1]) for arch in archs}) == self.count

    def test_choices_without_effect_are_no_part_of_the_key(
        self, space: Space, archs: list[dict[str, Any]], nets: list[Net]
    ) -> None:
        assert len({space.key(arch) for arch in archs}) == len(set(nets)) == len(archs)
        for arch, net in zip(archs[:50], nets, strict=False):
            given = {**{name: c.values[-1] for name, c in space.choices.items()}, **arch}
            assert space.key(given) == space.key(arch)
            assert space.build(given, self.shape, self.output[-1]) == net

    def test_neighbours_are_points(self, space: Space, archs: list[dict[str, Any]]) -> None:
        for arch in archs[:10]:
            around = space.neighbours(arch)
            keys = {space.key(other) for other in around}
            assert len(keys) == len(around) > 0
            assert space.key(arch) not in keys
            for other in around:
                assert space.canonical(other) == other
                space.build(other, self.shape, self.output[-1])

    def test_encodings_tell_architectures_apart(
        self, space: Space, archs: list[dict[str, Any]]
    ) -> None:
        codes = space.encode(archs)
        assert codes.min() >= 0
        assert codes.max() <= 1
        assert len(np.unique(codes, axis=0)) == len(archs)
