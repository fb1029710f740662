"""A network as an ONNX graph for one batch size, written layer by layer.

Every layer becomes the operators that torch's exporter writes for it (see
:mod:`tadnn.nets.onnx`), so a runtime optimises and runs it as it would the exported file;
writing them takes milliseconds where the exporter takes seconds, and no torch. A layer's
output has the layer's name, ``block.layer``; what lies inside a layer is named
``block.layer/part``. A test compares both routes for every layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import onnx

from tadnn.errors import RequestError
from tadnn.nets import INPUT, Layer, Net, Shape, layers
from tadnn.runtimes.onnx_writer import GraphWriter, Weights

_EPSILON: Final = 1e-5


def lacking_layers(net: Net) -> list[str]:
    """Return the names of the layer classes that can't be written here."""
    kinds = {type(placed.layer) for placed in net.layers()}
    return sorted(kind.__name__ for kind in kinds - _WRITERS.keys())


def net_to_onnx(net: Net, batch: int, weights: Weights | None = None) -> onnx.ModelProto:
    """Return a network as ONNX; its input is ``input`` and its output ``output``.

    Args:
        net: the network.
        batch: the fixed batch size.
        weights: by the names of :meth:`Net.to_module`'s state; absent, random ones under which
            activations keep their variance.

    Raises:
        RequestError: a layer can't be written.
    """
    if lacking := lacking_layers(net):
        raise RequestError(f"the ONNX writer doesn't know the layers {', '.join(lacking)}")
    graph = GraphWriter(weights)
    value = "input"
    for name, block, _, facts in net.chain(batch):
        values = {INPUT: value}
        for i, node in enumerate(block.nodes):
            graph.at = f"{name}.{node.name}"
            taken = [values[j] for j in node.inputs]
            values[i] = graph.at
            _WRITERS[type(node.layer)](graph, node.layer, taken, facts.inputs[i], facts.outputs[i])
        value = values[len(block.nodes) - 1]
    graph.identity(value, "output")
    return graph.model(
        (batch, *net.input_shape), net.output_shape(batch), whole=net.input_dtype == "int64"
    )


Writer = Callable[[GraphWriter, Any, list[str], tuple[Shape, ...], Shape], object]


def _plain(op: str, **attributes: Any) -> Writer:
    return lambda g, layer, taken, shapes, out: g.add(op, taken, **attributes)


def _reshape(g: GraphWriter, value: str, shape: Sequence[int], part: str = "") -> str:
    return g.add("Reshape", [value, g.numbers(list(shape))], part, allowzero=1)


def _conv(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> None:
    recipe = layer.torch(*shapes)
    rank = len(shapes[0]) - 2
    kwargs = dict(recipe.kwargs)
    groups = kwargs.get("groups", 1)
    window = _spread(recipe.args[2], rank)
    attributes = {
        "group": groups,
        "auto_pad": "NOTSET",
        "kernel_shape": window,
        "strides": _spread(kwargs.get("stride", 1), rank),
        "pads": 2 * _spread(kwargs.get("padding", 0), rank),
        "dilations": _spread(kwargs.get("dilation", 1), rank),
    }
    channels, outputs = shapes[0][1], out[1]
    transposed = isinstance(layer, layers.ConvTranspose2d)
    if transposed:
        attributes["output_padding"] = _spread(kwargs.get("output_padding", 0), rank)
        weight = (channels, outputs // groups, *window)
    else:
        weight = (outputs, channels // groups, *window)
    inputs = [*taken, g.weight("weight", weight)]
    if layer.bias:
        inputs.append(g.weight("bias", (outputs,)))
    g.add("ConvTranspose" if transposed else "Conv", inputs, **attributes)


def _spread(value: int | tuple[int, ...], rank: int) -> list[int]:
    return list(value) if isinstance(value, tuple) else [value] * rank


def _linear(
    g: GraphWriter,
    value: str,
    name: str,
    rank: int,
    sizes: tuple[int, int],
    bias: bool,
    part: str = "",
) -> str:
    """Write a projection as the exporter does: Gemm for matrices, else MatMul and Add."""
    prefix = f"{name}." if name else ""
    out = sizes[0]
    if rank == 2:
        inputs = [value, g.weight(f"{prefix}weight", sizes)]
        if bias:
            inputs.append(g.weight(f"{prefix}bias", (out,)))
        return g.add("Gemm", inputs, part, alpha=1.0, beta=1.0, transA=0, transB=1)
    inputs = [value, g.weight(f"{prefix}weight", sizes, transposed=True)]
    if not bias:
        return g.add("MatMul", inputs, part)
    product = g.add("MatMul", inputs, f"{name or 'out'}_matmul")
    return g.add("Add", [product, g.weight(f"{prefix}bias", (out,))], part)


def _linear_layer(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> None:
    _linear(g, taken[0], "", len(out), (out[-1], shapes[0][-1]), layer.bias)


def _attention(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> None:
    n, t, width = out
    heads, head, kv = layer.heads, layer.torch(*shapes).args[2], layer.torch(*shapes).args[3]
    total = heads + 2 * kv
    joint = _linear(g, taken[0], "qkv", 3, (total * head, width), layer.qkv_bias, "qkv")
    joint = _reshape(g, joint, (n, t, total, head), "view")
    joint = g.add("Transpose", [joint], "heads", perm=[0, 2, 1, 3])
    query, key, value = g.split(joint, ("query", "key", "value"), (heads, kv, kv), 1)
    if kv != heads:
        shared = heads // kv
        key, value = (_repeated(g, x, (n, kv, shared, t, head)) for x in (key, value))
    key = _reshape(g, key, (-1, t, head), "key_rows")
    key = g.add("Transpose", [key], "key_transposed", perm=[0, 2, 1])
    key = _reshape(g, key, (n, heads, head, t), "key_columns")
    scale = g.constant(np.full(1, head**-0.25), f"scale {head}")
    query = g.add("Mul", [query, scale], "query_scaled")
    key = g.add("Mul", [key, scale], "key_scaled")
    scores = g.add("MatMul", [query, key], "scores")
    if layer.causal:
        hidden = np.triu(np.full((t, t), np.finfo(np.float32).min, np.float32), 1)
        scores = g.add("Add", [scores, g.constant(hidden, f"mask {t}")], "masked")
    weights = g.add("Softmax", [scores], "softmax", axis=-1)
    mixed = g.add("MatMul", [weights, value], "mixed")
    mixed = g.add("Transpose", [mixed], "tokens", perm=[0, 2, 1, 3])
    mixed = _reshape(g, mixed, (n, t, heads * head), "rows")
    _linear(g, mixed, "out", 3, (width, heads * head), bias=True)


def _repeated(g: GraphWriter, value: str, sizes: tuple[int, ...]) -> str:
    n, kv, shared, t, head = sizes
    part = value.rpartition("/")[2]
    wide = g.add("Unsqueeze", [value, g.numbers([2])], f"{part}_unsqueezed")
    wide = g.add("Expand", [wide, g.numbers([1, 1, shared, 1, 1])], f"{part}_expanded")
    return _reshape(g, wide, (n, kv * shared, t, head), f"{part}_repeated")


def _batch_norm(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> None:
    names = ("weight", "bias", "running_mean", "running_var")
    inputs = [*taken, *(g.weight(name, (out[1],)) for name in names)]
    g.add("BatchNormalization", inputs, epsilon=_EPSILON, momentum=0.9)


def _layer_norm(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> None:
    inputs = [*taken, *(g.weight(name, (out[-1],)) for name in ("weight", "bias"))]
    g.add("LayerNormalization", inputs, axis=-1, epsilon=_EPSILON, stash_type=1)


def _group_norm(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> None:
    rows = g.add("Reshape", [taken[0], g.numbers([0, layer.groups, -1])], "rows")
    ones, zeros = (
        g.constant(np.full(layer.groups, x), f"{layer.groups} times {x}") for x in (1.0, 0.0)
    )
    normal = g.add("InstanceNormalization", [rows, ones, zeros], "normal", epsilon=_EPSILON)
    normal = _reshape(g, normal, out, "shaped")
    sizes = (out[1], *[1] * (len(out) - 2))
    scaled = g.add("Mul", [normal, g.weight("weight", sizes)], "scaled")
    g.add("Add", [scaled, g.weight("bias", sizes)])


def _rms_norm(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> None:
    square = g.add("Pow", [taken[0], g.constant(2.0)], "square")
    axes = g.numbers([len(out) - 1])
    mean = g.add("ReduceMean", [square, axes], "mean", keepdims=1, noop_with_empty_axes=0)
    safe = g.add("Add", [mean, g.constant(float(np.finfo(np.float32).eps))], "safe")
    root = g.add("Reciprocal", [g.add("Sqrt", [safe], "sqrt")], "rsqrt")
    normal = g.add("Mul", [taken[0], root], "normal")
    g.add("Mul", [normal, g.weight("weight", (out[-1],))])


def _gelu(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> None:
    (x,) = taken
    if layer.approximate == "tanh":
        cube = g.add("Pow", [x, g.constant(3.0)], "cube")
        inner = g.add("Mul", [g.constant(0.044715), cube], "inner")
        inner = g.add(
            "Mul", [g.constant(math.sqrt(2 / math.pi)), g.add("Add", [x, inner], "sum")], "scaled"
        )
        part = g.add("Tanh", [inner], "tanh")
    else:
        part = g.add("Erf", [g.add("Div", [x, g.constant(math.sqrt(2))], "div")], "erf")
    part = g.add("Add", [part, g.constant(1.0)], "above")
    g.add("Mul", [x, g.add("Mul", [g.constant(0.5), part], "half")])


def _silu(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> None:
    g.add("Mul", [taken[0], g.add("Sigmoid", taken, "sigmoid")])


def _pool(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> None:
    attributes: dict[str, Any] = {
        "kernel_shape": _spread(layer.kernel, 2),
        "strides": _spread(layer.stride, 2),
        "pads": 2 * _spread(layer.padding, 2),
        "ceil_mode": int(layer.ceil_mode),
        "auto_pad": "NOTSET",
    }
    if isinstance(layer, layers.AvgPool2d):
        attributes["count_include_pad"] = int(layer.count_include_pad)
        g.add("AveragePool", taken, **attributes)
    else:
        g.add("MaxPool", taken, **attributes, dilations=[1, 1], storage_order=0)


def _mean(axes: tuple[int, ...], keepdims: int) -> Writer:
    return lambda g, layer, taken, shapes, out: g.add(
        "ReduceMean",
        [*taken, g.numbers(list(axes))],
        keepdims=keepdims,
        noop_with_empty_axes=0,
    )


def _adaptive(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> None:
    (h, w), (p, q) = shapes[0][2:], out[2:]
    if (p, q) == (1, 1):
        _mean((-1, -2), 1)(g, layer, taken, shapes, out)
    elif h % p == 0 and w % q == 0:
        window = [h // p, w // q]
        g.add(
            "AveragePool",
            taken,
            kernel_shape=window,
            strides=window,
            pads=[0] * 4,
            ceil_mode=0,
            count_include_pad=1,
            auto_pad="NOTSET",
        )
    else:
        # Means over overlapping windows: two products, one per direction.
        rows = g.add("MatMul", [g.constant(_windows(h, p), f"windows {h} {p}"), *taken], "rows")
        g.add("MatMul", [rows, g.constant(_windows(w, q).T, f"windows {w} {q} across")])


def _windows(size: int, count: int) -> np.ndarray:
    """Return the means over torch's adaptive windows as a matrix, [count, size]."""
    matrix = np.zeros((count, size), np.float32)
    for i in range(count):
        first, last = i * size // count, -(-(i + 1) * size // count)
        matrix[i, first:last] = 1 / (last - first)
    return matrix


def _upsample(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> None:
    nearest = layer.mode == "nearest"
    scales = g.constant(np.array([1, 1, layer.scale, layer.scale]), f"scales {layer.scale}")
    g.add(
        "Resize",
        [*taken, "", scales],
        mode="nearest" if nearest else "linear",
        nearest_mode="floor",
        coordinate_transformation_mode="asymmetric" if nearest else "half_pixel",
    )


def _class_token(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> None:
    n, _, width = out
    token = g.add("Expand", [g.weight("weight", (1, 1, width)), g.numbers([n, 1, 1])], "token")
    g.add("Concat", [token, *taken], axis=1)


def _select(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> None:
    rank = len(shapes[0])
    g.add("Gather", [*taken, g.numbers(layer.index)], axis=layer.dim % rank)


def _position(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> None:
    g.add("Add", [*taken, g.weight("weight", (1, *out[1:]))])


def _embedding(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> None:
    g.add("Gather", [g.weight("weight", (layer.count, layer.width)), *taken], axis=0)


def _to_shape(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> None:
    _reshape(g, taken[0], out)


def _relu6(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> None:
    g.add("Clip", [*taken, g.constant(0.0), g.constant(6.0)])


_WRITERS: Final[dict[type[Layer], Writer]] = {
    layers.AdaptiveAvgPool2d: _adaptive,
    layers.Add: _plain("Add"),
    layers.Attention: _attention,
    layers.AvgPool2d: _pool,
    layers.BatchNorm2d: _batch_norm,
    layers.ClassToken: _class_token,
    layers.Concat: lambda g, layer, taken, shapes, out: g.add(
        "Concat", taken, axis=layer.dim % len(out)
    ),
    layers.Conv1d: _conv,
    layers.Conv2d: _conv,
    layers.ConvTranspose2d: _conv,
    layers.DepthwiseConv2d: _conv,
    layers.Dropout: _plain("Identity"),
    layers.Embedding: _embedding,
    layers.Flatten: _to_shape,
    layers.GELU: _gelu,
    layers.GlobalAvgPool: _mean((-1, -2), 1),
    layers.GroupNorm: _group_norm,
    layers.HardSigmoid: _plain("HardSigmoid", alpha=1 / 6, beta=0.5),
    layers.HardSwish: _plain("HardSwish"),
    layers.Identity: _plain("Identity"),
    layers.LayerNorm: _layer_norm,
    layers.LeakyReLU: lambda g, layer, taken, shapes, out: g.add(
        "LeakyRelu", taken, alpha=layer.slope
    ),
    layers.Linear: _linear_layer,
    layers.MaxPool2d: _pool,
    layers.Mul: _plain("Mul"),
    layers.Permute: lambda g, layer, taken, shapes, out: g.add(
        "Transpose", taken, perm=list(layer.dims)
    ),
    layers.PositionEmbedding: _position,
    layers.RMSNorm: _rms_norm,
    layers.ReLU: _plain("Relu"),
    layers.ReLU6: _relu6,
    layers.Reshape: _to_shape,
    layers.Select: _select,
    layers.SiLU: _silu,
    layers.Sigmoid: _plain("Sigmoid"),
    layers.Softmax: lambda g, layer, taken, shapes, out: g.add("Softmax", taken, axis=layer.dim),
    layers.Tanh: _plain("Tanh"),
    layers.TokenMean: _mean((1,), 0),
    layers.Upsample: _upsample,
}
