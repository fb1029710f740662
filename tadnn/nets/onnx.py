"""A module as ONNX."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tadnn.files import atomic_path
from tadnn.nets.layers import Shape

if TYPE_CHECKING:
    from torch import nn

OPSET = 18


def to_onnx(
    module: nn.Module, input_shape: Shape, path: Path, *, input_dtype: str = "float"
) -> None:
    """Write a module in evaluation mode as ONNX with a dynamic batch, atomically.

    Args:
        module: left as it was, mode included.
        input_shape: one input without the batch dimension.
        path: where to; weights are inside the file.
        input_dtype: ``float`` or ``int64``; see :attr:`Net.input_dtype`.

    Raises:
        Unwritable: the folder cannot be written or the disk is full.
    """
    import torch

    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        # A batch of 1 would be specialised away by torch.export.
        dtype = torch.int64 if input_dtype == "int64" else torch.float32
        example = torch.zeros((2, *input_shape), dtype=dtype)
        with quiet_export(), atomic_path(path) as temporary:
            program = torch.onnx.export(
                module,
                (example,),
                dynamo=True,
                opset_version=OPSET,
                input_names=["input"],
                output_names=["output"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                verbose=False,
            )
            assert program is not None
            program.save(str(temporary), external_data=False)
    finally:
        for part, mode in modes:
            part.training = mode


class quiet_export(warnings.catch_warnings):
    """Silences what the exporters print about their own insides."""

    def __enter__(self) -> None:
        super().__enter__()
        warnings.simplefilter("ignore")
        self._loggers = [logging.getLogger(n) for n in ("torch.onnx", "onnxscript", "onnx_ir")]
        self._levels = [logger.level for logger in self._loggers]
        for logger in self._loggers:
            logger.setLevel(logging.ERROR)

    def __exit__(self, *exc: Any) -> None:
        for logger, level in zip(self._loggers, self._levels, strict=True):
            logger.setLevel(level)
        super().__exit__(*exc)
