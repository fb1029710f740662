"""AZ-NAS: how much a network's blocks express, add, and pass back; an ensemble by ranks.

Source: Lee and Ham, "AZ-NAS: Assembling Zero-Cost Proxies for Network Architecture Search",
CVPR 2024, section 3. No image is looked at; weights and inputs are noise that the seed draws.

Deviations. 16 inputs instead of 64. Eigenvalues that rounding put below zero count as zero, where
the authors' code gives up. Feature maps whose edges are no multiples of the next ones' are padded
with zeros before they are folded, and pairs of blocks between which images become tokens are left
out of trainability. A network without a value (dead features, a block that is an identity) is
ranked last; the authors give it minus infinity, which ranks the same.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tadnn.accuracy.proxies.base import Need, Proxy, required
from tadnn.accuracy.proxies.blocks import block_features, rows_of
from tadnn.accuracy.proxies.sharing import shared
from tadnn.errors import RequestError, WorkFailed

if TYPE_CHECKING:
    from tadnn.accuracy.dataset import Dataset
    from tadnn.nets import Net

_SMALL = 1e-6
_LOG_SMALL = 1e-8
_DENSE = 64


@dataclass(frozen=True)
class _BlockProxy(Proxy):
    """A proxy of the features between blocks.

    Args:
        batch_size: inputs in the batch of noise.
    """

    batch_size: int = 16

    needs: ClassVar[frozenset[Need]] = frozenset({"module", "dataset"})
    makes_inputs: ClassVar[bool] = True
    least_batch: ClassVar[int] = 16

    def score(
        self, net: Net | None, module: nn.Module | None, dataset: Dataset | None, seed: int
    ) -> float:
        """Return the value; it may be negative.

        Raises:
            RequestError: the module is no classifier.
            WorkFailed: a pass fails, or the network has no finite value, such as one of a
                single block.
        """
        module = required(self, "module", module)
        shape = (self.batch_size, *required(self, "dataset", dataset).input_shape)

        def make() -> tuple[list[Tensor], Tensor]:
            generator = torch.Generator().manual_seed(seed)
            features = block_features(self.name, module, shape, generator)
            return features, generator.get_state()

        features, drawn = shared(("blocks", id(module), shape, seed), make)
        generator = torch.Generator()
        generator.set_state(drawn)
        return self.value(features, generator)

    @abstractmethod
    def value(self, features: Sequence[Tensor], generator: torch.Generator) -> float:
        """Return the value of the blocks' features."""


@final
@dataclass(frozen=True)
class Expressivity(_BlockProxy):
    """Sum over blocks of the entropy of the features' principal components (equations 1 and 2)."""

    name: ClassVar[str] = "expressivity"
    description: ClassVar[str] = "entropy of the blocks' principal components (AZ-NAS)"

    def value(self, features: Sequence[Tensor], generator: torch.Generator) -> float:
        """Return the sum of the entropies, nats."""
        return math.fsum(map(spectral_entropy, features))


@final
@dataclass(frozen=True)
class Progressivity(_BlockProxy):
    """The least gain in expressivity from one block to the next (equation 3)."""

    name: ClassVar[str] = "progressivity"
    description: ClassVar[str] = "least gain of that entropy from block to block (AZ-NAS)"

    def value(self, features: Sequence[Tensor], generator: torch.Generator) -> float:
        """Return the least difference of two blocks in succession, nats."""
        return float(np.diff([spectral_entropy(each) for each in features]).min())


@final
@dataclass(frozen=True)
class Trainability(_BlockProxy):
    """How well blocks keep the size of gradients: mean of ``2 - s - 1/s`` (equations 4 to 6).

    s is the spectral norm of a block's Jacobian, estimated by sending signs drawn at random back
    through the block; it is best at 1, where the term is 0.
    """

    name: ClassVar[str] = "trainability"
    description: ClassVar[str] = "how well blocks keep the size of gradients (AZ-NAS)"

    def value(self, features: Sequence[Tensor], generator: torch.Generator) -> float:
        """Return the mean over blocks, at most 0.

        Raises:
            WorkFailed: a block hands back what it receives: an identity; or no two blocks in
                succession have features of one layout.
        """
        terms = []
        for before, after in reversed(list(pairwise(features))):
            signs = torch.randint(0, 2, after.shape, generator=generator).to(after) * 2 - 1
            [back] = torch.autograd.grad(
                after, before, signs, retain_graph=True, materialize_grads=True
            )
            if back.shape == signs.shape and torch.equal(back, signs):
                raise WorkFailed("trainability: a block of this network is an identity")
            if back.ndim != signs.ndim:
                continue
            norm = jacobian_norm(back, signs)
            terms.append(2.0 - norm - 1.0 / (norm + _SMALL))
        if not terms:
            raise WorkFailed("trainability compares blocks whose features have one layout")
        return math.fsum(terms) / len(terms)


def spectral_entropy(features: Tensor) -> float:
    """Return the entropy of the shares of variance that principal components have, nats.

    Args:
        features: ``[n, C, H, W]`` or ``[n, length, D]``; every position is a sample.

    Raises:
        WorkFailed: the features do not vary.
    """
    rows = rows_of(features.detach()).double()
    rows = rows - rows.mean(dim=0, keepdim=True)
    # The smaller of the two products has the same eigenvalues but for zeros, which add nothing.
    gram = rows.T @ rows if rows.shape[1] <= rows.shape[0] else rows @ rows.T
    spectrum = torch.linalg.eigvalsh(gram / len(rows)).clamp_min(0.0)
    total = float(spectrum.sum())
    if not total > 0:
        raise WorkFailed("expressivity must be finite; a block's features do not vary")
    shares = spectrum / total
    return float(-(shares * torch.log(shares + _LOG_SMALL)).sum())


def jacobian_norm(back: Tensor, signs: Tensor) -> float:
    """Return the spectral norm of a block's Jacobian, averaged over positions.

    Args:
        back: the gradient by the block's input, of the shape of that input.
        signs: what was sent back, of the shape of the block's output.
    """
    if back.ndim == 4 and back.shape[2:] != signs.shape[2:]:
        back = _folded(back, signs.shape[2], signs.shape[3])
    outgoing, incoming = rows_of(back).double(), rows_of(signs).double()
    matrix = (outgoing.T @ incoming / len(incoming)).cpu().numpy()
    if min(matrix.shape) <= _DENSE or not matrix.any():
        return float(np.linalg.norm(matrix, 2))
    from scipy.sparse.linalg import svds

    # Only the largest is wanted; a start of our own makes the result repeatable.
    start = np.ones(min(matrix.shape))
    return float(svds(matrix, k=1, v0=start, return_singular_vectors=False)[0])


def _folded(images: Tensor, height: int, width: int) -> Tensor:
    """Return images with the pixels that meet in one of ``height`` x ``width`` as channels."""
    stride = max(-(-images.shape[2] // height), -(-images.shape[3] // width))
    missing = (width * stride - images.shape[3], height * stride - images.shape[2])
    return F.pixel_unshuffle(F.pad(images, (0, missing[0], 0, missing[1])), stride)


def aggregate(components: Sequence[Sequence[float]]) -> list[float]:
    """Return one score per network: ``sum over components of ln(rank / n)`` (equation 8).

    The worst of n networks has rank 1, the best n; equal ones share the mean of their ranks.
    The logarithm makes one bad rank weigh more than several good ones.

    Args:
        components: per component one value for each network, larger is better; minus infinity
            is none.

    Raises:
        RequestError: the components are of different lengths, or of none.
    """
    if not components or not components[0] or len({len(values) for values in components}) > 1:
        raise RequestError("ranks are aggregated over the same networks, at least one, for all")
    from scipy.stats import rankdata

    ranks = np.array([rankdata(values) for values in components])
    return [float(score) for score in np.log(ranks / ranks.shape[1]).sum(axis=0)]


def rank_among(value: float, reference: Sequence[float]) -> float:
    """Return ``ln(rank / n)`` of a newcomer among ``n - 1`` networks of reference."""
    others = np.asarray(reference, dtype=float)
    rank = 1.0 + float((others < value).sum()) + float((others == value).sum()) / 2
    return math.log(rank / (len(others) + 1))
