from __future__ import annotations

import ast
import copy
import math
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from nets_examples import built, head, model_of, randomised, residual, run, single, small_net, stem
from torch import nn

from tadnn import nets
from tadnn.errors import RequestError, ShapeError, UnknownName
from tadnn.kernels import Kernel
from tadnn.nets import (
    INPUT,
    Add,
    BatchNorm2d,
    Block,
    BlockBuilder,
    Conv2d,
    Flatten,
    Linear,
    MaxPool2d,
    Net,
    Node,
    ReLU,
    block_facts,
)
from tadnn.runtimes import find_runtime, lower_net
from tadnn.spaces import load_space


def test_exported_names() -> None:
    assert nets.__all__ == [
        "GELU",
        "INPUT",
        "LAYERS",
        "AdaptiveAvgPool2d",
        "Add",
        "Attention",
        "AvgPool2d",
        "BatchNorm2d",
        "Binary",
        "Block",
        "BlockBuilder",
        "BlockFacts",
        "CachedAttention",
        "ClassToken",
        "Concat",
        "Conv1d",
        "Conv2d",
        "Conv3d",
        "ConvTranspose2d",
        "DepthwiseConv2d",
        "Dropout",
        "Embedding",
        "Expand",
        "Flatten",
        "Gather",
        "GlobalAvgPool",
        "GroupNorm",
        "HardSigmoid",
        "HardSwish",
        "Identity",
        "Layer",
        "LayerNorm",
        "LeakyReLU",
        "Linear",
        "LogSoftmax",
        "MatMul",
        "MaxPool2d",
        "Mul",
        "Net",
        "NetBuilder",
        "Node",
        "Opaque",
        "PReLU",
        "Pad",
        "Permute",
        "PlacedLayer",
        "Pointwise",
        "PositionEmbedding",
        "RMSNorm",
        "ReLU",
        "ReLU6",
        "Reduce",
        "Reshape",
        "Resize",
        "Roll",
        "ScaledDotProduct",
        "Select",
        "Shape",
        "SiLU",
        "Sigmoid",
        "Slice",
        "Softmax",
        "Stored",
        "Tanh",
        "TokenMean",
        "Traced",
        "Upsample",
        "View",
        "Where",
        "block",
        "block_facts",
        "exported_program",
        "load_weights",
        "program_to_onnx",
        "read_net",
        "save_weights",
        "to_onnx",
        "trace",
    ]


def test_scoring_needs_no_torch() -> None:
    code = (
        "import sys, tadnn.nets, tadnn.spaces, tadnn.runtimes\n"
        "space = tadnn.spaces.load_space('resnet')\n"
        "net = space.build(space.sample(1, 0)[0])\n"
        "net.parameters, net.flops(), net.memory_bytes(), net.key\n"
        "tadnn.runtimes.lower_net(net, 1, 'fp32', tadnn.runtimes.find_runtime('torch-eager'))\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


class TestPublishedNetworks:
    """ResNet-18 and ResNet-50 of He et al. 2016; parameters as torchvision has them."""

    def build(self, block_type: str, depths: tuple[int, ...]) -> Net:
        arch: dict[str, Any] = {"block": block_type}
        for stage, depth in enumerate(depths, 1):
            arch[f"depth{stage}"], arch[f"width{stage}"] = depth, 32 * 2**stage
            arch |= {f"kernel{stage}_{i}": 3 for i in range(1, depth + 1)}
        return load_space("resnet").build(arch)

    def test_resnet18(self) -> None:
        net = self.build("basic", (2, 2, 2, 2))
        stem = 64 * 3 * 49 * 112**2
        first = 4 * 64 * 64 * 9 * 56**2
        # Every later stage halves the edge and doubles the width: the same work each.
        later = (64 * 128 * 9 + 3 * 128 * 128 * 9 + 64 * 128) * 28**2
        assert stem + first + 3 * later + 512_000 == 1_814_073_344
        assert net.flops() == 2 * 1_814_073_344
        assert net.flops(batch=3) == 3 * net.flops()
        assert net.parameters == 11_689_512
        assert net.output_shape(batch=8) == (8, 1000)

    def test_resnet50(self) -> None:
        net = self.build("bottleneck", (3, 4, 6, 3))
        stem = 64 * 3 * 49 * 112**2
        plain = 256 * 64 + 64 * 64 * 9 + 64 * 256
        first = (3 * plain - 256 * 64 + 64 * 64 + 64 * 256) * 56**2

        def later(blocks: int) -> int:
            # The first block's 1x1 convolution still works on the larger image.
            enter = 256 * 128 * 56**2 + (128 * 128 * 9 + 128 * 512 + 256 * 512) * 28**2
            return enter + (blocks - 1) * (512 * 128 + 128 * 128 * 9 + 128 * 512) * 28**2

        by_hand = stem + first + later(4) + later(6) + later(3) + 2_048_000
        assert by_hand == 4_089_184_256
        assert net.flops() == 2 * 4_089_184_256
        assert net.parameters == 25_557_032

    def test_stages_of_resnet50(self) -> None:
        shapes = {p.name: p.output for p in self.build("bottleneck", (3, 4, 6, 3)).layers()}
        assert shapes["stem.conv"] == (1, 64, 112, 112)
        assert shapes["stem.pool"] == (1, 64, 56, 56)
        assert shapes["stage1_3.relu3"] == (1, 256, 56, 56)
        assert shapes["stage2_1.conv1"] == (1, 128, 56, 56)
        assert shapes["stage2_1.conv2"] == (1, 128, 28, 28)
        assert shapes["stage4_3.relu3"] == (1, 2048, 7, 7)
        assert "stage1_1.shortcut" in shapes
        assert "stage1_2.shortcut" not in shapes
        assert shapes["head.pool"] == (1, 2048, 1, 1)
        assert shapes["head.flatten"] == (1, 2048)


class TestBlocks:
    def test_builder(self) -> None:
        b = BlockBuilder()
        assert b.input == INPUT == -1
        assert b.add(ReLU()) == 0
        assert b.add(ReLU()) == 1
        assert b.add(Add(), 0, 1) == 2
        assert b.build("pair").nodes == (
            Node("relu1", ReLU(), (-1,)),
            Node("relu2", ReLU(), (0,)),
            Node("add1", Add(), (0, 1)),
        )

    def test_makers_remember(self) -> None:
        assert stem(4) is stem(4)
        assert stem(4) is not stem(8)
        assert stem(4).label == "stem"
        assert repr(stem(4)) == "Block('stem', 4 layers)"

    def test_equality_is_of_content(self) -> None:
        nodes = (Node("relu", ReLU(), (-1,)),)
        assert Block("a", nodes) == Block("a", nodes)
        assert hash(Block("a", nodes)) == hash(Block("a", nodes))
        assert Block("a", nodes) != Block("b", nodes)
        assert Block("a", nodes) != Block("a", (Node("relu2", ReLU(), (-1,)),))
        assert Block("a", nodes) != "a"

    def test_copies_hash_alike_in_other_processes(self) -> None:
        """Hashes of strings differ between processes, so they must not travel."""
        code = (
            "import pickle, sys\n"
            "from tadnn.nets import Block, Node, ReLU\n"
            "own = Block('a', (Node('relu', ReLU(), (-1,)),))\n"
            "assert {own: 1}[pickle.loads(sys.stdin.buffer.read())] == 1\n"
        )
        sent = pickle.dumps(Block("a", (Node("relu", ReLU(), (-1,)),)))
        for seed in ("1", "2"):
            subprocess.run(
                [sys.executable, "-c", code],
                input=sent,
                check=True,
                timeout=60,
                env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(nets.__file__).parents[2])},
            )
        net = small_net()
        assert copy.deepcopy(net) == pickle.loads(pickle.dumps(net)) == net

    @pytest.mark.parametrize(
        ("nodes", "message"),
        [
            ((), "a block has at least one layer; one has none"),
            ((("a", ReLU(), (0,)),), r"layer a takes inputs that come before it; got \(0,\)"),
            ((("a", ReLU(), (-2,)),), "inputs that come before it"),
            ((("a", ReLU(), (1,)), ("b", ReLU(), (0,))), "layer a takes inputs that come before"),
            ((("a", ReLU(), ()),), r"layer a \(ReLU\) takes 1 inputs; got 0"),
            ((("a", Add(), (-1,)),), r"layer a \(Add\) takes 2 inputs; got 1"),
            ((("a", ReLU(), (-1,)), ("a", ReLU(), (0,))), "'a' stands twice"),
            ((("a", ReLU(), (-1,)), ("b", ReLU(), (-1,))), "nothing takes a$"),
        ],
    )
    def test_malformed(self, nodes: tuple[tuple[str, Any, Any], ...], message: str) -> None:
        with pytest.raises(ShapeError, match=message):
            Block("one", tuple(Node(*node) for node in nodes))


class TestNames:
    def test_what_torch_modules_have_is_taken(self) -> None:
        for name in dir(nn.Module()):
            with pytest.raises(ShapeError, match="that torch modules leave free"):
                Block("one", (Node(name, ReLU(), (-1,)),))

    @pytest.mark.parametrize(
        "name",
        ["", "1a", "a-b", "a.b", "a b", "class", "None", "_a", "x", "self", "torch", "ﬁ", "é"],
    )
    def test_what_source_cannot_have_is_refused(self, name: str) -> None:
        node = Node("relu", ReLU(), (-1,))
        with pytest.raises(ShapeError, match="ASCII Python identifiers"):
            Block("one", (Node(name, ReLU(), (-1,)),))
        with pytest.raises(ShapeError, match="ASCII Python identifiers"):
            Block(name, (node,))
        with pytest.raises(ShapeError, match="ASCII Python identifiers"):
            Net.checked((4,), ((name, Block("one", (node,))),))

    def test_odd_names_work_everywhere(self) -> None:
        """Names of builtins, soft keywords and of what the source writes otherwise."""
        odd = [
            "match",
            "Tensor",
            "print",
            "Model",
            "int",
            "values",
            "i",
            "step",
            "inputs",
            "super_",
        ]
        b = BlockBuilder()
        for name in odd:
            last = b.add(Linear(4), name=name)
            b.add(Add(), b.input, last, name=f"{name}_add")
        made = b.build("model")
        net = Net.checked((4,), tuple((name, made) for name in odd))
        module = randomised(net.to_module())
        written = model_of(net.to_source())
        written.load_state_dict(module.state_dict())
        assert torch.equal(run(written, net), run(module, net))

    def test_labels_that_would_share_a_class_name(self) -> None:
        """Eleven blocks of label ``a`` reach A11, which is also ``a1``'s first."""
        blocks = [Block("a", (Node("linear", Linear(width), (-1,)),)) for width in range(1, 13)]
        for label in ("a1", "a_b", "A_b", "aB", "ab"):
            blocks.append(Block(label, (Node("linear", Linear(7), (-1,)), Node("r", ReLU(), (0,)))))
        net = Net.checked((3,), tuple((f"part{i}", b) for i, b in enumerate(blocks)))
        source = net.to_source()
        classes = [n.name for n in ast.parse(source).body if isinstance(n, ast.ClassDef)]
        assert len(classes) == len(set(classes)) == len(blocks) + 1
        module = randomised(net.to_module())
        written = model_of(source)
        written.load_state_dict(module.state_dict())
        assert torch.equal(run(written, net), run(module, net))

    def test_block_names_are_unique(self) -> None:
        for build in (Net.checked, built):
            with pytest.raises(ShapeError, match="block names are unique; stem stands twice"):
                build((3, 16, 16), (("stem", stem(3)), ("stem", stem(3))))


class TestShapes:
    def test_errors_name_block_and_layer(self) -> None:
        with pytest.raises(ShapeError) as caught:
            built((3, 16, 16), (("stem", stem(4)), ("body", residual(8, False))))
        assert str(caught.value) == (
            "block body, layer add (Add): adds two inputs of one shape; "
            "got [1, 8, 8, 8] and [1, 4, 8, 8]"
        )

    def test_errors_deep_in_a_chain(self) -> None:
        blocks = (("stem", stem(4)), ("head", head(10)), ("tail", stem(4)))
        with pytest.raises(ShapeError, match=r"block tail, layer conv \(Conv2d\): .* 4 dimensions"):
            Net.checked((3, 16, 16), blocks)

    @pytest.mark.parametrize(
        "shape", [(), (0,), (3, -1, 8), (3, 8.0, 8), ("3", 8, 8), (True, 8, 8), "388", (None,)]
    )
    def test_input_shapes(self, shape: Any) -> None:
        with pytest.raises(ShapeError, match="an input shape has positive whole sizes"):
            Net(shape, (("stem", stem(4)),))

    def test_no_blocks(self) -> None:
        with pytest.raises(ShapeError, match="at least one block; got none"):
            Net((3, 8, 8), ())

    @pytest.mark.parametrize("batch", [0, -1, 1.5, "2", None])
    def test_batches(self, batch: Any) -> None:
        net = small_net()
        for ask in (net.chain, net.flops, net.peak_activation_bytes, net.output_shape):
            with pytest.raises(RequestError, match="a batch is a whole number of at least 1; got"):
                ask(batch)

    def test_layers(self) -> None:
        placed = list(small_net().layers(batch=2))
        assert [p.name for p in placed][:6] == [
            "stem.conv",
            "stem.norm",
            "stem.relu",
            "stem.pool",
            "stage1_1.conv1",
            "stage1_1.relu1",
        ]
        adds = {p.name: p for p in placed if isinstance(p.layer, Add)}
        assert adds["stage2_1.add"].inputs == ((2, 8, 4, 4), (2, 8, 4, 4))
        assert adds["stage2_1.add"].output == (2, 8, 4, 4)
        assert placed[-1].output == (2, 10)

    def test_asking_again_gives_the_same(self) -> None:
        net = small_net()
        assert net.chain(1) is net.chain(1)
        assert net.chain(2)[0][2] == (2, 3, 16, 16)
        assert net.chain(1)[0][2] == (1, 3, 16, 16)


class TestMemory:
    def test_a_residual_block_by_hand(self) -> None:
        """x [1, 4, 8, 8] is 256 elements and lives until the addition."""
        net = Net.checked((4, 8, 8), (("only", residual(4, False)),))
        # conv1: x and its output; relu1: x, conv1, relu1; conv2 the same; add: x, conv2, sum.
        assert net.peak_activation_bytes() == 4 * 3 * 256
        assert net.peak_activation_bytes(batch=5, dtype="fp16") == 5 * 2 * 3 * 256
        # Two convolutions of 4 x 4 x 3 x 3 weights.
        assert net.memory_bytes() == 4 * (3 * 256 + 2 * 144)

    def test_a_projected_block_by_hand(self) -> None:
        """Width 8 at half the edge: 128 elements a tensor; x (256) lives until the shortcut."""
        net = Net.checked((4, 8, 8), (("only", residual(8, True)),))
        # relu1 and conv2 hold x and two tensors, the shortcut x, conv2's output and its own.
        assert net.peak_activation_bytes() == 4 * (256 + 2 * 128)

    def test_a_wide_middle_by_hand(self) -> None:
        net = single(
            Node("wide", Conv2d(32, 1), (-1,)),
            Node("relu", ReLU(), (0,)),
            Node("narrow", Conv2d(4, 1), (1,)),
        )
        assert net.peak_activation_bytes() == 4 * 2 * 32 * 64  # x is gone at the ReLU

    def test_views_take_nothing(self) -> None:
        net = single(Node("flat", Flatten(), (-1,)))
        assert net.peak_activation_bytes() == 4 * 256
        net = single(Node("flat", Flatten(), (-1,)), Node("linear", Linear(10), (0,)))
        assert net.peak_activation_bytes() == 4 * (256 + 10)
        # The tensor behind a view lives as long as the view.
        net = single(
            Node("relu", ReLU(), (-1,)),
            Node("flat", Flatten(), (0,)),
            Node("linear", Linear(256), (1,)),
            Node("add", Add(), (2, 1)),
        )
        assert net.peak_activation_bytes() == 4 * 3 * 256

    def test_buffers_count(self) -> None:
        net = single(Node("norm", BatchNorm2d(), (-1,)))
        # Scale, shift, mean, variance of 4 channels and the counter of batches.
        assert net.memory_bytes() == 4 * (2 * 256 + 16 + 1)
        module = net.to_module()
        stored = [*module.parameters(), *module.buffers()]
        assert sum(t.numel() for t in stored) == 17

    def test_the_largest_block_decides(self) -> None:
        net = small_net()
        parts = [facts.peak_elements for *_, facts in net.chain()]
        assert net.peak_activation_bytes() == 4 * max(parts)
        assert len(set(parts)) > 2

    def test_unknown_dtype(self) -> None:
        for ask in (small_net().peak_activation_bytes, small_net().memory_bytes):
            with pytest.raises(UnknownName, match="unknown dtype 'fp31'; did you mean 'fp32'"):
                ask(dtype="fp31")

    def test_random_graphs_against_simulated_lives(self) -> None:
        rng = random.Random(0)
        peaks = set()
        for _ in range(300):
            made = random_block(rng)
            facts = block_facts(made, (1, 4, 4, 4))
            assert facts.peak_elements == simulated_peak(made, (1, 4, 4, 4))
            peaks.add(facts.peak_elements)
        assert len(peaks) > 20


def random_block(rng: random.Random) -> Block:
    """A graph of tensors [1, 4, 4, 4] and wider ones; every layer but the last feeds another."""
    nodes: list[Node] = []
    same, unused = [-1], set()

    def add(layer: Any, *inputs: int) -> int:
        nodes.append(Node(f"n{len(nodes)}", layer, inputs))
        unused.difference_update(inputs)
        unused.add(len(nodes) - 1)
        return len(nodes) - 1

    for _ in range(rng.randint(1, 12)):
        kind = rng.randrange(4)
        if kind == 0:
            same.append(add(ReLU(), rng.choice(same)))
        elif kind == 1:
            same.append(add(Add(), rng.choice(same), rng.choice(same)))
        elif kind == 2:
            wide = add(Conv2d(rng.randint(1, 30), 1), rng.choice(same))
            same.append(add(Conv2d(4, 3), wide))
        else:
            pooled = add(MaxPool2d(3, 1, 1), rng.choice(same))
            same.append(add(ReLU(), pooled))
    while len(unused) > 1:
        add(Add(), *rng.sample(sorted(unused), 2))
    if rng.random() < 0.5:
        flat = add(Flatten(), len(nodes) - 1)
        if rng.random() < 0.5:
            add(Add(), flat, add(Linear(64), flat))
    return Block("random", tuple(nodes))


def simulated_peak(made: Block, shape: tuple[int, ...]) -> int:
    """Ask at every step, for every tensor, whether it exists already and is still needed."""
    outputs = block_facts(made, shape).outputs
    memory = {-1: math.prod(shape)}
    behind = {-1: -1}
    for i, node in enumerate(made.nodes):
        if isinstance(node.layer, Flatten):
            behind[i] = behind[node.inputs[0]]
        else:
            behind[i] = i
            memory[i] = math.prod(outputs[i])
    result, peak = len(made.nodes) - 1, memory[-1]
    for step in range(len(made.nodes)):
        needed = {behind[result]} if behind[result] <= step else set()
        needed.add(behind[step])
        for later in made.nodes[step:]:
            needed |= {behind[i] for i in later.inputs if i < step}
        peak = max(peak, sum(memory[i] for i in needed))
    return peak


class TestLowering:
    def test_kernels_are_the_layers_own(self) -> None:
        net, runtime = small_net(), find_runtime("torch-eager")
        for batch in (1, 4):
            kernels = lower_net(net, batch, "fp16", runtime)
            assert sum(kernel.flops for kernel in kernels) == net.flops(batch)
            assert all(Kernel.parse(k.key) == k and k.dtype == "fp16" for k in kernels)
            launched = [p for p in net.layers(batch) if not p.layer.is_view]
            assert len(kernels) == len(launched)


class TestCaches:
    def test_are_bounded(self) -> None:
        assert block_facts.cache_info().maxsize == 65536
        assert stem.cache_info().maxsize == 16384  # type: ignore[attr-defined]
