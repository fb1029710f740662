"""Noise in place of a data set, for proxies of a study that has none."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, cast

import torch

from tadnn.accuracy.dataset import SPLITS, Dataset, Split
from tadnn.accuracy.preprocessing import Preprocessing

if TYPE_CHECKING:
    from tadnn.nets import Net

#: What the hungriest proxy takes: two minibatches of 64.
_INPUTS = 128


def noise_for(net: Net, seed: int) -> Dataset:
    """Return inputs that a network takes, and labels that it can give, all of them random.

    Images are standard normal, as normalised ones are on average; tokens and labels are
    uniform. Networks with the same inputs and outputs get the same noise.

    Args:
        net: the network.
        seed: decides the noise.
    """
    return _noise(net.input_shape, net.output_shape()[-1], net.input_limit, seed)


# One: the networks of a study mostly take the same input, and 128 of them are large.
@lru_cache(maxsize=1)
def _noise(shape: tuple[int, ...], classes: int, limit: int | None, seed: int) -> Dataset:
    generator = torch.Generator().manual_seed(seed)
    if limit is None:
        inputs = torch.randn((_INPUTS, *shape), generator=generator)
    else:
        inputs = torch.randint(limit, (_INPUTS, *shape), generator=generator)
    split = Split(inputs, torch.randint(classes, (_INPUTS,), generator=generator))
    sizes = cast("tuple[int, int, int]", shape)  # one size where they are tokens
    as_it_is = Preprocessing(sizes, sizes, value_range=(0.0, 1.0), mean=(0.0,), std=(1.0,))
    return Dataset(
        name="noise",
        class_names=tuple(map(str, range(classes))),
        licence="none",
        preprocessing=as_it_is,
        splits=dict.fromkeys(SPLITS, split),
    )
