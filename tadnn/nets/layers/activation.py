"""Activations: one launch each, reading and writing every value once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tadnn.kernels import Kernel
from tadnn.nets.layers.base import Layer, Shape, TorchModule, rows_cols


class _Activation(Layer):
    """A function of every value by itself; a module without state (never in place)."""

    op: ClassVar[str]
    """The kernel op."""
    module: ClassVar[str]
    """The class of ``torch.nn``."""

    def infer(self, *shapes: Shape) -> Shape:
        """Return the input's shape."""
        return shapes[0]

    def torch(self, *shapes: Shape) -> TorchModule:
        """Return the ``torch.nn`` class of the same name."""
        return TorchModule(self.module)

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one launch."""
        return (Kernel(self.op, rows_cols(shapes[0]), dtype),)


@dataclass(frozen=True)
class ReLU(_Activation):
    """max(x, 0)."""

    op: ClassVar[str] = "relu"
    module: ClassVar[str] = "ReLU"


@dataclass(frozen=True)
class ReLU6(_Activation):
    """min(max(x, 0), 6)."""

    op: ClassVar[str] = "relu6"
    module: ClassVar[str] = "ReLU6"


@dataclass(frozen=True)
class LeakyReLU(_Activation):
    """x where positive, ``slope`` x elsewhere."""

    slope: float = 0.01

    op: ClassVar[str] = "leaky_relu"
    module: ClassVar[str] = "LeakyReLU"

    def torch(self, *shapes: Shape) -> TorchModule:
        """Return ``nn.LeakyReLU``."""
        return TorchModule(self.module, (self.slope,))


@dataclass(frozen=True)
class GELU(_Activation):
    """x times the normal distribution function of x; ``approximate="tanh"`` for the formula."""

    approximate: str = "none"

    module: ClassVar[str] = "GELU"
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"approximate": ("none", "tanh")}

    def torch(self, *shapes: Shape) -> TorchModule:
        """Return ``nn.GELU``."""
        kwargs = {} if self.approximate == "none" else {"approximate": self.approximate}
        return TorchModule(self.module, (), kwargs)

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one gelu, or one gelu_tanh."""
        op = "gelu" if self.approximate == "none" else "gelu_tanh"
        return (Kernel(op, rows_cols(shapes[0]), dtype),)


@dataclass(frozen=True)
class SiLU(_Activation):
    """x sigmoid(x)."""

    op: ClassVar[str] = "silu"
    module: ClassVar[str] = "SiLU"


@dataclass(frozen=True)
class Sigmoid(_Activation):
    """1 / (1 + exp(-x))."""

    op: ClassVar[str] = "sigmoid"
    module: ClassVar[str] = "Sigmoid"


@dataclass(frozen=True)
class HardSigmoid(_Activation):
    """min(max(x + 3, 0), 6) / 6."""

    op: ClassVar[str] = "hard_sigmoid"
    module: ClassVar[str] = "Hardsigmoid"


@dataclass(frozen=True)
class HardSwish(_Activation):
    """x min(max(x + 3, 0), 6) / 6."""

    op: ClassVar[str] = "hard_swish"
    module: ClassVar[str] = "Hardswish"


@dataclass(frozen=True)
class Tanh(_Activation):
    """The hyperbolic tangent."""

    op: ClassVar[str] = "tanh"
    module: ClassVar[str] = "Tanh"
