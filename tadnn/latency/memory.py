"""Remembering what was computed, within bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Memory(Generic[Key, Value]):
    """Values by key; what wasn't asked for lately is forgotten.

    Two generations: what is asked for moves to the young one; where that is full, the old
    one is dropped and the young one takes its place. That happens between two requests
    only, so all values of one request are there together, however many they are.

    Args:
        most: how many values a generation holds.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._young: dict[Key, Value] = {}
        self._old: dict[Key, Value] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(
        self, keys: Iterable[Key], make: Callable[[list[Key]], Sequence[Value]]
    ) -> dict[Key, Value]:
        """Return values by key for at least these keys; good until the next request.

        Args:
            keys: what is asked for.
            make: computes the values of keys not known; called once, or not at all.
        """
        if len(self._young) > self.most:
            self._young, self._old = {}, self._young
        young, old = self._young, self._old
        missing = []
        for key in dict.fromkeys(keys):
            if key in young:
                continue
            if key in old:
                young[key] = old.pop(key)
            else:
                missing.append(key)
        if missing:
            young.update(zip(missing, make(missing), strict=True))
        return young
