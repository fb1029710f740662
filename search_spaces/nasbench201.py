"""The cells of NAS-Bench-201: four nodes, an operation on each of the six edges between them.

Node 0 is a cell's input, node 3 its output; a node is the sum of its edges, ``edge0_1`` is the one
from node 0 to node 1. Three stages of five such cells at 16, 32 and 64 channels, a residual block
that halves the image between them (Dong & Yang 2020, figure 1). All 15,625 points of the benchmark
are points here, with its parameter counts: isomorphic cells are told apart as it does, an edge
``none`` multiplies by zero, and what only such edges read is built all the same.

That zero has to be computed, because layers have no constants: once in every cell with an edge
``none``, in eight launches on one number per channel. Latencies of such cells include these.

``arch_of`` and ``text_of`` convert from and to the benchmark's strings::

    |nor_conv_3x3~0|+|nor_conv_3x3~0|avg_pool_3x3~1|+|skip_connect~0|none~1|nor_conv_1x1~2|
"""

import re

from tadnn.errors import ArchitectureError, ShapeError
from tadnn.nets import (
    Add,
    AvgPool2d,
    BatchNorm2d,
    Concat,
    Conv2d,
    Flatten,
    GlobalAvgPool,
    Linear,
    Mul,
    NetBuilder,
    ReLU,
    Reshape,
    Select,
    Softmax,
    block,
)
from tadnn.spaces import Categorical

OPS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
EDGES = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))  # in the order of the strings
WIDTHS = (16, 32, 64)
CELLS = 5

default_input = (3, 32, 32)
default_classes = 10

choices = {f"edge{i}_{j}": Categorical(*OPS, group="edge") for i, j in EDGES}


def text_of(arch):
    """Return the benchmark's string of an architecture."""
    nodes = [[f"{arch[f'edge{i}_{j}']}~{i}" for i in range(j)] for j in (1, 2, 3)]
    return "+".join(f"|{'|'.join(edges)}|" for edges in nodes)


def arch_of(text):
    """Return the architecture of one of the benchmark's strings.

    Raises:
        ArchitectureError: it isn't one.
    """
    ops = re.findall(r"(\w+)~\d", text)
    arch = dict(zip(choices, ops, strict=False))
    if len(ops) != len(EDGES) or not set(ops) <= set(OPS) or text_of(arch) != text:
        raise ArchitectureError(
            "a cell reads |op~0|+|op~0|op~1|+|op~0|op~1|op~2|, each op one of "
            f"{', '.join(OPS)}; got {text!r}"
        )
    return arch


def _relu_conv_norm(b, source, name, width, kernel, stride=1):
    b.add(ReLU(), source, name=f"{name}_relu")
    b.add(Conv2d(width, kernel, stride=stride), name=f"{name}_conv")
    return b.add(BatchNorm2d(), name=f"{name}_norm")


def _zero(b, width):
    """Return a zero for every channel, [n, width, 1, 1]: exp(1 - 256), 0 up to single precision."""
    b.add(GlobalAvgPool(), b.input, name="zero_pool")
    one = b.add(Softmax(2), name="zero_one")  # over a dimension of size 1
    power = b.add(Add(), one, one, name="zero_two")
    for name in ("zero_four", "zero_16", "zero_256"):
        power = b.add(Mul(), power, power, name=name)
    b.add(Concat(2), one, power, name="zero_pair")
    b.add(Softmax(2), name="zero_softmax")
    b.add(Select(2, 0), name="zero_first")
    return b.add(Reshape((width, 1, 1)), name="zero")


def _edge(b, source, name, op, width, zero):
    if op == "none":
        return b.add(Mul(), source, zero, name=f"{name}_none")
    if op == "skip_connect":
        return source
    if op == "avg_pool_3x3":
        pool = AvgPool2d(3, stride=1, padding=1, count_include_pad=False)
        return b.add(pool, source, name=f"{name}_pool")
    return _relu_conv_norm(b, source, name, width, 1 if op == "nor_conv_1x1" else 3)


@block
def stem(b, width):
    b.add(Conv2d(width, 3), b.input, name="conv")
    b.add(BatchNorm2d(), name="norm")


@block
def cell(b, width, ops):
    nodes = [b.input]
    zero = _zero(b, width) if "none" in ops else None
    for node in (1, 2, 3):
        total = None
        for (i, j), op in zip(EDGES, ops, strict=True):
            if j == node:
                out = _edge(b, nodes[i], f"edge{i}_{j}", op, width, zero)
                name = f"node{node}_{i}"
                total = out if total is None else b.add(Add(), total, out, name=name)
        nodes.append(total)


@block
def reduction(b, width):
    half = _relu_conv_norm(b, b.input, "a", width, 3, stride=2)
    main = _relu_conv_norm(b, half, "b", width, 3)
    b.add(AvgPool2d(2, stride=2), b.input, name="shortcut_pool")
    shortcut = b.add(Conv2d(width, 1), name="shortcut_conv")
    b.add(Add(), main, shortcut, name="add")


@block
def head(b, classes):
    b.add(BatchNorm2d(), b.input, name="norm")
    b.add(ReLU(), name="relu")
    b.add(GlobalAvgPool(), name="pool")
    b.add(Flatten(), name="flatten")
    b.add(Linear(classes), name="classifier")


def build(arch, input_shape, classes):
    if any(size % 4 for size in input_shape[1:]):
        raise ShapeError(
            "images of this space are halved twice, so height and width are multiples of 4; "
            f"got {list(input_shape)}"
        )
    ops = tuple(arch[name] for name in choices)
    net = NetBuilder(input_shape)
    net.add("stem", stem(WIDTHS[0]))
    for stage, width in enumerate(WIDTHS, 1):
        if stage > 1:
            net.add(f"reduction{stage}", reduction(width))
        for i in range(1, CELLS + 1):
            net.add(f"cell{stage}_{i}", cell(width, ops))
    net.add("head", head(classes))
    return net.build()
