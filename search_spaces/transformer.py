"""Decoder language models: layers, width, heads, key-value heads, feed-forward, sequence length.

Pre-norm decoder layers with causal attention, learned positions and a GELU feed-forward
(Radford et al. 2019), whose query heads may share keys and values (Ainslie et al. 2023,
grouped-query attention): ``kv_heads`` of them, each for ``queries`` query heads, so there are
kv_heads x queries heads in all and every combination is valid, whatever the width. GPT-2 is 12
layers, width 768, kv_heads 12, queries 1, head width 64, feed-forward 3072, sequence 1024; its
output layer is its embedding, here they are two.

The network is the *prefill*: it reads ``sequence`` tokens and gives the next token's scores over
the vocabulary (the classes). The input is token numbers, [sequence]; an ``input_shape`` says how
long a sequence may be at most.

Its phase ``decode`` is one step of generation: it takes the last of those tokens alone, [1],
attends to the cached keys and values of the ``sequence - 1`` before it, and gives the same scores.
The weights are those of the prefill, with the last row of its positions. Phases have latencies:
``decode_latency`` may be an objective beside ``latency``.
"""

from tadnn.errors import ShapeError
from tadnn.nets import (
    GELU,
    Add,
    Attention,
    CachedAttention,
    Embedding,
    LayerNorm,
    Linear,
    NetBuilder,
    PositionEmbedding,
    Select,
    block,
)
from tadnn.spaces import Categorical, Int

SEQUENCES = (16, 32, 64, 128, 256, 512, 1024, 2048)

default_input = (2048,)
default_classes = 32000

choices = {
    "sequence": Categorical(*SEQUENCES),
    "layers": Int(1, 24),
    "width": Int(64, 2048, step=32),
    "kv_heads": Categorical(1, 2, 3, 4, 6, 8, 12, 16),
    "queries": Categorical(1, 2, 4, 8),
    "head_width": Categorical(32, 64, 128),
    "feed_forward": Int(64, 8192, step=64),
}


@block
def embedding(b, vocabulary, width):
    b.add(Embedding(vocabulary, width), b.input, name="embedding")
    b.add(PositionEmbedding(), name="positions")


@block
def attention(b, heads, kv_heads, head_width):
    b.add(LayerNorm(), b.input, name="norm")
    attend = Attention(heads, head_width=head_width, kv_heads=kv_heads, causal=True)
    main = b.add(attend, name="attention")
    b.add(Add(), main, b.input, name="add")


@block
def cached_attention(b, heads, kv_heads, head_width, context):
    b.add(LayerNorm(), b.input, name="norm")
    attend = CachedAttention(heads, context, head_width=head_width, kv_heads=kv_heads)
    main = b.add(attend, name="attention")
    b.add(Add(), main, b.input, name="add")


@block
def feed_forward(b, width, hidden):
    b.add(LayerNorm(), b.input, name="norm")
    b.add(Linear(hidden), name="expand")
    b.add(GELU(), name="gelu")
    main = b.add(Linear(width), name="project")
    b.add(Add(), main, b.input, name="add")


@block
def head(b, last, vocabulary):
    b.add(Select(1, last), b.input, name="last")  # only the last position chooses a token
    b.add(LayerNorm(), name="norm")
    b.add(Linear(vocabulary, bias=False), name="classifier")


def build(arch, input_shape, classes):
    sequence = checked_sequence(arch, input_shape)
    layer = attention(heads(arch), arch["kv_heads"], arch["head_width"])
    return network(arch, sequence, layer, classes)


def build_decode(arch, input_shape, classes):
    context = checked_sequence(arch, input_shape) - 1
    layer = cached_attention(heads(arch), arch["kv_heads"], arch["head_width"], context)
    return network(arch, 1, layer, classes)


phases = {"decode": build_decode}


def heads(arch):
    return arch["kv_heads"] * arch["queries"]


def checked_sequence(arch, input_shape):
    sequence = arch["sequence"]
    if len(input_shape) != 1 or sequence > input_shape[0]:
        fit = [s for s in SEQUENCES if s <= input_shape[0]] if len(input_shape) == 1 else []
        raise ShapeError(
            f"the input shape of a language model is [the greatest sequence length], and sequence "
            f"is at most that; got {list(input_shape)} and sequence {sequence}. "
            f"Valid sequences: {', '.join(map(str, fit)) or 'none'}."
        )
    return sequence


def network(arch, tokens, attend, classes):
    net = NetBuilder((tokens,))
    net.add("embedding", embedding(classes, arch["width"]))
    for i in range(1, arch["layers"] + 1):
        net.add(f"layer{i}_attention", attend)
        net.add(f"layer{i}_feed_forward", feed_forward(arch["width"], arch["feed_forward"]))
    net.add("head", head(tokens - 1, classes))
    return net.build()
