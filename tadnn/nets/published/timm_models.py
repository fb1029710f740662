"""timm's architectures, by name, without weights.

Needs the optional package timm (Wightman, *PyTorch Image Models*, 2019), and torchvision, which
timm imports.
"""

from __future__ import annotations

import contextlib
import importlib.util
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tadnn.errors import MissingPackage, RequestError, TargetError, near_matches

if TYPE_CHECKING:
    from torch import nn


def timm_module(name: str, size: int | None = None) -> tuple[nn.Module, int]:
    """Return an architecture of timm in evaluation mode, its weights unset, and its input's size.

    Args:
        name: timm's, without a tag of weights.
        size: height and width of the images; None: those that timm tests it with.

    Raises:
        MissingPackage: timm isn't installed.
        RequestError: the architecture can't be built for images of this size.
        TargetError: timm has no such architecture.
    """
    for package in ("timm", "torchvision"):
        if importlib.util.find_spec(package) is None:
            raise MissingPackage(
                f"networks named timm:MODEL need the packages timm and torchvision; {package} "
                f"isn't installed (pip install --no-deps timm torchvision)"
            )
    from tadnn.nets.published.torchvision_ops import make_torchvision_importable

    make_torchvision_importable()
    with warnings.catch_warnings():
        # timm's JIT-scripted activations, from before torch deprecated scripting.
        warnings.filterwarnings("ignore", ".*torch.jit.*", DeprecationWarning)
        import timm
    if not timm.is_model(name):
        near = near_matches(name, timm.list_models())
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise TargetError(
            f"timm {timm.__version__} has no architecture {name!r} (a name without a tag of "
            f"weights){hint}"
        )
    facts: Any = timm.models.get_pretrained_cfg(name)
    usual = (facts.test_input_size or facts.input_size)[1] if facts is not None else 224
    size = usual if size is None else size
    # Only those whose tables depend on the input's size are told it.
    told = facts is not None and facts.fixed_input_size and facts.input_size[1] != size
    with _unset_weights(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of deprecated layers, and of weights with another head
        try:
            options: dict[str, Any] = {"img_size": size} if told else {}
            module: nn.Module = timm.create_model(name, pretrained=False, **options)
        except (TypeError, AssertionError, ValueError) as error:
            raise RequestError(
                f"timm:{name} can't be built for images of {size} x {size}: {error}"
            ) from error
    return module.eval(), size


@contextlib.contextmanager
def _unset_weights() -> Iterator[None]:
    """Leave weights as memory happens to be: nobody looks at them, and gigabytes take long."""
    from torch.nn import Parameter
    from torch.overrides import TorchFunctionMode

    class Unset(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name, named = getattr(func, "__name__", ""), kwargs or {}
            in_place = name.endswith("_") and not name.endswith("__") and name not in _NO_FILLS
            filled = args[0] if args else named.get("tensor")
            if in_place and isinstance(filled, Parameter):
                return filled
            return func(*args, **named)

    with Unset():
        yield


_NO_FILLS = frozenset({"requires_grad_", "detach_", "rename_", "share_memory_"})
