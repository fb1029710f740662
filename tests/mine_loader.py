"""Python files and weights that a test wrote, loaded."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from safetensors.torch import load_file
from torch import Tensor


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"loaded_{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def weights(folder: Path) -> dict[str, Tensor]:
    (found,) = folder.glob("*.safetensors")
    return load_file(found)
