"""Weights on disk, as safetensors: nothing is executed on loading."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tadnn.errors import CorruptFile, RequestError, Unwritable
from tadnn.files import atomic_path

if TYPE_CHECKING:
    from torch import nn


def save_weights(module: nn.Module, path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write a module's parameters and buffers, atomically.

    Args:
        module: left as it was.
        path: where to.
        metadata: further facts, kept in the file's header.

    Raises:
        Unwritable: the folder cannot be written or the disk is full.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors = {name: t.detach().cpu().contiguous() for name, t in module.state_dict().items()}
    with atomic_path(path) as temporary:
        try:
            save_file(tensors, temporary, metadata=dict(metadata) if metadata else None)
        except SafetensorError as error:  # how a full disk reaches us
            raise Unwritable(f"cannot write {path}: {error}") from error


def load_weights(module: nn.Module, path: Path) -> None:
    """Load parameters and buffers that :func:`save_weights` wrote into a module.

    Raises:
        RequestError: there is no such file, or it belongs to another network.
        CorruptFile: it is damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except FileNotFoundError:
        raise RequestError(f"no such file: {path}") from None
    except SafetensorError as error:
        raise CorruptFile(f"{path} is not a readable safetensors file: {error}") from error
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        raise RequestError(f"{path} holds the weights of another network: {error}") from error
