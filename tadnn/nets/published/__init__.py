"""Networks that tables of published timings name: ``timm:MODEL@SIZE``, ``neusight:MODEL@TOKENS``.

They have shapes, no weights. timm's are built by timm, which is optional; the transformers that
NeuSight timed (Lee et al., ASPLOS 2025) are written here.
"""

from __future__ import annotations

from typing import Final

from tadnn.errors import TargetError, TraceError, UnknownName
from tadnn.nets.net import Net

PUBLISHED: Final = ("timm", "neusight")
"""What the names of such networks begin with, before the colon."""


def published_net(text: str, size: int | None = None) -> Net:
    """Return the network of a name.

    Args:
        text: ``timm:MODEL`` or ``timm:MODEL@SIZE`` (height and width of the images), or
            ``neusight:MODEL@TOKENS``.
        size: of timm's images where the name has none; None: those that timm tests it with.

    Raises:
        TargetError: the name doesn't read like that, or timm has no such architecture.
        UnknownName: there is no such transformer.
        MissingPackage: timm isn't installed.
        TraceError: timm's module cannot be read.
    """
    source, _, rest = text.partition(":")
    model, at, number = rest.partition("@")
    wrong = source not in PUBLISHED or not model or (at and not _is_size(number))
    if wrong or (source == "neusight" and not at):
        raise TargetError(
            f"published networks are timm:MODEL@SIZE and neusight:MODEL@TOKENS, a whole number "
            f"from 1 behind the @; got {text!r}"
        )
    if source == "timm":
        from tadnn.nets.published.timm_models import timm_module
        from tadnn.nets.tracing import read_net

        module, side = timm_module(model, int(number) if at else size)
        try:
            return read_net(module, (3, side, side))
        except TraceError as error:
            raise TraceError(f"timm:{model}@{side}: {error}") from error
    from tadnn.nets.published.configurations import CONFIGS
    from tadnn.nets.published.transformers import network

    if model not in CONFIGS:
        raise UnknownName("transformer of NeuSight's timings", model, CONFIGS)
    return network(model, int(number))


def _is_size(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9 and int(text) > 0
