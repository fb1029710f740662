"""Networks as JSON and back.

Blocks that occur several times are stored once::

    {"format": "tadnn-net-1", "input_shape": [3, 32, 32],
     "blocks": [{"label": "stem",
                 "nodes": [["conv", "Conv2d", {"out": 64, "kernel": 3}, [-1]], ...]}],
     "chain": [["stem", 0], ...]}
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from tadnn.errors import RequestError, ShapeError, UnknownName
from tadnn.nets.blocks import Block, Node
from tadnn.nets.layers import LAYERS, Layer
from tadnn.nets.net import Net

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FORMAT = "tadnn-net-1"


def net_to_json(net: Net) -> dict[str, Any]:
    """Return the network as JSON-able data."""
    index: dict[Block, int] = {}
    for _, block in net.blocks:
        index.setdefault(block, len(index))
    return {
        "format": FORMAT,
        "input_shape": list(net.input_shape),
        "blocks": [_block_to_json(block) for block in index],
        "chain": [[name, index[block]] for name, block in net.blocks],
    }


def net_from_json(data: Any) -> Net:
    """Return the network of :func:`net_to_json`'s data, its shapes checked.

    Raises:
        RequestError: the data breaks a rule of the format.
        ShapeError: shapes do not fit; the layer is named.
    """
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        got = data.get("format") if isinstance(data, dict) else type(data).__name__
        raise RequestError(f"a network's JSON is an object with format {FORMAT!r}; got {got!r}")
    try:
        blocks = [_block_from_json(entry) for entry in data["blocks"]]
        shape = tuple(_whole(size) for size in data["input_shape"])
        chain = tuple((str(name), blocks[_index(i)]) for name, i in data["chain"])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise RequestError(
            f"a network's JSON is damaged: {type(error).__name__}: {error}"
        ) from error
    return Net.checked(shape, chain)


def _block_to_json(block: Block) -> dict[str, Any]:
    return {
        "label": block.label,
        "nodes": [
            [node.name, type(node.layer).__name__, _arguments(node.layer), list(node.inputs)]
            for node in block.nodes
        ],
    }


def _arguments(layer: Layer) -> dict[str, Any]:
    # Defaults are left out: short, and a field added later doesn't change old keys.
    instance: DataclassInstance = layer  # type: ignore[assignment]
    return {
        f.name: value for f in fields(instance) if (value := getattr(layer, f.name)) != f.default
    }


def _block_from_json(entry: Any) -> Block:
    nodes = []
    for name, kind, arguments, inputs in entry["nodes"]:
        if kind not in LAYERS:
            raise UnknownName("layer", str(kind), LAYERS)
        try:
            layer = LAYERS[kind](**arguments)
        except ShapeError as error:
            raise ShapeError(f"layer {name} of block {entry['label']}: {error}") from error
        nodes.append(Node(str(name), layer, tuple(_whole(i) for i in inputs)))
    return Block(str(entry["label"]), tuple(nodes))


def _index(value: Any) -> int:
    if _whole(value) < 0:
        raise IndexError(f"blocks are counted from 0; got {value}")
    return int(value)


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"expected a whole number, got {value!r}")
    return value
