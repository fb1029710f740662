"""Search spaces: choices, conditions, sampling, neighbours, encoding, size."""

from tadnn.spaces.choices import Categorical, Choice, Int
from tadnn.spaces.loading import load_space, split, union
from tadnn.spaces.space import Arch, Space

__all__ = ["Arch", "Categorical", "Choice", "Int", "Space", "load_space", "split", "union"]
