"""What `make test` samples, in full: `make test-slow`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from search_fakes import make_spec
from test_search_resume import facts, kill_in_the_middle, run

from tadnn.kernels import Kernel
from tadnn.nets import Net
from tadnn.runtimes import find_runtime, lower_net
from tadnn.spaces import load_space

pytestmark = pytest.mark.slow


def test_two_thousand_residual_networks() -> None:
    space = load_space("resnet").narrow({"width": {"low": 8, "high": 32}})
    runtime = find_runtime("torch-eager")
    networks: dict[Net, str] = {}
    for arch in space.sample(2000, 11):
        net = space.build(arch, (1, 32, 32), 10)
        assert Net.from_json(net.to_json()) == net
        for kernel in set(lower_net(net, 2, "fp32", runtime)):
            assert Kernel.parse(kernel.key) == kernel
        networks[net] = space.key(arch)
    assert len(networks) == 2000, "other keys, other networks"
    for net in list(networks)[::20]:
        module = net.to_module(0).eval()
        with torch.inference_mode():
            assert tuple(module(torch.zeros(2, 1, 32, 32)).shape) == net.output_shape(2)
        assert sum(p.numel() for p in module.parameters()) == net.parameters


@pytest.mark.parametrize("sampler", ["random", "nsga2", "tpe", "gp"])
def test_killed_many_times_it_ends_as_undisturbed(tmp_path: Path, sampler: str) -> None:
    trials = 24
    whole = make_spec(tmp_path / "whole", sampler=sampler, trials=trials)
    expected = facts(run(whole)[0])
    for at in sorted(random.Random(sampler).sample(range(1, trials), 5)):
        kill_in_the_middle(tmp_path / "killed", at, sampler=sampler, trials=trials)
    killed = make_spec(tmp_path / "killed", sampler=sampler, trials=trials)
    assert facts(run(killed)[0]) == expected
