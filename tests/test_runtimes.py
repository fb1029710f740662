from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from tadnn.errors import RequestError, ShapeError, UnknownName
from tadnn.kernels import OPS, Kernel
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
from tadnn.runtimes import RUNTIMES, Setting, TorchEager, find_runtime, lower_net, torch_operands

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
    conv(stride_w=1, pad_w=2, dilation_w=2),
    Kernel.parse(
        "conv_transpose2d(n=2,c=6,h=4,w=5,k=4,r=3,s=2,stride=2,pad=1,out_pad=1,groups=2,"
        "epilogue=bias)"
    ),
    Kernel.parse("max_pool2d(n=2,c=3,h=8,w=8,r=3,s=3,stride=2,pad=1,stride_w=1,ceil=1)"),
    Kernel.parse("avg_pool2d(n=2,c=3,h=9,w=7,r=3,s=3,stride=2,pad=1)"),
    Kernel.parse("adaptive_avg_pool2d(n=2,c=3,h=4,w=9,p=2,q=3)"),
    Kernel.parse("token_mean(n=2,t=5,cols=7)"),
    Kernel.parse("upsample_nearest(n=2,c=3,h=4,w=5,scale=2)"),
    Kernel.parse("upsample_bilinear(n=2,c=3,h=4,w=5,scale=2)"),
    Kernel.parse("group_norm(n=2,c=6,h=4,w=5,groups=3)"),
    Kernel.parse("embedding(rows=6,cols=7,count=50)"),
    Kernel.parse("permute(b=2,rows=3,cols=5,inner=4)"),
    *(Kernel(op, (6, 63)) for op in ["add_cols", "mul", "mul_rows", "concat", "rms_norm"]),
    *(Kernel(op, (6, 63)) for op in ["gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "relu6"]),
    *(Kernel(op, (6, 63)) for op in ["hard_sigmoid", "hard_swish", "leaky_relu"]),
    *(Kernel(op, (6, 63)) for op in ["scalar", "pointwise"]),
    Kernel.parse("attention(b=2,t=3,s=4,d=5,e=6)"),
    Kernel("cast", (6, 63)),
    Kernel.parse("opaque(n=3,flops=40,read=7,written=5)"),
]


# What gives images whose memory has the usual order, whatever order it was in.
PLAIN = {"global_avg_pool", "permute"}


def test_every_op_is_run() -> None:
    assert {kernel.op for kernel in ONE_OF_EACH} == set(OPS)


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


def doubled(x: torch.Tensor) -> torch.Tensor:
    """Twice as wide: each pixel gives two, a quarter of the way to either neighbour."""
    before, after = x.roll(1, -1), x.roll(-1, -1)
    before[..., 0], after[..., -1] = x[..., 0], x[..., -1]
    return torch.stack((0.75 * x + 0.25 * before, 0.75 * x + 0.25 * after), -1).flatten(-2)


def expected(kernel: Kernel, x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
    """The op by another route than the code under test, where there is one."""
    d = kernel.dims
    outputs = "k" if kernel.op.startswith("conv") else "n"
    bias = torch.linspace(0.5, 1.5, d.get(outputs, 1))
    bias = bias if "bias" in kernel.epilogue else torch.zeros(1)
    match kernel.op:
        case "conv2d":
            steps = {
                name: (kernel.dim(name), kernel.dim(f"{name}_w")) for name in ("pad", "stride")
            }
            dilation = d["dilation"], kernel.dim("dilation_w")
            (above, left), stride = steps["pad"], steps["stride"]
            window = d["r"], d["s"]
            columns = F.unfold(x, window, padding=(above, left), stride=stride, dilation=dilation)
            columns = columns.view(d["n"], d["groups"], -1, columns.shape[-1])
            weight = rest[0].reshape(d["groups"], d["k"] // d["groups"], -1)
            out = torch.einsum("gkc,ngcp->ngkp", weight, columns).flatten(1, 2)
            p = (d["h"] + 2 * above - dilation[0] * (d["r"] - 1) - 1) // stride[0] + 1
            return out.view(d["n"], d["k"], p, -1) + bias.view(-1, 1, 1)
        case "conv_transpose2d":
            # Zeros between the pixels, then the turned-round kernels over it.
            spread = x.new_zeros((2, 6, 7, 9))
            spread[:, :, ::2, ::2] = x
            padded = F.pad(spread, (0, 1, 1, 2))  # window - 1 - pad, out_pad more at the end
            weight = rest[0].view(2, 3, 2, 3, 2).transpose(1, 2).flatten(0, 1).flip(2, 3)
            return F.conv2d(padded, weight, groups=2) + bias.view(-1, 1, 1)
        case "linear":
            return x @ rest[0].T + bias
        case "bmm":
            return x @ rest[0]
        case "attention":
            scores = torch.softmax(x @ rest[0].transpose(1, 2) / math.sqrt(5), -1)
            return scores @ rest[1]
        case "cast":
            return x.double()
        case "relu":
            return x.clamp(min=0)
        case "add":
            return x + rest[0]
        case "batch_norm":
            v = torch.linspace(0.5, 1.5, d["c"]).view(-1, 1, 1)  # mean, variance, scale, shift
            return (x - v) / (v + 1e-5).sqrt() * v + v
        case "max_pool2d" if "ceil" in d:
            padded = F.pad(x, (1, 1, 1, 2), value=-torch.inf)
            return padded.unfold(2, 3, 2).unfold(3, 3, 1).amax((-1, -2))
        case "max_pool2d":
            padded = F.pad(x, (1, 1, 1, 1), value=-torch.inf)
            return padded.unfold(2, 3, 2).unfold(3, 3, 2).amax((-1, -2))
        case "avg_pool2d":
            return F.pad(x, (1, 1, 1, 1)).unfold(2, 3, 2).unfold(3, 3, 2).mean((-1, -2))
        case "adaptive_avg_pool2d":
            return x.unfold(2, 2, 2).unfold(3, 3, 3).mean((-1, -2))
        case "token_mean":
            return x.sum(1) / 5
        case "upsample_nearest":
            return x.repeat_interleave(2, 2).repeat_interleave(2, 3)
        case "upsample_bilinear":
            return doubled(doubled(x.transpose(2, 3)).transpose(2, 3))
        case "group_norm":
            v = torch.linspace(0.5, 1.5, 6).view(-1, 1, 1)
            parts = x.reshape(2, 3, -1)
            centred = parts - parts.mean(-1, keepdim=True)
            normal = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
            return normal.view(2, 6, 4, 5) * v + v
        case "embedding":
            chosen = torch.randint(50, (6,), generator=torch.Generator().manual_seed(0))
            return x[chosen]
        case "permute":
            return torch.einsum("brci->bcri", x.view(2, 3, 5, 4))
        case "add_cols" | "concat":
            return x + rest[0] if kernel.op == "add_cols" else torch.hstack((x, rest[0]))
        case "mul" | "mul_rows":
            return x * rest[0].expand(6, 63)
        case "rms_norm":
            return x / x.square().mean(-1, keepdim=True).sqrt() * torch.linspace(0.5, 1.5, 63)
        case "gelu":
            return x * torch.special.ndtr(x)
        case "gelu_tanh":
            inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
            return x * (1 + torch.tanh(inner)) / 2
        case "silu":
            return x / (1 + (-x).exp())
        case "sigmoid":
            return 1 / (1 + (-x).exp())
        case "tanh":
            return 1 - 2 / (1 + (2 * x).exp())
        case "relu6":
            return x.clamp(0, 6)
        case "hard_sigmoid":
            return (x + 3).clamp(0, 6) / 6
        case "hard_swish":
            return x * (x + 3).clamp(0, 6) / 6
        case "leaky_relu":
            return torch.where(x > 0, x, 0.01 * x)
        case "scalar":
            return x / 2
        case "pointwise":
            return torch.full_like(x, math.e) ** x
        case "opaque":  # as much as it reads and writes; the product's result is dropped
            return torch.stack([x.sum(1)] * 5, 1)
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
    real = torch_operands.Operands.calls

    def recording(self, call, shapes, *arguments):  # type: ignore[no-untyped-def]
        def recorded(*tensors):  # type: ignore[no-untyped-def]
            drawn.append(tensors[: len(shapes)])
            return call(*tensors)

        return real(self, recorded, shapes, *arguments)

    monkeypatch.setattr(torch_operands.Operands, "calls", recording)
    setting = Setting(layout=layout)
    run = EAGER.prepare_kernel(kernel, setting)
    with EAGER.session(setting):
        first, second = run(), run()
    assert isinstance(first, torch.Tensor)
    torch.testing.assert_close(first, expected(kernel, *drawn[0]), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(second, expected(kernel, *drawn[1]), rtol=1e-4, atol=1e-4)
    assert not torch.equal(first, second), "calls rotate through operands"
    if layout == "nhwc" and first.dim() == 4 and kernel.op not in PLAIN:
        assert first.is_contiguous(memory_format=torch.channels_last)
        assert not first.is_contiguous()


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_prepared_kernel_runs_in_its_dtype(dtype: str) -> None:
    setting = Setting(dtype=dtype)
    kernel = Kernel.of("linear", m=3, n=4, k=5, dtype=dtype, epilogue=("bias",))
    out = EAGER.prepare_kernel(kernel, setting)()
    assert isinstance(out, torch.Tensor)
    assert out.dtype == torch_operands.TORCH_DTYPES[dtype]
    assert out.isfinite().all()


def test_operands_larger_than_the_working_set_are_still_made() -> None:
    rows = torch_operands._WORKING_SET_BYTES // 4096 + 1
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


def test_torchs_old_and_new_precision_agree_in_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    # Where they don't, TorchInductor fails. No GPU is needed to set them.
    monkeypatch.setattr(EAGER, "_check_device", lambda _: None)
    before = torch.get_float32_matmul_precision()
    for mode, old in (("tf32", "high"), ("ieee", "highest")):
        with EAGER.session(Setting(math=mode), "cuda:0"):
            assert torch.get_float32_matmul_precision() == old
            assert torch.backends.cuda.matmul.fp32_precision == mode
    assert torch.get_float32_matmul_precision() == before


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
    assert RUNTIMES["torch-eager"] is EAGER
    assert {name: runtime.name for name, runtime in RUNTIMES.items()} == {n: n for n in RUNTIMES}
    assert isinstance(EAGER, TorchEager)
    with pytest.raises(UnknownName, match="did you mean 'torch-eager'"):
        find_runtime("torch-eagre")
