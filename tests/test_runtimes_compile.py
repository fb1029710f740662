"""What TorchInductor launches: by hand, and as the code that it generates says."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator

import pytest
import torch
from runtimes_contract import NET, SPACES, gated, residual, space_net

from tadnn.errors import RequestError
from tadnn.kernels import Kernel
from tadnn.nets import BatchNorm2d, BlockBuilder, Conv2d, MaxPool2d, Net, ReLU, block
from tadnn.profiling import CpuClock, NetRun, measure
from tadnn.runtimes import Setting, TorchCompile, lower_net
from tadnn.runtimes import torch_compile as module

COMPILE = TorchCompile()
SETTING = Setting(runtime="torch-compile")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


@block
def stem(b: BlockBuilder, out: int) -> None:
    b.add(Conv2d(out, 3), b.input)
    b.add(BatchNorm2d())
    b.add(ReLU())
    b.add(MaxPool2d(3, 2, 1))


def launches(net: Net) -> list[str]:
    return ["+".join((k.op, *k.epilogue)) for k in lower_net(net, 1, "fp32", COMPILE)]


def test_both_branches_of_a_residual_block_end_in_one_kernel() -> None:
    net = Net((3, 8, 8), (("body", residual(8)),))
    assert launches(net) == ["conv2d", "batch_norm+add+relu", "conv2d+bias"]


def test_a_gate_needs_what_it_multiplies_and_so_stands_apart() -> None:
    net = Net((3, 8, 8), (("gate", gated(8)),))
    # The pooled values leave the first kernel beside the others: those are read again.
    assert launches(net) == [
        "conv2d",
        "batch_norm+relu+global_avg_pool",
        "conv2d+bias",
        "mul_rows+sigmoid",
    ]


def test_a_pooling_takes_what_feeds_it_along() -> None:
    net = Net((3, 8, 8), (("stem", stem(8)),))
    assert launches(net) == ["conv2d", "max_pool2d+batch_norm+relu"]
    (_, pool) = lower_net(net, 2, "fp32", COMPILE)
    assert pool.dims["h"] == 8, "the pooling's own input"


def generated(net: Net) -> list[str]:
    """Return the calls of the code that Inductor generates for a network."""
    from torch._inductor.utils import run_and_get_code

    torch.compiler.reset()
    net_module, x = COMPILE._module(net, 1, SETTING, "cpu")
    with torch.inference_mode():
        _, codes = run_and_get_code(torch.compile(net_module, dynamic=False), x)
    call = re.compile(
        r"^\s+(?:\w+ = )?(extern_kernels\.\w+|torch\.ops\.aten\.\w+|cpp_fused\w+)", re.M
    )
    found = [name for code in codes for name in call.findall(code[code.index("def call(") :])]
    # Weights that a convolution's library wants in another order belong to the convolution.
    return [name for name in found if not re.fullmatch(r"cpp_fused_convolution_\d+", name)]


def blocks(space: str) -> Iterator[tuple[str, Net]]:
    """Yield a network's distinct blocks as networks of their own."""
    seen = set()
    for name, one, shape, _ in space_net(space, 1).chain(1):
        if (one, shape) not in seen and len(seen) < 6:
            seen.add((one, shape))
            if one.takes == "float":
                yield name, Net(tuple(shape[1:]), ((name, one),))


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("space", SPACES)
def test_as_many_kernels_are_launched_as_inductor_generates(space: str) -> None:
    for name, net in blocks(space):
        real = generated(net)
        ours = launches(net)
        # Attention is one call there, five kernels here, as for every runtime.
        attention = sum("scaled_dot_product" in n and "aten" in n for n in real)
        expected = len(real) + 2 * attention
        # Beyond chains, Inductor joins neighbours that read the same: nasbench201's cells do.
        # A copy that spreads key heads over queries' is part of our matrix products.
        assert 0 <= len(ours) - expected <= (2 if space == "nasbench201" else 0) or (
            space == "transformer" and expected - len(ours) <= 1
        ), (name, ours, real)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    "key",
    [
        "batch_norm(n=2,c=4,h=5,w=6,epilogue=add+relu)",
        "max_pool2d(n=2,c=4,h=6,w=6,r=3,s=3,stride=2,pad=1,epilogue=batch_norm+relu)",
        "mul_rows(rows=8,cols=9,epilogue=sigmoid)",
        "add(rows=8,cols=16,epilogue=layer_norm)",
        "batch_norm(n=2,c=4,h=5,w=6,epilogue=silu+global_avg_pool)",
        "embedding(rows=6,cols=7,count=50,epilogue=add_cols)",
    ],
)
def test_a_fused_kernel_computes_what_its_parts_do(key: str) -> None:
    from tadnn.runtimes import torch_fused

    seen: list[object] = []
    real = torch_fused._compiled

    def both(call, operands):  # type: ignore[no-untyped-def]
        seen.append(call(*operands[0]))
        return real(call, operands)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_fused, "_compiled", both)
        run = COMPILE.prepare_kernel(Kernel.parse(key), SETTING)
    with COMPILE.session(SETTING):
        for _ in range(64):  # through all operands, back to some that were drawn
            out = run()
    assert isinstance(out, (list, tuple))
    # The first call was drawn while compiling.
    run = COMPILE.prepare_kernel(Kernel.parse(key), SETTING)
    for ours, eager in zip(run(), seen[0], strict=True):  # type: ignore[call-overload]
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@needs_compiler
def test_the_cpu_clock_measures_compiled_kernels_and_networks() -> None:
    subjects = [*lower_net(NET, 1, "fp32", COMPILE)[:2], NetRun(NET)]
    found = measure(CpuClock(SETTING), subjects, min_repeats=3, max_repeats=3)
    assert all(m.latency_us > 0 for m in found)


@pytest.mark.slow
@needs_compiler
def test_networks_in_one_process_keep_their_own_code() -> None:
    nets = [Net((3, 4, 4), (("only", gated(width)),)) for width in range(1, 10)]
    with COMPILE.session(SETTING), torch._dynamo.config.patch(error_on_recompile=True):
        runs = [COMPILE.prepare_net(net, 1, SETTING) for net in nets]
        for _ in range(2):
            shapes = [run().shape for run in runs]  # type: ignore[attr-defined]
    assert [tuple(shape) for shape in shapes] == [(1, width, 4, 4) for width in range(1, 10)]


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "which", lambda _: None)
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(RequestError, match="apt install g\\+\\+"):
        COMPILE.prepare_net(NET, 1, SETTING)
    with pytest.raises(RequestError, match="C\\+\\+ compiler"):
        COMPILE.prepare_kernel(Kernel.of("relu", rows=2, cols=2), SETTING)


def test_without_triton_the_error_names_another_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    with pytest.raises(RequestError, match="cuda-graph"):
        module.require_compiler("cuda:0")
