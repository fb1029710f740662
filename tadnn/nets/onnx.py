"""A module as a ``torch.export`` program and as ONNX, both with a free batch."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tadnn.files import atomic_path
from tadnn.nets.layers import Shape

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.export import ExportedProgram

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
        program = exported_program(module, torch.zeros((2, *input_shape), dtype=dtype))
        program_to_onnx(program, path)
    finally:
        for part, mode in modes:
            part.training = mode


def exported_program(module: nn.Module, example: Tensor) -> ExportedProgram:
    """Return a module in evaluation mode as a ``torch.export`` program with a free batch.

    Args:
        module: in evaluation mode.
        example: two inputs or more; a batch of 1 would be specialised away.
    """
    import torch

    with quiet_export():
        return torch.export.export(module, (example,), dynamic_shapes=_free_batch())


def program_to_onnx(
    program: ExportedProgram, path: Path, metadata: Mapping[str, str] | None = None
) -> None:
    """Write a program that :func:`exported_program` made as ONNX, atomically.

    Args:
        program: left as it was.
        path: where to; weights are inside the file.
        metadata: further facts, kept among the model's properties.

    Raises:
        Unwritable: the folder cannot be written or the disk is full.
    """
    import torch

    assert program.example_inputs is not None  # exported_program gave one
    with quiet_export(), atomic_path(path) as temporary:
        written = torch.onnx.export(
            program,
            program.example_inputs[0],
            dynamo=True,
            opset_version=OPSET,
            input_names=["input"],
            output_names=["output"],
            dynamic_shapes=_free_batch(),
            verbose=False,
        )
        assert written is not None
        written.model.metadata_props.update(metadata or {})
        written.save(str(temporary), external_data=False)


def _free_batch() -> tuple[dict[int, Any], ...]:
    import torch

    return ({0: torch.export.Dim("batch")},)


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
