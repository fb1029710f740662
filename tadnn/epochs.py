"""How long a training is: whole epochs, or a share of one."""

from __future__ import annotations

import math
from typing import Final

EPOCHS: Final = "a whole number, at least 1, or a share above 0 of one epoch"
"""The rule, for messages."""


def whole_or_share(epochs: float) -> float | None:
    """Return a number of epochs, whole ones as an integer; None where it breaks the rule."""
    if 0 < epochs < 1:
        return epochs
    return int(epochs) if 1 <= epochs < math.inf and epochs == int(epochs) else None
