"""Networks as data: layers, blocks, shapes; and what they turn into."""

from tadnn.nets.blocks import INPUT, Block, BlockBuilder, BlockFacts, Node, block, block_facts
from tadnn.nets.layers import (
    LAYERS,
    Add,
    BatchNorm2d,
    Conv2d,
    Flatten,
    GlobalAvgPool,
    Layer,
    Linear,
    MaxPool2d,
    ReLU,
    Shape,
)
from tadnn.nets.net import Net, NetBuilder, PlacedLayer
from tadnn.nets.onnx import to_onnx
from tadnn.nets.weights import load_weights, save_weights

__all__ = [
    "INPUT",
    "LAYERS",
    "Add",
    "BatchNorm2d",
    "Block",
    "BlockBuilder",
    "BlockFacts",
    "Conv2d",
    "Flatten",
    "GlobalAvgPool",
    "Layer",
    "Linear",
    "MaxPool2d",
    "Net",
    "NetBuilder",
    "Node",
    "PlacedLayer",
    "ReLU",
    "Shape",
    "block",
    "block_facts",
    "load_weights",
    "save_weights",
    "to_onnx",
]
