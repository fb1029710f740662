"""Residual networks: block type, and per stage the depth, width and each block's kernel.

Widths are the number of channels of a stage (inside the block for bottlenecks,
whose output is four times as wide), so ResNet-18 is basic, depths 2-2-2-2,
widths 64-128-256-512, kernels 3; ResNet-50 the same widths with bottleneck
blocks and depths 3-4-6-3 (He et al. 2016, table 1).

Images with an edge of at most 64 keep their size in the stem (3x3, stride 1);
larger ones go through the 7x7 stem with stride 2 and a max pool, as published.
"""

from tadnn.nets import (
    Add,
    BatchNorm2d,
    Conv2d,
    Flatten,
    GlobalAvgPool,
    Linear,
    MaxPool2d,
    NetBuilder,
    ReLU,
    block,
)
from tadnn.spaces import Categorical, Int

STAGES = (1, 2, 3, 4)
MAX_DEPTH = 6
EXPANSION = 4

default_input = (3, 224, 224)
default_classes = 1000

choices = {"block": Categorical("basic", "bottleneck")}
for stage in STAGES:
    choices[f"depth{stage}"] = Int(1, MAX_DEPTH, group="depth")
    choices[f"width{stage}"] = Int(8, 512, step=8, group="width")
    for i in range(1, MAX_DEPTH + 1):
        deep_enough = {f"depth{stage}": tuple(range(i, MAX_DEPTH + 1))}
        choices[f"kernel{stage}_{i}"] = Categorical(3, 5, when=deep_enough, group="kernel")


@block
def stem(b, width, small):
    if small:
        b.add(Conv2d(width, 3), b.input, name="conv")
    else:
        b.add(Conv2d(width, 7, stride=2, padding=3), b.input, name="conv")
    b.add(BatchNorm2d(), name="norm")
    b.add(ReLU(), name="relu")
    if not small:
        b.add(MaxPool2d(3, stride=2, padding=1), name="pool")


def _shortcut(b, width, stride, project):
    if not project:
        return b.input
    b.add(Conv2d(width, 1, stride=stride, padding=0), b.input, name="shortcut")
    return b.add(BatchNorm2d(), name="shortcut_norm")


@block
def basic(b, width, kernel, stride, project):
    b.add(Conv2d(width, kernel, stride=stride), b.input, name="conv1")
    b.add(BatchNorm2d(), name="norm1")
    b.add(ReLU(), name="relu1")
    b.add(Conv2d(width, kernel), name="conv2")
    main = b.add(BatchNorm2d(), name="norm2")
    b.add(Add(), main, _shortcut(b, width, stride, project), name="add")
    b.add(ReLU(), name="relu2")


@block
def bottleneck(b, width, kernel, stride, project):
    b.add(Conv2d(width, 1), b.input, name="conv1")
    b.add(BatchNorm2d(), name="norm1")
    b.add(ReLU(), name="relu1")
    b.add(Conv2d(width, kernel, stride=stride), name="conv2")
    b.add(BatchNorm2d(), name="norm2")
    b.add(ReLU(), name="relu2")
    b.add(Conv2d(width * EXPANSION, 1), name="conv3")
    main = b.add(BatchNorm2d(), name="norm3")
    out = _shortcut(b, width * EXPANSION, stride, project)
    b.add(Add(), main, out, name="add")
    b.add(ReLU(), name="relu3")


@block
def head(b, classes):
    b.add(GlobalAvgPool(), b.input, name="pool")
    b.add(Flatten(), name="flatten")
    b.add(Linear(classes), name="classifier")


def build(arch, input_shape, classes):
    make, expansion = (basic, 1) if arch["block"] == "basic" else (bottleneck, EXPANSION)
    net = NetBuilder(input_shape)
    channels = arch["width1"]
    net.add("stem", stem(channels, min(input_shape[1:]) <= 64))
    for stage in STAGES:
        width = arch[f"width{stage}"]
        for i in range(1, arch[f"depth{stage}"] + 1):
            stride = 2 if i == 1 and stage > 1 else 1
            project = stride > 1 or channels != width * expansion
            net.add(
                f"stage{stage}_{i}",
                make(width, arch[f"kernel{stage}_{i}"], stride, project),
            )
            channels = width * expansion
    net.add("head", head(classes))
    return net.build()
