"""How every layer is written as ONNX operators: ``WRITERS``."""

from __future__ import annotations

from typing import Final

from tadnn.nets import Layer
from tadnn.runtimes.onnx_layers import (
    attention,
    elementwise,
    images,
    normalization,
    shapes,
    weighted,
)
from tadnn.runtimes.onnx_writer import Writer

WRITERS: Final[dict[type[Layer], Writer]] = {
    **attention.TABLE,
    **elementwise.TABLE,
    **images.TABLE,
    **normalization.TABLE,
    **shapes.TABLE,
    **weighted.TABLE,
}

__all__ = ["WRITERS"]
