"""Networks of tokens, and of whole numbers: layers that torch has no one class for."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path

import pytest
import torch
from nets_examples import model_of, randomised, single

from tadnn.errors import ShapeError
from tadnn.nets import (
    GELU,
    INPUT,
    Add,
    Attention,
    BlockBuilder,
    ClassToken,
    Concat,
    Conv2d,
    Embedding,
    GlobalAvgPool,
    HardSigmoid,
    Identity,
    LayerNorm,
    Linear,
    Mul,
    Net,
    NetBuilder,
    Node,
    Permute,
    PositionEmbedding,
    ReLU,
    Reshape,
    RMSNorm,
    Select,
    SiLU,
    block,
    to_onnx,
)
from tadnn.runtimes import Setting, find_runtime, lower_net

EAGER = find_runtime("torch-eager")


@block
def patches(b: BlockBuilder, width: int) -> None:
    b.add(Conv2d(width, 4, stride=4, padding=0, bias=True), name="project")
    b.add(Reshape((width, -1)), name="flat")
    b.add(Permute((0, 2, 1)), name="tokens")
    b.add(ClassToken(), name="token")
    b.add(PositionEmbedding(), name="position")


@block
def encoder(b: BlockBuilder, width: int, heads: int) -> None:
    b.add(LayerNorm(), b.input, name="norm1")
    mixed = b.add(Attention(heads), name="attention")
    middle = b.add(Add(), b.input, mixed, name="add1")
    b.add(LayerNorm(), name="norm2")
    b.add(Linear(2 * width), name="up")
    b.add(GELU(), name="gelu")
    b.add(Add(), middle, b.add(Linear(width), name="down"), name="add2")


@block
def classifier(b: BlockBuilder, classes: int) -> None:
    b.add(Select(1, 0), name="first")
    b.add(Linear(classes), name="classifier")


def vit(width: int = 8) -> Net:
    net = NetBuilder((3, 8, 12))
    net.add("stem", patches(width))
    net.add("block1", encoder(width, 2))
    net.add("block2", encoder(width, 2))
    net.add("head", classifier(5))
    return net.build()


@block
def embed(b: BlockBuilder, count: int, width: int) -> None:
    b.add(Embedding(count, width), name="embedding")


@block
def decoder_block(b: BlockBuilder, width: int) -> None:
    b.add(RMSNorm(), b.input, name="norm1")
    mixed = b.add(Attention(4, kv_heads=2, causal=True, qkv_bias=False), name="attention")
    middle = b.add(Add(), b.input, mixed, name="add1")
    normal = b.add(RMSNorm(), middle, name="norm2")
    gate = b.add(SiLU(), b.add(Linear(2 * width, bias=False), normal, name="gate"), name="silu")
    up = b.add(Linear(2 * width, bias=False), normal, name="up")
    b.add(Mul(), gate, up, name="mul")
    b.add(Add(), middle, b.add(Linear(width, bias=False), name="down"), name="add2")


@block
def next_token(b: BlockBuilder, count: int) -> None:
    b.add(Linear(count, bias=False), name="logits")


def decoder(count: int = 11, width: int = 8) -> Net:
    net = NetBuilder((6,))
    net.add("embed", embed(count, width))
    net.add("block1", decoder_block(width))
    net.add("block2", decoder_block(width))
    net.add("head", next_token(count))
    return net.build()


@block
def squeeze_excite(b: BlockBuilder, width: int) -> None:
    b.add(GlobalAvgPool(), b.input, name="squeeze")
    b.add(Conv2d(width, 1, bias=True), name="reduce")
    b.add(ReLU(), name="relu")
    b.add(Conv2d(6, 1, bias=True), name="expand")
    scaled = b.add(Mul(), b.input, b.add(HardSigmoid(), name="gate"), name="scale")
    b.add(Concat(), b.input, scaled, b.input, name="concat")


def excited() -> Net:
    return Net.checked((6, 5, 4), (("block1", squeeze_excite(3)),))


NETS = [vit, decoder, excited]
each = pytest.mark.parametrize("make", NETS)


@each
def test_source_needs_torch_alone_and_takes_the_weights(make: object) -> None:
    net: Net = make()  # type: ignore[operator]
    text = net.to_source()
    imports = [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert {getattr(node, "module", None) or node.names[0].name for node in imports} == {"torch"}
    assert "type: ignore" not in text
    module, written = randomised(net.to_module()), model_of(text)
    written.load_state_dict(module.state_dict())
    with torch.inference_mode():
        assert torch.equal(written(net.example(3)), module(net.example(3)))


def test_source_carries_a_class_once_and_only_where_it_is_used() -> None:
    names = [n.name for n in ast.parse(vit().to_source()).body if isinstance(n, ast.ClassDef)]
    assert names == [
        "Attention",
        "ClassToken",
        "Permute",
        "PositionEmbedding",
        "Patches1",
        "Encoder1",
        "Classifier1",
        "Model",
    ]
    assert "class Concat" in excited().to_source()
    assert "a float tensor of shape [batch, 3, 8, 12]" in vit().to_source()
    assert "an int64 tensor of shape [batch, 6]" in decoder().to_source()


@each
def test_json(make: object) -> None:
    net: Net = make()  # type: ignore[operator]
    again = Net.from_json(json.loads(json.dumps(net.to_json())))
    assert again == net
    assert again.key == net.key


@each
def test_launches_and_counts(make: object) -> None:
    net: Net = make()  # type: ignore[operator]
    assert sum(kernel.flops for kernel in lower_net(net, 2, "fp32", EAGER)) == net.flops(2)
    assert sum(p.numel() for p in net.to_module().parameters()) == net.parameters
    with EAGER.session(Setting()):
        output = EAGER.prepare_net(net, 2, Setting())()
    assert isinstance(output, torch.Tensor)
    assert output.shape == net.output_shape(2)
    assert output.isfinite().all()


def test_a_net_of_whole_numbers_runs_in_half_precision() -> None:
    output = EAGER.prepare_net(decoder(), 2, Setting(dtype="bf16"))()
    assert isinstance(output, torch.Tensor)
    assert output.dtype == torch.bfloat16


def test_inputs() -> None:
    assert (vit().input_dtype, vit().input_limit) == ("float", None)
    assert (decoder().input_dtype, decoder().input_limit) == ("int64", 11)
    x = decoder().example(200)
    assert (x.dtype, x.shape) == (torch.int64, (200, 6))
    assert (int(x.min()), int(x.max())) == (0, 10)
    assert torch.equal(x, decoder().example(200))
    assert not torch.equal(x, decoder().example(200, seed=1))
    assert vit().example(2).std() > 0.5


def test_whole_numbers_come_from_the_networks_input() -> None:
    with pytest.raises(
        ShapeError, match=r"layer b \(Embedding\) takes int64 values, which only an"
    ):
        single(Node("a", Identity(), (INPUT,)), Node("b", Embedding(4, 2), (0,)), input_shape=(3,))
    with pytest.raises(
        ShapeError, match=r"block again: takes int64 values, which only the network's"
    ):
        Net.checked((6,), (("first", next_token(6)), ("again", embed(4, 2))))
    with pytest.raises(ShapeError, match=r"layer b \(Linear\) takes float values; .* as int64"):
        single(
            Node("a", Embedding(4, 3), (INPUT,)),
            Node("b", Linear(3), (INPUT,)),
            Node("c", Reshape((1, 3)), (1,)),
            Node("d", Concat(), (0, 2)),
            input_shape=(3,),
        )
    # Two tables may read the same input.
    both = single(
        Node("a", Embedding(5, 3), (INPUT,)),
        Node("b", Embedding(4, 3), (INPUT,)),
        Node("c", Add(), (0, 1)),
        input_shape=(3,),
    )
    assert (both.input_dtype, both.input_limit) == ("int64", 4)


def test_attention_by_hand() -> None:
    """Heads one by one, keys and values shared by two, later tokens hidden."""
    width, heads, kv_heads, head = 8, 4, 2, 3
    layer = Attention(heads, head, kv_heads, causal=True)
    net = single(Node("attention", layer, (INPUT,)), input_shape=(5, width))
    module, x = net.to_module(seed=0), net.example(2)
    weights = module.state_dict()
    w, bias = weights["only.attention.qkv.weight"], weights["only.attention.qkv.bias"]
    projected = (x @ w.T + bias).split(head, dim=-1)
    outputs = []
    for i in range(heads):
        q, k, v = (projected[j] for j in (i, heads + i // 2, heads + kv_heads + i // 2))
        scores = q @ k.transpose(1, 2) / math.sqrt(head)
        scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -math.inf)
        outputs.append(torch.softmax(scores, dim=-1) @ v)
    out, last = (weights[f"only.attention.out.{name}"] for name in ("weight", "bias"))
    torch.testing.assert_close(module(x), torch.cat(outputs, dim=-1) @ out.T + last)


def test_only_a_causal_network_hides_what_follows() -> None:
    net = decoder()
    module, x = net.to_module(seed=0).eval(), net.example(1)
    changed = x.clone()
    changed[0, 4] = (x[0, 4] + 1) % 11
    with torch.inference_mode():
        same = (module(x) - module(changed)).abs().amax(dim=(0, 2)) < 1e-6
    assert same.tolist() == [True] * 4 + [False] * 2


def test_a_network_of_whole_numbers_as_onnx(tmp_path: Path) -> None:
    import onnxruntime

    net = decoder()
    module, path = randomised(net.to_module(seed=0)), tmp_path / "net.onnx"
    to_onnx(module, net.input_shape, path, input_dtype=net.input_dtype)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for batch in (1, 3):
        x = net.example(batch)
        (output,) = session.run(["output"], {"input": x.numpy()})
        with torch.inference_mode():
            torch.testing.assert_close(torch.from_numpy(output), module(x), rtol=1e-4, atol=1e-5)


def test_variadic_layers_take_two_or_more() -> None:
    with pytest.raises(ShapeError, match=r"one \(Concat\) takes 2 inputs or more; got 1"):
        single(Node("one", Concat(), (INPUT,)))
    assert single(Node("four", Concat(), (INPUT,) * 4)).output_shape() == (1, 16, 8, 8)
