from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from test_nets_layers import EXAMPLES, Example, alone, randomised

from tadnn.errors import RequestError, WorkFailed
from tadnn.kernels import Kernel
from tadnn.nets import (
    GELU,
    Add,
    Attention,
    AvgPool2d,
    BatchNorm2d,
    BlockBuilder,
    Concat,
    Conv1d,
    Conv2d,
    DepthwiseConv2d,
    Dropout,
    Flatten,
    GlobalAvgPool,
    HardSigmoid,
    HardSwish,
    Layer,
    LayerNorm,
    LeakyReLU,
    Linear,
    MaxPool2d,
    Mul,
    Net,
    Opaque,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Tanh,
    Upsample,
    to_onnx,
)
from tadnn.runtimes import Setting, find_runtime, lower_net
from tadnn.runtimes.onnx_graph import lacking_layers, net_to_onnx
from tadnn.runtimes.onnx_layers import WRITERS
from tadnn.runtimes.onnxruntime import optimised_nodes
from tadnn.runtimes.ort_profile import NodeMap, NodeTime
from tadnn.spaces import load_space

RUNTIME = find_runtime("onnxruntime")
SETTING = Setting("onnxruntime")


def between(builder: BlockBuilder, shape: tuple[int, ...]) -> Net:
    """A network of the block; images come from a convolution before and go to one after it."""
    made = ("only", builder.build("one"))
    if len(shape) < 3:
        return Net.checked(shape, (made,))
    stem, tail = BlockBuilder(), BlockBuilder()
    stem.add(Conv2d(shape[0], 3), name="conv")
    blocks = [("stem", stem.build("stem")), made]
    if len(Net.checked((3, *shape[1:]), tuple(blocks)).output_shape()) == 4:
        tail.add(Conv2d(8, 1), name="conv")
        tail.add(GlobalAvgPool(), name="pool")
        blocks.append(("tail", tail.build("tail")))
    return Net.checked((3, *shape[1:]), tuple(blocks))


def chain(*layers: Layer, shape: tuple[int, ...] = (32, 8, 8)) -> Net:
    """A block of layers named l0, l1, ... between others."""
    builder = BlockBuilder()
    for i, layer in enumerate(layers):
        builder.add(layer, name=f"l{i}")
    return between(builder, shape)


def residual(*layers: Layer, shape: tuple[int, ...] = (32, 8, 8)) -> Net:
    """As :func:`chain`, after a sum of two convolutions' outputs, one of them normalised."""
    builder = BlockBuilder()
    width = shape[0]
    short = builder.add(Conv2d(width, 3), builder.input, name="short")
    builder.add(Conv2d(width, 3), builder.input, name="main")
    main = builder.add(BatchNorm2d(), name="norm")
    builder.add(Add(), main, short, name="add")
    for i, layer in enumerate(layers):
        builder.add(layer, name=f"l{i}")
    return between(builder, shape)


def written_runs(net: Net, batch: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Return the outputs of the written graph and of the module, with the same weights."""
    module = randomised(net.to_module(0)).eval()
    weights = {name: value.numpy() for name, value in module.state_dict().items()}
    model = net_to_onnx(net, batch, weights)
    onnx.checker.check_model(model, full_check=True)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = net.example(batch)
    with torch.inference_mode():
        expected = module(x)
    return session.run(None, {"input": x.numpy()})[0], expected.detach().numpy()


# An operator that no layer is has no ONNX of ours either: torch's exporter writes such networks.
WRITABLE = [example for example in EXAMPLES if not isinstance(example.layer, Opaque)]


@pytest.mark.parametrize("example", WRITABLE, ids=str)
def test_every_layer_is_written_as_it_computes(example: Example) -> None:
    got, expected = written_runs(alone(example), example.inputs[0][0])
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-5)


def test_what_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(WRITERS, Tanh)
    net = chain(Conv2d(8, 1), Tanh())
    assert lacking_layers(net) == ["Tanh"]
    with pytest.raises(RequestError, match="Tanh"):
        net_to_onnx(net, 1)
    with pytest.raises(RequestError, match="can't write Tanh"):
        RUNTIME.observe_net(net, 1, SETTING)
    run = RUNTIME.prepare_net(net, 2, SETTING)  # through torch's exporter
    assert np.shape(run()) == (1, 2, 8, 1, 1)


def ops_of(model: bytes) -> Counter[str]:
    """Count the ops that compute; views come in other numbers where shapes are known earlier."""
    return Counter(op for _, op, _, _ in optimised_nodes(model, SETTING) if op != "Reshape")


def exported(net: Net, folder: Path) -> bytes:
    """Return torch's export with the batch fixed to 1."""
    path = folder / "net.onnx"
    to_onnx(net.to_module(0), net.input_shape, path, input_dtype=net.input_dtype)
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    return bytes(model.SerializeToString())


SMALL_ATTENTION = chain(LayerNorm(), Attention(4), LayerNorm(), Linear(96), GELU(), shape=(9, 48))
SMALL_SQUEEZE = residual(HardSwish(), Conv2d(20, 1), AvgPool2d(3, 2, 1), Conv2d(32, 1), SiLU())


ONE_HEAD = chain(LayerNorm(), Attention(1, head_width=16), shape=(9, 48))


@pytest.mark.parametrize(
    "net", [SMALL_ATTENTION, ONE_HEAD, SMALL_SQUEEZE], ids=["attention", "one head", "images"]
)
def test_the_written_graph_is_optimised_as_the_exported_one(net: Net, tmp_path: Path) -> None:
    written = net_to_onnx(net, 1).SerializeToString()
    assert ops_of(written) == ops_of(exported(net, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("space", ["mbconv", "vit", "resnet"])
def test_written_architectures_are_optimised_as_exported_ones(space: str, tmp_path: Path) -> None:
    loaded = load_space(space)
    for arch in loaded.sample(3, 5):
        net = loaded.build(arch, (3, 112, 112) if space != "vit" else (3, 224, 224))
        assert ops_of(net_to_onnx(net, 1).SerializeToString()) == ops_of(exported(net, tmp_path))


def mapped(net: Net, batch: int = 1) -> tuple[NodeMap, list[tuple[str, str]], list[str]]:
    """Return the map, the optimised nodes that are no launch, the launches that are no node."""
    nodes = optimised_nodes(net_to_onnx(net, batch).SerializeToString(), SETTING)
    found = NodeMap(net, batch, "fp32", nodes)
    owners = {(name, op): found.owner(name, op) for name, op, _, _ in nodes}
    strangers = [
        (op, name)
        for (name, op), owner in owners.items()
        if owner is None and name and not found.is_view(op)
    ]
    seen = set(owners.values())
    unseen = [launch.kernel.key for i, launch in enumerate(found.launches) if i not in seen]
    return found, strangers, unseen


ACTIVATIONS = [ReLU(), ReLU6(), LeakyReLU(), Sigmoid(), HardSigmoid(), HardSwish(), Tanh(), SiLU()]
NETS = [
    *(chain(Conv2d(w, 3), BatchNorm2d(), a, Conv2d(w, 1), shape=(w, 8, 8))
      for a in [*ACTIVATIONS, GELU(), GELU("tanh")] for w in (32, 18)),
    *(residual(a, Conv2d(w, 1), shape=(w, 8, 8)) for a in ACTIVATIONS for w in (32, 18)),
    chain(Conv2d(20, 3), MaxPool2d(3, 2, 1), Conv2d(32, 1), AvgPool2d(3, 2, 1), shape=(8, 32, 32)),
    chain(Conv2d(32, 3), ReLU(), BatchNorm2d(), ReLU(), Conv2d(32, 3), shape=(8, 8, 8)),
    chain(Conv2d(32, 3), Upsample(2), Conv2d(32, 3), Upsample(2, "bilinear"), shape=(8, 8, 8)),
    chain(Conv2d(18, 1), DepthwiseConv2d(3), Conv2d(20, 1), DepthwiseConv2d(3), shape=(8, 8, 8)),
    chain(Conv2d(64, 1), Conv2d(64, 3, groups=2), Conv2d(64, 3, groups=8), shape=(8, 8, 8)),
    chain(GlobalAvgPool(), Flatten(), Linear(8), ReLU(), Linear(8), Sigmoid(), Linear(4)),
    chain(Conv1d(32, 3), ReLU(), Conv1d(8, 3), shape=(16, 40)),
    chain(Dropout(), Conv2d(32, 3), Dropout(), ReLU(), Conv2d(16, 1)),
    chain(Attention(4, kv_heads=2, causal=True, qkv_bias=False), shape=(9, 48)),
    SMALL_ATTENTION,
    ONE_HEAD,
]  # fmt: skip


@pytest.mark.parametrize("net", NETS, ids=lambda net: ",".join(p.name for p in net.layers()))
def test_every_launch_is_a_node_and_every_node_a_launch(net: Net) -> None:
    _, strangers, unseen = mapped(net)
    assert not strangers
    assert not unseen


@pytest.mark.parametrize(
    ("space", "shape"),
    [("mbconv", (3, 64, 64)), ("vit", (3, 224, 224)), ("resnet", (3, 64, 64))],
)
def test_the_spaces_networks_are_lowered_to_what_runs(space: str, shape: tuple[int, ...]) -> None:
    loaded = load_space(space)
    if space != "mbconv":
        loaded = loaded.narrow({"width": {"low": 32, "high": 64}})
    for arch in loaded.sample(6, 7):
        found, strangers, unseen = mapped(loaded.build(arch, shape))
        # Of a transformer's last addition and the norm of the head, ONNX Runtime makes one node,
        # across our blocks; and it picks the class token by copying it.
        known = {("SkipLayerNormalization", "SkipLayerNormalization"), ("Gather", "head.pool")}
        assert set(strangers) <= known
        assert len(unseen) <= (2 if space == "vit" else 1)
        assert len(found.launches) >= 20


def keys(net: Net, batch: int = 1) -> list[str]:
    return [kernel.key for kernel in lower_net(net, batch, "fp32", RUNTIME)]


def test_a_bottleneck_by_hand() -> None:
    """Batch norms fold, the addition and the activation go into a convolution."""
    net = residual(ReLU(), GlobalAvgPool(), Flatten(), Linear(10))
    window = "n=2,c=32,h=8,w=8,k=32,r=3,s=3,stride=1,pad=1,dilation=1,groups=1,dtype=fp32"
    assert keys(net, 2)[1:] == [
        f"conv2d({window})",
        f"conv2d({window},epilogue=bias+add+relu)",
        "permute(b=4,rows=64,cols=16,inner=1,dtype=fp32)",
        "global_avg_pool(n=2,c=32,h=8,w=8,dtype=fp32)",
        "linear(m=2,n=10,k=32,dtype=fp32,epilogue=bias)",
    ]


def test_squeeze_and_excite_reorders() -> None:
    """Weighing channels wants the image plain, the convolution after it blocked."""
    builder = BlockBuilder()
    wide = builder.add(Conv2d(32, 1), builder.input, name="conv")
    builder.add(GlobalAvgPool(), wide, name="pool")
    builder.add(Conv2d(32, 1), name="excite")
    gate = builder.add(Sigmoid(), name="gate")
    builder.add(Mul(), wide, gate, name="scale")
    builder.add(Conv2d(16, 1), name="project")
    net = between(builder, (32, 8, 8))
    assert [kernel.op for kernel in lower_net(net, 1, "fp32", RUNTIME)] == [
        "conv2d", "conv2d", "permute", "global_avg_pool", "permute", "conv2d", "permute",
        "mul_rows", "permute", "conv2d", "conv2d", "permute", "global_avg_pool",
    ]  # fmt: skip
    _, strangers, unseen = mapped(net)
    assert not strangers
    assert not unseen


def test_what_is_computed_twice_is_computed_once() -> None:
    builder = BlockBuilder()
    first = builder.add(ReLU(), builder.input)
    second = builder.add(ReLU(), builder.input)
    builder.add(Concat(), first, second)
    net = Net.checked((5, 6), (("only", builder.build("one")),))
    assert [kernel.op for kernel in lower_net(net, 1, "fp32", RUNTIME)] == ["relu", "concat"]


def test_flops_are_the_networks() -> None:
    for net in (SMALL_ATTENTION, SMALL_SQUEEZE, *NETS[:20]):
        lowered = sum(kernel.flops for kernel in lower_net(net, 3, "fp32", RUNTIME))
        assert lowered == net.flops(3)


def test_a_network_runs_and_is_observed() -> None:
    loaded = load_space("mbconv")
    net = loaded.build(loaded.sample(1, 3)[0], (3, 64, 64))
    with RUNTIME.session(SETTING):
        run = RUNTIME.prepare_net(net, 2, SETTING)
        assert np.shape(run()) == (1, 2, 1000)
        observed = RUNTIME.observe_net(net, 2, SETTING)
    launched = set(lower_net(net, 2, "fp32", RUNTIME))
    assert set(observed) <= launched
    assert len(observed) >= len(launched) - 1
    assert all(len(times) >= 8 and min(times) >= 0 for times in observed.values())


def test_times_belong_to_kernels_by_name() -> None:
    net = chain(Linear(6), HardSwish(), Linear(8), shape=(4, 8))
    nodes = [
        ("only.l0", "Gemm", ["input", "w"], ["only.l0"]),
        ("", "HardSigmoid", ["only.l0"], ["_inlined"]),
        ("", "Mul", ["only.l0", "_inlined"], ["only.l1"]),
        ("only.l2/out_matmul/MatMulAddFusion", "Gemm", ["only.l1"], ["made"]),
        ("reshaped", "Reshape", ["made"], ["only.l2"]),
        ("odd", "Odd", ["input"], ["nowhere"]),
    ]
    found = NodeMap(net, 1, "fp32", nodes)
    assert [launch.kernel.op for launch in found.launches] == ["linear", "hard_swish", "linear"]
    run = [NodeTime(*node) for node in [
        ("only.l0", "Gemm", 10.0), ("only.l2/out_matmul/MatMulAddFusion", "Gemm", 5.0),
        ("reshaped", "Reshape", 1.0), ("odd", "Odd", 2.0),
    ]]  # fmt: skip
    assert found.kernel_times(run) == ({0: 10.0, 2: 5.0}, 3.0)


def test_a_profile_of_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NodeMap, "kernel_times", lambda self, run: ({}, 10.0))
    with pytest.raises(WorkFailed, match="belongs to known kernels; got 0 %"):
        RUNTIME.observe_net(chain(Conv2d(8, 3)), 1, SETTING)


@pytest.mark.parametrize(
    ("changes", "text"),
    [({"dtype": "fp16"}, "dtype fp32"), ({"layout": "nhwc"}, "layout nchw"),
     ({"math": "tf32"}, "math ieee"), ({"runtime": "torch-eager"}, "its own settings")],
)  # fmt: skip
def test_other_settings_are_refused(changes: dict[str, str], text: str) -> None:
    with pytest.raises(RequestError, match=text):
        RUNTIME.check(Setting(**{"runtime": "onnxruntime", **changes}))


def test_what_cannot_run_is_refused() -> None:
    net = chain(Conv2d(8, 3))
    with pytest.raises(RequestError, match="whole networks only"):
        RUNTIME.prepare_kernel(Kernel.of("relu", rows=2, cols=2), SETTING)
    with pytest.raises(RequestError, match="Valid: cpu"):
        RUNTIME.prepare_net(net, 1, SETTING, "cuda:0")
    with pytest.raises(RequestError, match="times kernels alone"):
        find_runtime("torch-eager").observe_net(net, 1, Setting())
    with pytest.raises(RequestError, match=r"at most 2\.0 GB"):
        RUNTIME.prepare_net(chain(Linear(50_000), Linear(50_000), shape=(8,)), 1, SETTING)


def test_running_takes_no_torch() -> None:
    code = """
import sys
from tadnn.nets import Conv2d, Net, block
from tadnn.runtimes import Setting, find_runtime, lower_net

@block
def stem(b):
    b.add(Conv2d(16, 3), b.input)

net, runtime = Net((3, 8, 8), (("stem", stem()),)), find_runtime("onnxruntime")
assert len(lower_net(net, 1, "fp32", runtime)) == 1
assert "onnxruntime" not in sys.modules
runtime.preload()
assert len(runtime.observe_net(net, 1, Setting("onnxruntime"))) == 1
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
