"""Vision transformers: depth, width, patch, pooling, and each layer's heads and MLP ratio.

Pre-norm encoder layers over square patches with learned positions (Dosovitskiy et al. 2021).
Width, heads and head width are independent: attention works in heads x head width and projects
back to the width, so every combination is valid (Chen et al. 2021, AutoFormer, do so too, and
vary heads and MLP ratio by layer).

ViT-B/16 is depth 12, width 768, heads 12 of width 64, MLP ratio 4, patch 16, class token;
DeiT-tiny (Touvron et al. 2021) the same with width 192 and heads 3.

The patch must divide the image's height and width; a patch that doesn't is refused. At 32x32
override ``patch: [4, 8]``, at 28x28 ``patch: [4, 7]``.
"""

from tadnn.errors import ShapeError
from tadnn.nets import (
    GELU,
    Add,
    Attention,
    ClassToken,
    Conv2d,
    LayerNorm,
    Linear,
    NetBuilder,
    Permute,
    PositionEmbedding,
    Reshape,
    Select,
    TokenMean,
    block,
)
from tadnn.spaces import Categorical, Int

MAX_DEPTH = 16
PATCHES = (4, 7, 8, 14, 16, 32)

default_input = (3, 224, 224)
default_classes = 1000

choices = {
    "patch": Categorical(*PATCHES),
    "pooling": Categorical("class_token", "mean"),
    "width": Int(32, 1024, step=16),
    "head_width": Categorical(16, 32, 64),
    "depth": Int(1, MAX_DEPTH),
}
for i in range(1, MAX_DEPTH + 1):
    deep_enough = {"depth": tuple(range(i, MAX_DEPTH + 1))}
    choices[f"heads{i}"] = Int(1, 16, when=deep_enough, group="heads")
    choices[f"mlp{i}"] = Int(1, 4, when=deep_enough, group="mlp")


@block
def embedding(b, width, patch, tokens, pooling):
    b.add(Conv2d(width, patch, stride=patch, padding=0, bias=True), b.input, name="patches")
    b.add(Reshape((width, tokens)), name="rows")
    b.add(Permute((0, 2, 1)), name="tokens")
    if pooling == "class_token":
        b.add(ClassToken(), name="class_token")
    b.add(PositionEmbedding(), name="positions")


@block
def attention(b, heads, head_width):
    b.add(LayerNorm(), b.input, name="norm")
    main = b.add(Attention(heads, head_width=head_width), name="attention")
    b.add(Add(), main, b.input, name="add")


@block
def mlp(b, width, ratio):
    b.add(LayerNorm(), b.input, name="norm")
    b.add(Linear(width * ratio), name="expand")
    b.add(GELU(), name="gelu")
    main = b.add(Linear(width), name="project")
    b.add(Add(), main, b.input, name="add")


@block
def head(b, pooling, classes):
    b.add(LayerNorm(), b.input, name="norm")
    b.add(Select(1, 0) if pooling == "class_token" else TokenMean(), name="pool")
    b.add(Linear(classes), name="classifier")


def build(arch, input_shape, classes):
    patch, pooling, width = arch["patch"], arch["pooling"], arch["width"]
    height, breadth = input_shape[1:]
    if height % patch or breadth % patch:
        fit = [p for p in PATCHES if height % p == 0 and breadth % p == 0]
        raise ShapeError(
            f"patch divides the image's height and width; got patch {patch} for "
            f"{height}x{breadth}. Valid: {', '.join(map(str, fit)) or 'none'} "
            f"(overrides: {{patch: {fit}}})."
        )
    net = NetBuilder(input_shape)
    tokens = (height // patch) * (breadth // patch)
    net.add("embedding", embedding(width, patch, tokens, pooling))
    for i in range(1, arch["depth"] + 1):
        net.add(f"layer{i}_attention", attention(arch[f"heads{i}"], arch["head_width"]))
        net.add(f"layer{i}_mlp", mlp(width, arch[f"mlp{i}"]))
    net.add("head", head(pooling, classes))
    return net.build()
