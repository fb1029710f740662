"""Collecting the operators and weights of an ONNX graph."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tadnn.nets import Shape
from tadnn.nets.onnx import OPSET

Weights = Mapping[str, np.ndarray]
_IR_VERSION: Final = 10
_POOL: Final = 1 << 20
_DTYPES: Final = {"float": np.float32, "int64": np.int64, "bool": np.bool_}


class GraphWriter:
    """Collects operators and weights; ``at`` is the name of the layer being written."""

    def __init__(self, weights: Weights | None) -> None:
        self.at = ""
        self._given = weights
        self._nodes: list[onnx.NodeProto] = []
        self._tensors: dict[str, onnx.TensorProto] = {}

    def add(self, op: str, inputs: Sequence[str], part: str = "", /, **attributes: Any) -> str:
        """Add an operator; its output is the layer's, or a part inside of it."""
        output = f"{self.at}/{part}" if part else self.at
        self._nodes.append(helper.make_node(op, list(inputs), [output], output, **attributes))
        return output

    def split(self, value: str, parts: Sequence[str], sizes: Sequence[int], axis: int) -> list[str]:
        """Add a Split; return its outputs."""
        outputs = [f"{self.at}/{part}" for part in parts]
        inputs = [value, self.numbers(sizes)]
        self._nodes.append(
            helper.make_node("Split", inputs, outputs, f"{self.at}/split", axis=axis)
        )
        return outputs

    def identity(self, value: str, output: str) -> None:
        """Give a value another name."""
        self._nodes.append(helper.make_node("Identity", [value], [output], output))

    def weight(
        self,
        name: str,
        shape: Shape,
        *,
        transposed: bool = False,
        kind: str = "float",
        repeats: Shape = (),
        otherwise: np.ndarray | None = None,
    ) -> str:
        """Return a layer's stored tensor.

        Args:
            name: by which its layer knows it.
            shape: its sizes.
            transposed: whether to swap the two dimensions it has.
            kind: ``float``, ``int64`` or ``bool``.
            repeats: how often it follows itself along each dimension.
            otherwise: whole numbers that it holds where no weights are given.
        """
        full = f"{self.at}.{name}"
        if full not in self._tensors:
            dtype = _DTYPES["int64" if otherwise is not None else kind]
            if self._given is None and otherwise is not None:
                value = otherwise
            else:
                value = self._value(full, shape)
            value = np.asarray(value, dtype)
            value = np.ascontiguousarray(value.T) if transposed else value
            value = np.tile(value, repeats) if set(repeats) - {1} else value
            self._tensors[full] = numpy_helper.from_array(value, full)
        return full

    def kind_of(self, value: str) -> str:
        """Return what a stored tensor holds; ``float`` for all others."""
        tensor = self._tensors.get(value)
        return "bool" if tensor is not None and tensor.data_type == TensorProto.BOOL else "float"

    def constant(self, value: float | np.ndarray, name: str = "") -> str:
        """Return a constant of floats; equal numbers share one."""
        full = name or f"number {value}"
        if full not in self._tensors:
            self._tensors[full] = numpy_helper.from_array(np.asarray(value, np.float32), full)
        return full

    def numbers(self, values: Sequence[int] | int) -> str:
        """Return a constant of whole numbers."""
        full = f"numbers {values}"
        if full not in self._tensors:
            self._tensors[full] = numpy_helper.from_array(np.asarray(values, np.int64), full)
        return full

    def model(self, input_shape: Shape, output_shape: Shape, *, whole: bool) -> onnx.ModelProto:
        """Return everything as a model."""
        kind = TensorProto.INT64 if whole else TensorProto.FLOAT
        graph = helper.make_graph(
            self._nodes,
            "net",
            [helper.make_tensor_value_info("input", kind, input_shape)],
            [helper.make_tensor_value_info("output", TensorProto.FLOAT, output_shape)],
            list(self._tensors.values()),
        )
        opset = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opset, ir_version=_IR_VERSION)

    def _value(self, full: str, shape: Shape) -> np.ndarray:
        if self._given is not None:
            return np.asarray(self._given[full]).reshape(shape)
        if len(shape) < 2:
            # A stored value may be a factor, and optimisers drop those of 1 and sums with 0.
            fill = 0.5 if full.endswith(".value") else 0.0
            fill = 1.0 if full.endswith(("weight", "running_var")) else fill
            return np.full(shape, fill, np.float32)
        size, fan_in = math.prod(shape), math.prod(shape[1:])
        normal = _normal()
        repeated = np.tile(normal, -(-size // _POOL))[:size] if size > _POOL else normal[:size]
        return (repeated * np.float32(math.sqrt(2 / fan_in))).reshape(shape)


@functools.cache
def _normal() -> np.ndarray:
    return np.random.default_rng(0).standard_normal(_POOL, np.float32)


Writer = Callable[[GraphWriter, Any, list[str], tuple[Shape, ...], Shape], str]
"""Writes a layer: (graph, layer, values taken, their shapes, output's shape) to the output."""


def plain(op: str, **attributes: Any) -> Writer:
    """Return a writer of one operator."""
    return lambda g, layer, taken, shapes, out: g.add(op, taken, **attributes)


def reshape(g: GraphWriter, value: str, shape: Sequence[int], part: str = "") -> str:
    """Write a view of other sizes."""
    return g.add("Reshape", [value, g.numbers(list(shape))], part, allowzero=1)


def spread(value: int | tuple[int, ...], rank: int) -> list[int]:
    """Return one number for each of some dimensions."""
    return list(value) if isinstance(value, tuple) else [value] * rank
