from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from tadnn.errors import RequestError, ShapeError, UnknownName
from tadnn.kernels import Kernel
from tadnn.nets import (
    Add,
    BatchNorm2d,
    BlockBuilder,
    Conv2d,
    Flatten,
    GlobalAvgPool,
    Linear,
    Net,
    ReLU,
    block,
)
from tadnn.runtimes import RUNTIMES, Setting, TorchEager, find_runtime, lower_net, torch_calls

EAGER = find_runtime("torch-eager")


@block
def residual(b: BlockBuilder, out: int) -> None:
    conv = b.add(Conv2d(out, 3), b.input)
    norm = b.add(BatchNorm2d(), conv)
    short = b.add(Conv2d(out, 1, bias=True), b.input)
    b.add(ReLU(), b.add(Add(), norm, short))


@block
def plain(b: BlockBuilder, out: int) -> None:
    b.add(ReLU(), b.add(Conv2d(out, 1), b.input))


@block
def head(b: BlockBuilder, classes: int) -> None:
    b.add(GlobalAvgPool(), b.input)
    b.add(Flatten())
    b.add(Linear(classes))


NET = Net((3, 8, 6), (("body", residual(5)), ("again", residual(5)), ("head", head(4))))


def conv(**changes: int) -> Kernel:
    sizes = dict(n=2, c=6, h=9, w=7, k=8, r=3, s=3, stride=2, pad=1, dilation=1, groups=2)
    return Kernel.of("conv2d", **{**sizes, **changes})


ONE_OF_EACH = [
    conv(),
    Kernel("conv2d", conv().sizes, "fp32", ("bias",)),
    Kernel.of("linear", m=3, n=4, k=5),
    Kernel.of("linear", m=3, n=4, k=5, epilogue=("bias",)),
    Kernel.of("bmm", b=2, m=3, n=4, k=5),
    Kernel.of("relu", rows=6, cols=63),
    Kernel.of("add", rows=6, cols=63),
    Kernel.of("batch_norm", n=2, c=3, h=4, w=5),
    Kernel.of("max_pool2d", n=2, c=3, h=9, w=7, r=3, s=3, stride=2, pad=1),
    Kernel.of("global_avg_pool", n=2, c=3, h=4, w=5),
    Kernel.of("softmax", rows=6, cols=63),
    Kernel.of("layer_norm", rows=6, cols=63),
]


def test_eager_launches_every_layer_in_order() -> None:
    keys = [kernel.key for kernel in lower_net(NET, 2, "fp32", EAGER)]
    assert keys == [
        "conv2d(n=2,c=3,h=8,w=6,k=5,r=3,s=3,stride=1,pad=1,dilation=1,groups=1,dtype=fp32)",
        "batch_norm(n=2,c=5,h=8,w=6,dtype=fp32)",
        "conv2d(n=2,c=3,h=8,w=6,k=5,r=1,s=1,stride=1,pad=0,dilation=1,groups=1,dtype=fp32,"
        "epilogue=bias)",
        "add(rows=10,cols=48,dtype=fp32)",
        "relu(rows=10,cols=48,dtype=fp32)",
        "conv2d(n=2,c=5,h=8,w=6,k=5,r=3,s=3,stride=1,pad=1,dilation=1,groups=1,dtype=fp32)",
        "batch_norm(n=2,c=5,h=8,w=6,dtype=fp32)",
        "conv2d(n=2,c=5,h=8,w=6,k=5,r=1,s=1,stride=1,pad=0,dilation=1,groups=1,dtype=fp32,"
        "epilogue=bias)",
        "add(rows=10,cols=48,dtype=fp32)",
        "relu(rows=10,cols=48,dtype=fp32)",
        "global_avg_pool(n=2,c=5,h=8,w=6,dtype=fp32)",
        "linear(m=2,n=4,k=5,dtype=fp32,epilogue=bias)",
    ]


def test_lowered_kernels_carry_the_nets_flops_and_dtype() -> None:
    kernels = lower_net(NET, 3, "fp16", EAGER)
    assert sum(kernel.flops for kernel in kernels) == NET.flops(3)
    assert {kernel.dtype for kernel in kernels} == {"fp16"}


def test_lowering_names_the_layer_that_does_not_fit() -> None:
    broken = Net((3, 8, 8), (("head", head(4)), ("body", residual(5))))
    with pytest.raises(ShapeError, match="block body, layer conv2d1"):
        lower_net(broken, 1, "fp32", EAGER)


def test_lowering_imports_no_torch() -> None:
    code = """
import sys
from tadnn.nets import Conv2d, Net, block
from tadnn.runtimes import find_runtime, lower_net

@block
def stem(b):
    b.add(Conv2d(4, 3), b.input)

net = Net((3, 8, 8), (("stem", stem()),))
assert len(lower_net(net, 1, "fp32", find_runtime("torch-eager"))) == 1
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def expected(kernel: Kernel, x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
    """The op by another route than the code under test, where there is one."""
    d = kernel.dims
    bias = torch.linspace(0.5, 1.5, d.get("k" if kernel.op == "conv2d" else "n", 1))
    bias = bias if "bias" in kernel.epilogue else torch.zeros(1)
    match kernel.op:
        case "conv2d":
            columns = F.unfold(x, d["r"], padding=d["pad"], stride=d["stride"])
            columns = columns.view(d["n"], d["groups"], -1, columns.shape[-1])
            weight = rest[0].reshape(d["groups"], d["k"] // d["groups"], -1)
            out = torch.einsum("gkc,ngcp->ngkp", weight, columns).flatten(1, 2)
            p = (d["h"] + 2 * d["pad"] - d["r"]) // d["stride"] + 1
            return out.view(d["n"], d["k"], p, -1) + bias.view(-1, 1, 1)
        case "linear":
            return x @ rest[0].T + bias
        case "bmm":
            return x @ rest[0]
        case "relu":
            return x.clamp(min=0)
        case "add":
            return x + rest[0]
        case "batch_norm":
            v = torch.linspace(0.5, 1.5, d["c"]).view(-1, 1, 1)  # mean, variance, scale, shift
            return (x - v) / (v + 1e-5).sqrt() * v + v
        case "max_pool2d":
            padded = F.pad(x, (1, 1, 1, 1), value=-torch.inf)
            return padded.unfold(2, 3, 2).unfold(3, 3, 2).amax((-1, -2))
        case "global_avg_pool":
            return x.mean((2, 3), keepdim=True)
        case "softmax":
            return x.exp() / x.exp().sum(-1, keepdim=True)
    assert kernel.op == "layer_norm"
    v = torch.linspace(0.5, 1.5, d["cols"])
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * v + v


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("kernel", ONE_OF_EACH, ids=lambda k: "+".join((k.op, *k.epilogue)))
def test_a_prepared_kernel_computes_its_op(
    kernel: Kernel, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[object, ...]] = []
    real = torch_calls._Operands.calls

    def recording(self, call, shapes, *arguments):  # type: ignore[no-untyped-def]
        def recorded(*tensors):  # type: ignore[no-untyped-def]
            drawn.append(tensors[: len(shapes)])
            return call(*tensors)

        return real(self, recorded, shapes, *arguments)

    monkeypatch.setattr(torch_calls._Operands, "calls", recording)
    setting = Setting(layout=layout)
    run = EAGER.prepare_kernel(kernel, setting)
    with EAGER.session(setting):
        first, second = run(), run()
    assert isinstance(first, torch.Tensor)
    torch.testing.assert_close(first, expected(kernel, *drawn[0]), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(second, expected(kernel, *drawn[1]), rtol=1e-4, atol=1e-4)
    assert not torch.equal(first, second), "calls rotate through operands"
    if layout == "nhwc" and first.dim() == 4 and kernel.op != "global_avg_pool":
        assert first.is_contiguous(memory_format=torch.channels_last)
        assert not first.is_contiguous()


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_prepared_kernel_runs_in_its_dtype(dtype: str) -> None:
    setting = Setting(dtype=dtype)
    kernel = Kernel.of("linear", m=3, n=4, k=5, dtype=dtype, epilogue=("bias",))
    out = EAGER.prepare_kernel(kernel, setting)()
    assert isinstance(out, torch.Tensor)
    assert out.dtype == torch_calls.TORCH_DTYPES[dtype]
    assert out.isfinite().all()


def test_operands_larger_than_the_working_set_are_still_made() -> None:
    rows = torch_calls._WORKING_SET_BYTES // 4096 + 1
    run = EAGER.prepare_kernel(Kernel.of("relu", rows=rows, cols=1024), Setting())
    out = run()
    assert isinstance(out, torch.Tensor)
    assert out.shape == (rows, 1024)
    assert out[-1].any(), "the pool repeats, it doesn't end"


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (Kernel("conv2d", conv().sizes, "fp32", ("bias", "relu")), "epilogue relu"),
        (Kernel.of("linear", m=1, n=1, k=1, dtype="fp16"), "dtype is fp32"),
    ],
)
def test_kernels_that_eager_never_launches_are_refused(kernel: Kernel, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        EAGER.prepare_kernel(kernel, Setting())


def test_a_prepared_net_runs_the_module() -> None:
    setting = Setting(layout="nhwc")
    with EAGER.session(setting):
        out = EAGER.prepare_net(NET, 3, setting)()
    assert isinstance(out, torch.Tensor)
    assert out.shape == (3, 4)
    assert out.isfinite().all()


def test_a_deep_nets_activations_stay_normal() -> None:
    net = Net((32, 4, 4), tuple((f"b{i}", plain(32)) for i in range(60)))
    out = EAGER.prepare_net(net, 1, Setting())()
    assert isinstance(out, torch.Tensor)
    # Torch's own initialisation ends near 6 ** -30, below fp32's smallest normal number.
    assert 1e-6 < out.std() < 1e6


def test_a_session_fixes_threads_and_precision_and_restores_them() -> None:
    conv_backend = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before = (torch.get_num_threads(), conv_backend.fp32_precision)
    with EAGER.session(Setting(threads=before[0] + 1)):
        assert torch.get_num_threads() == before[0] + 1
        assert conv_backend.fp32_precision == "ieee"
        assert torch.is_inference_mode_enabled()
    assert (torch.get_num_threads(), conv_backend.fp32_precision) == before
    assert not torch.is_inference_mode_enabled()


def test_what_a_cpu_cannot_do_is_refused() -> None:
    with pytest.raises(RequestError, match="tf32"), EAGER.session(Setting(math="tf32")):
        pass
    with pytest.raises(RequestError, match=r"no device 'cuda:99'. Valid: cpu"):
        EAGER.prepare_net(NET, 1, Setting(), "cuda:99")
    with pytest.raises(RequestError, match="its own settings"):
        EAGER.prepare_net(NET, 1, Setting(runtime="other"))


def test_settings_survive_json_and_say_how_they_differ() -> None:
    setting = Setting(dtype="bf16", layout="nhwc", threads=4)
    assert Setting.from_dict(setting.to_dict()) == setting
    assert setting.label == "torch-eager bf16 ieee nhwc, 4 threads"
    assert setting.differences(Setting(dtype="bf16")) == [
        "layout nhwc, not nchw",
        "threads 4, not 1",
    ]
    assert setting.differences(setting) == []


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"dtype": "fp23"}, "unknown dtype 'fp23'; did you mean 'fp32'"),
        ({"math": "fast"}, "Valid: ieee, tf32"),
        ({"layout": "chw"}, "unknown layout"),
        ({"threads": 0}, "threads is a whole number, at least 1; got 0"),
        ({"threads": True}, "got True"),
        ({"threads": "2"}, "got '2'"),
        ({"runtime": ""}, "names its runtime"),
        ({"batch": 2}, "a setting has no batch"),
    ],
)
def test_wrong_settings_are_refused(data: dict[str, object], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        Setting.from_dict(data)


def test_runtimes_are_found_by_name() -> None:
    assert RUNTIMES == {"torch-eager": EAGER}
    assert isinstance(EAGER, TorchEager)
    with pytest.raises(UnknownName, match="did you mean 'torch-eager'"):
        find_runtime("torch-eagre")
