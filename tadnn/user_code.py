"""Importing people's own Python, a file or a module that they name: **this runs it**."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeGuard

from tadnn.errors import RequestError

if TYPE_CHECKING:
    from torch import nn


def import_user_code(where: str, error: type[RequestError]) -> ModuleType:
    """Import ``file.py`` or ``package.module``.

    Args:
        where: a path that ends in ``.py``, else the name of a module.
        error: what to raise when it can't be imported.

    Raises:
        error: there is no such file or module, or it raises while it is imported.
    """
    if not where.endswith(".py"):
        try:
            return importlib.import_module(where)
        except ImportError as reason:
            raise error(f"cannot import {where}: {reason}") from reason
        except (Exception, SystemExit) as reason:  # anything may come out of a user's module
            raise error(f"{where} raised {type(reason).__name__}: {reason}") from reason
    path = Path(where)
    spec = importlib.util.spec_from_file_location(f"tadnn_user_{path.stem}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise error(f"no such file: {path}")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and typing look a class's module up by name.
    sys.modules[module.__name__] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as reason:  # anything may come out of a user's file
        sys.modules.pop(module.__name__, None)
        raise error(f"{path} raised {type(reason).__name__}: {reason}") from reason
    return module


def is_module(value: object) -> TypeGuard[nn.Module]:
    """Tell whether something is a torch ``nn.Module``, without importing torch.

    Where nobody has imported it, there is none.
    """
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)
