"""How the stored tensors of a layer follow widths, by the class of layer.

Adding a rule is adding one function and one entry to ``_RULES``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tadnn.nets import Layer
from tadnn.nets.layers import (
    Attention,
    BatchNorm2d,
    ClassToken,
    Conv1d,
    Conv2d,
    ConvTranspose2d,
    DepthwiseConv2d,
    Embedding,
    GroupNorm,
    LayerNorm,
    Linear,
    PositionEmbedding,
    PReLU,
    RMSNorm,
    Stored,
)
from tadnn.tail.axes import Axes, LayerAt, Segment, fixed, length
from tadnn.tail.flow import Flow


@dataclass(frozen=True)
class Parameter:
    """How one stored tensor of a layer follows widths.

    Attributes:
        name: in the layer's module, such as ``weight``.
        axes: whose channels each dimension's entries are; the rest of the dimensions stay.
        fill: of new entries: ``filter`` draws them like the others, a number is that number.
        reads: which dimension runs over what the layer reads; old outputs start with zeros there.
        parts: into how many groups the second dimension was cut (a grouped convolution).
    """

    name: str
    axes: Axes
    fill: str | float = "filter"
    reads: int | None = None
    parts: int = 1


def parameters_of(flow: Flow, at: LayerAt) -> tuple[Parameter, ...]:
    """Return how the stored tensors of a layer follow widths; none where none does."""
    layer = flow.net.blocks[at[0]][1].nodes[at[1]].layer
    rule = _RULES.get(type(layer))
    return rule(flow, at, layer) if rule is not None else ()


_Rule = Callable[[Flow, LayerAt, Any], tuple[Parameter, ...]]


def _convolution(flow: Flow, at: LayerAt, layer: Any) -> tuple[Parameter, ...]:
    into, out = flow.inputs[at][0][1], flow.outputs[at][1]
    if isinstance(layer, DepthwiseConv2d) or layer.groups == length(into) == length(out):
        return (Parameter("weight", (out,)), Parameter("bias", (out,), 0.0))
    if isinstance(layer, ConvTranspose2d):
        if layer.groups > 1:
            return ()
        return (Parameter("weight", (into, out), reads=0), Parameter("bias", (out,), 0.0))
    weight = Parameter("weight", (out, into), reads=1, parts=layer.groups)
    return (weight, Parameter("bias", (out,), 0.0))


def _linear(flow: Flow, at: LayerAt, layer: Any) -> tuple[Parameter, ...]:
    into, out = flow.inputs[at][0][-1], flow.outputs[at][-1]
    return (Parameter("weight", (out, into), reads=1), Parameter("bias", (out,), 0.0))


def _batch_norm(flow: Flow, at: LayerAt, layer: Any) -> tuple[Parameter, ...]:
    axes = (flow.inputs[at][0][1],)
    ones, zeros = ("weight", "running_var"), ("bias", "running_mean")
    return (
        *(Parameter(name, axes, 1.0) for name in ones),
        *(Parameter(name, axes, 0.0) for name in zeros),
    )


def _group_norm(flow: Flow, at: LayerAt, layer: Any) -> tuple[Parameter, ...]:
    return _scale_and_shift((flow.inputs[at][0][1],))


def _last_norm(flow: Flow, at: LayerAt, layer: Any) -> tuple[Parameter, ...]:
    dims = layer.dims if isinstance(layer, LayerNorm) else 1
    return _scale_and_shift(flow.inputs[at][0][-dims:])


def _scale_and_shift(axes: Axes) -> tuple[Parameter, ...]:
    return (Parameter("weight", axes, 1.0), Parameter("bias", axes, 0.0))


def _prelu(flow: Flow, at: LayerAt, layer: Any) -> tuple[Parameter, ...]:
    return (Parameter("weight", (flow.inputs[at][0][1],), 0.25),) if layer.per_channel else ()


def _stored(flow: Flow, at: LayerAt, layer: Any) -> tuple[Parameter, ...]:
    axes = flow.outputs[at]
    return (
        Parameter("value", (fixed(layer.shape[0]), *axes[1:]) if layer.per_input else axes, 1.0),
    )


def _embedding(flow: Flow, at: LayerAt, layer: Any) -> tuple[Parameter, ...]:
    return (Parameter("weight", (fixed(layer.count), flow.outputs[at][-1]), 0.0),)


def _tokens(flow: Flow, at: LayerAt, layer: Any) -> tuple[Parameter, ...]:
    """(1, tokens, width): one for all positions, or one each."""
    _, tokens, width = flow.outputs[at]
    every = tokens if isinstance(layer, PositionEmbedding) else fixed(1)
    return (Parameter("weight", (fixed(1), every, width), 0.0),)


def _attention(flow: Flow, at: LayerAt, layer: Any) -> tuple[Parameter, ...]:
    tokens = flow.inputs[at][0][-1]
    head = layer.head_width or length(tokens) // layer.heads
    ((_, group),) = flow.fields[at]
    queries = Segment(group, layer.heads, head)
    pairs = fixed(2 * layer.kv_heads * head) if layer.kv_heads else (queries, queries)
    return (
        Parameter("qkv.weight", ((queries, *pairs), tokens), reads=1),
        Parameter("qkv.bias", ((queries, *pairs),), 0.0),
        Parameter("out.weight", (tokens, (queries,)), reads=1),
        Parameter("out.bias", (tokens,), 0.0),
    )


_RULES: Final[dict[type[Layer], _Rule]] = {
    **dict.fromkeys((Conv1d, Conv2d, ConvTranspose2d, DepthwiseConv2d), _convolution),
    Attention: _attention,
    BatchNorm2d: _batch_norm,
    ClassToken: _tokens,
    Embedding: _embedding,
    GroupNorm: _group_norm,
    LayerNorm: _last_norm,
    Linear: _linear,
    PositionEmbedding: _tokens,
    PReLU: _prelu,
    RMSNorm: _last_norm,
    Stored: _stored,
}
