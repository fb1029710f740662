"""Inverted bottlenecks: depths, widths, and each block's expansion, kernel, squeeze-excite.

A block widens its input (1x1), filters it per channel (3x3 or 5x5), may weigh the channels
by squeeze-excite, and narrows again (1x1) without an activation; where it keeps size and width
its input is added (Sandler et al. 2018, table 1; Howard et al. 2019, figure 4; Tan & Le 2019,
table 1). An expansion of 1 has no first 1x1. Squeeze-excite narrows to a quarter of the block's
*input* channels, as EfficientNet does; its gate is a sigmoid, beside hard-swish a hard one.

MobileNetV2 is relu6, stem 32, depths 1-2-3-4-3-3-1, widths 16-24-32-64-96-160-320, kernels 3,
expansions 1 in stage 1 and 6 elsewhere, no squeeze-excite, head 1280. EfficientNet-B0 is silu,
depths 1-2-2-3-3-4-1, widths 16-24-40-80-112-192-320, kernels 3-3-5-3-5-5-3, squeeze-excite.

Images with an edge of at most 64 keep their size in the stem; larger ones are halved there.
"""

from tadnn.nets import (
    Add,
    BatchNorm2d,
    Conv2d,
    DepthwiseConv2d,
    Flatten,
    GlobalAvgPool,
    HardSigmoid,
    HardSwish,
    Linear,
    Mul,
    NetBuilder,
    ReLU6,
    Sigmoid,
    SiLU,
    block,
)
from tadnn.spaces import Categorical, Int

STRIDES = {1: 1, 2: 2, 3: 2, 4: 2, 5: 1, 6: 2, 7: 1}  # of each stage's first block
WIDEST = {1: 48, 2: 64, 3: 96, 4: 192, 5: 256, 6: 384, 7: 512}
MAX_DEPTH = 4
SQUEEZE = 4
ACTIVATIONS = {"relu6": ReLU6(), "silu": SiLU(), "hard_swish": HardSwish()}
GATES = {"relu6": Sigmoid(), "silu": Sigmoid(), "hard_swish": HardSigmoid()}

default_input = (3, 224, 224)
default_classes = 1000

choices = {
    "activation": Categorical(*ACTIVATIONS),
    "stem": Int(8, 64, step=8),
}
for stage in STRIDES:
    choices[f"depth{stage}"] = Int(1, MAX_DEPTH, group="depth")
    choices[f"width{stage}"] = Int(8, WIDEST[stage], step=8, group="width")
    for i in range(1, MAX_DEPTH + 1):
        deep = {f"depth{stage}": tuple(range(i, MAX_DEPTH + 1))}
        choices[f"expansion{stage}_{i}"] = Int(1, 6, when=deep, group="expansion")
        choices[f"kernel{stage}_{i}"] = Categorical(3, 5, when=deep, group="kernel")
        choices[f"squeeze{stage}_{i}"] = Categorical(False, True, when=deep, group="squeeze")
choices["head"] = Int(32, 1536, step=32)


@block
def stem(b, width, activation, stride):
    b.add(Conv2d(width, 3, stride=stride), b.input, name="conv")
    b.add(BatchNorm2d(), name="norm")
    b.add(ACTIVATIONS[activation], name="act")


def _widen(b, channels, expansion, kernel, squeeze, activation, stride):
    out = b.input
    if expansion > 1:
        b.add(Conv2d(channels * expansion, 1), b.input, name="expand")
        b.add(BatchNorm2d(), name="expand_norm")
        out = b.add(ACTIVATIONS[activation], name="expand_act")
    b.add(DepthwiseConv2d(kernel, stride=stride), out, name="depthwise")
    b.add(BatchNorm2d(), name="depthwise_norm")
    wide = b.add(ACTIVATIONS[activation], name="depthwise_act")
    if squeeze:
        b.add(GlobalAvgPool(), name="squeeze_pool")
        b.add(Conv2d(max(1, channels // SQUEEZE), 1, bias=True), name="squeeze")
        b.add(ACTIVATIONS[activation], name="squeeze_act")
        b.add(Conv2d(channels * expansion, 1, bias=True), name="excite")
        gate = b.add(GATES[activation], name="gate")
        b.add(Mul(), wide, gate, name="scale")


def _narrow(b, width):
    b.add(Conv2d(width, 1), name="project")
    return b.add(BatchNorm2d(), name="project_norm")


@block
def inverted(b, width, expansion, kernel, squeeze, activation):
    _widen(b, width, expansion, kernel, squeeze, activation, 1)
    b.add(Add(), _narrow(b, width), b.input, name="add")


# Without an addition nothing holds a block together, and its halves recur far more often than
# their combinations: they are remembered apart, which is what makes scoring fast.
@block
def widen(b, channels, expansion, kernel, squeeze, activation, stride):
    _widen(b, channels, expansion, kernel, squeeze, activation, stride)


@block
def narrow(b, width):
    _narrow(b, width)


@block
def head(b, width, activation, classes):
    b.add(Conv2d(width, 1), b.input, name="conv")
    b.add(BatchNorm2d(), name="norm")
    b.add(ACTIVATIONS[activation], name="act")
    b.add(GlobalAvgPool(), name="pool")
    b.add(Flatten(), name="flatten")
    b.add(Linear(classes), name="classifier")


def build(arch, input_shape, classes):
    activation, channels = arch["activation"], arch["stem"]
    net = NetBuilder(input_shape)
    net.add("stem", stem(channels, activation, 1 if min(input_shape[1:]) <= 64 else 2))
    for stage, first_stride in STRIDES.items():
        width = arch[f"width{stage}"]
        for i in range(1, arch[f"depth{stage}"] + 1):
            at = f"{stage}_{i}"
            parts = (arch[f"expansion{at}"], arch[f"kernel{at}"], arch[f"squeeze{at}"], activation)
            stride = first_stride if i == 1 else 1
            if stride == 1 and channels == width:
                net.add(f"stage{at}", inverted(width, *parts))
            else:
                net.add(f"stage{at}_wide", widen(channels, *parts, stride))
                net.add(f"stage{at}_narrow", narrow(width))
            channels = width
    net.add("head", head(arch["head"], activation, classes))
    return net.build()
