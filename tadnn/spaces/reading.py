"""Reading the modules that a space's ``build`` returns as networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tadnn.errors import TraceError
from tadnn.files import stable_hash
from tadnn.nets import Net, Shape, trace
from tadnn.user_code import is_module

if TYPE_CHECKING:
    from torch import nn

_MOST_KEPT: Final = 4096


class Reading:
    """A space's ``build`` whose modules are traced: what it returns otherwise passes as it is.

    Tracing takes a second where building a Net takes a millisecond, so networks read from
    modules are remembered by architecture. The modules are not: the weights that they came
    with go with them.

    Args:
        space: the space's name, for messages.
        build: what its file defines.
    """

    def __init__(
        self, space: str, build: Callable[[dict[str, Any], Shape, int], Net | nn.Module]
    ) -> None:
        self._space, self._build = space, build
        self._read: dict[str, Net] = {}

    def __call__(self, arch: dict[str, Any], input_shape: Shape, classes: int) -> Net | nn.Module:
        """Return what ``build`` does, read where it is a module.

        Raises:
            TraceError: the module cannot be read.
        """
        key = ""
        if self._read:  # the first was a module, and so will be the others
            key = self._key(arch, input_shape, classes)
            if key in self._read:
                return self._read[key]
        built = self._build(dict(arch), input_shape, classes)
        if not is_module(built):
            return built
        try:
            net = trace(built, input_shape).net
        except TraceError as error:
            raise TraceError(
                f"space {self._space} builds a module that cannot be read, for {arch}: {error}"
            ) from error
        if len(self._read) >= _MOST_KEPT:
            del self._read[next(iter(self._read))]
        self._read[key or self._key(arch, input_shape, classes)] = net
        return net

    @staticmethod
    def _key(arch: dict[str, Any], input_shape: Shape, classes: int) -> str:
        return stable_hash([arch, list(input_shape), classes])
