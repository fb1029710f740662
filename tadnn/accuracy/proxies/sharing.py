"""Passes that several proxies make alike, made once."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar, final

T = TypeVar("T")


@final
class Passes:
    """What passes through one network gave.

    Attributes:
        saved_s: seconds that were not spent, because another proxy had spent them already.
    """

    def __init__(self) -> None:
        self.saved_s = 0.0
        self._known: dict[Hashable, tuple[object, float]] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what ``make`` gives, or gave before under this key."""
        if key in self._known:
            value, seconds = self._known[key]
            self.saved_s += seconds
            return value  # type: ignore[return-value]
        begin = time.perf_counter()
        made = make()
        self._known[key] = made, time.perf_counter() - begin
        return made


_passes: ContextVar[Passes | None] = ContextVar("passes", default=None)


@contextmanager
def shared_passes() -> Iterator[Passes]:
    """Share passes among the proxies that score one module inside the context.

    Every proxy leaves the module as it was, so what one saw the next would see; nobody else may
    change it meanwhile.
    """
    passes = Passes()
    token = _passes.set(passes)
    try:
        yield passes
    finally:
        _passes.reset(token)


def shared(key: Hashable, make: Callable[[], T]) -> T:
    """Return what ``make`` gives; inside `shared_passes` it is asked once for each key."""
    passes = _passes.get()
    return make() if passes is None else passes.get(key, make)
