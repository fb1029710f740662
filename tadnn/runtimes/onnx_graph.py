"""A network as an ONNX graph for one batch size, written layer by layer.

Every layer becomes the operators that torch's exporter writes for it (see
:mod:`tadnn.nets.onnx`), so a runtime optimises and runs it as it would the exported file;
writing them takes milliseconds where the exporter takes seconds, and no torch. A layer's
output has the layer's name, ``block.layer``; what lies inside a layer is named
``block.layer/part``. A test compares both routes for every layer.
"""

from __future__ import annotations

import onnx

from tadnn.errors import RequestError
from tadnn.nets import INPUT, Net
from tadnn.runtimes.onnx_layers import WRITERS
from tadnn.runtimes.onnx_writer import GraphWriter, Weights


def lacking_layers(net: Net) -> list[str]:
    """Return the names of the layer classes that can't be written here."""
    kinds = {type(placed.layer) for placed in net.layers()}
    return sorted(kind.__name__ for kind in kinds - WRITERS.keys())


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
            write = WRITERS[type(node.layer)]
            values[i] = write(graph, node.layer, taken, facts.inputs[i], facts.outputs[i])
        value = values[len(block.nodes) - 1]
    graph.identity(value, "output")
    return graph.model(
        (batch, *net.input_shape), net.output_shape(batch), whole=net.input_dtype == "int64"
    )
