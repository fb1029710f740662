"""A network that knows tiles: which of them a GPU's library takes, and how well it runs.

Microseconds of a kernel are

    launch + memory traffic + sum over tiles t of p_t * rounds_t * efficiency_t

with rounds_t the arithmetic of whole waves of whole tiles (exact, from
:mod:`tadnn.latency.quantization`), p the probability that the library takes tile t, a softmax
over what the tiles would cost and what the network says, and efficiency what the network says of
the tile. Kernel names are never seen: latencies alone tell them. NeuSight (Lee et al., ASPLOS
2025, section 4) lets a network output a utilisation for one tile that a table gives; here the
tile is what is learned.

Several members are trained, each without a part of the shapes or without one device; those parts
are what it is judged by. The members of shapes together predict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tadnn.latency.learner import Learner

# How strongly the network's outputs act: the physical part is to lead.
GATE_GAIN: Final = 3.0
EFFICIENCY_GAIN: Final = 0.5
REST_GAIN: Final = 0.3
# A device's traits: scales of compute, launch and memory; what the network is told; and how much
# its library favours each tile, whatever that costs.
SCALES: Final = 3
TRAITS: Final = 6
# The mean deviation of a normal variable is 0.8 of its standard deviation.
_MEAN_TO_SIGMA: Final = 1.25
_AT_A_TIME: Final = 4096


@dataclass(frozen=True)
class Places:
    """Which columns of the features are what; see :class:`TileNetwork`."""

    body: Sequence[int]
    tiles: Sequence[int]
    compute: int
    memory: int
    core: int
    device: int
    sustained: int


def trait_groups(count: int) -> tuple[slice, ...]:
    """Return which traits of a device are told by the same facts: all, or scales and habits."""
    return (slice(None),) if count == 1 else (slice(None, SCALES), slice(SCALES, None))


class TileNetwork(Learner):
    """An ensemble of small networks over tiles.

    Its features are those of ``feature_matrix`` for GPUs: the columns in ``body`` feed the
    network, ``tiles``, ``compute``, ``memory``, ``core`` and ``device`` the physical part.
    Behind ``device`` (its place in the fit, -1 for a stranger) stand the device's facts.
    """

    kind = "tiles"

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._arrays = dict(arrays)
        self._body, self._tiles = arrays["body"].astype(int), arrays["tiles"].astype(int)
        places = [int(place) for place in arrays["places"]]
        self._compute, self._memory, self._core, self._device = places[:4]
        # Networks of before there was any reckon with the nominal peak.
        self._sustained = places[4] if len(places) > 4 else None
        self._shift, self._scale = arrays["shift"], arrays["scale"]
        names = ("w0", "b0", "w1", "b1", "w2", "b2", "rate", "gate", "floor", "devices", "facts")
        self._weights = {name: arrays[name].astype(float) for name in names}
        self._likeness = arrays.get("likeness")
        if len({len(weight) for weight in self._weights.values()}) != 1:
            raise ValueError("a network's members differ in number")

    def mean(self, x: np.ndarray) -> np.ndarray:
        """Return the members' mean."""
        mean: np.ndarray = self._each(x)[0].mean(axis=0)
        return mean

    def predict(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the members' mean, and the greater of the deviation they expect and their own."""
        each, spread = self._each(x)
        local = _MEAN_TO_SIGMA * np.exp(spread.mean(axis=0))
        # Each member's own errors, which calibrate the deviation, hold their disagreement already.
        return each.mean(axis=0), np.maximum(local, each.std(axis=0))

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return weights and places of features."""
        return dict(self._arrays)

    def stretched(self, factor: float) -> TileNetwork:
        """Return the same network, expecting ``factor`` times the deviation."""
        bias = self._arrays["b2"].copy()
        bias[..., -1] += np.log(factor)
        return TileNetwork({**self._arrays, "b2": bias})

    def _each(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return log ratios and log mean deviations by member, [members, n] each."""
        parts = [self._some(x[i : i + _AT_A_TIME]) for i in range(0, max(len(x), 1), _AT_A_TIME)]
        each, spread = (np.concatenate(values, axis=1) for values in zip(*parts, strict=True))
        return each, spread

    def _traits(self, x: np.ndarray) -> np.ndarray:
        """Return each row's device traits, [members, n, traits].

        A device of the fit has its own. A stranger has those of its likes, by their facts: a
        second memory size of a card is the card, whatever the others are. Which tiles a library
        takes and how fast a device is are told by different facts.
        """
        facts, traits = self._weights["facts"], self._weights["devices"]
        if facts.shape[1] == 1:
            return np.broadcast_to(traits, (len(traits), len(x), traits.shape[-1]))
        start = self._device + 1
        away = x[:, None, start : start + facts.shape[2]] - facts[:, None]
        own = np.eye(facts.shape[1])[x[:, self._device].astype(int)]
        known = x[:, [self._device]] >= 0
        parts = []
        likeness = np.ones((1, facts.shape[2])) if self._likeness is None else self._likeness
        for weights, columns in zip(likeness, trait_groups(len(likeness)), strict=True):
            nearness = (np.sum((away * weights) ** 2, axis=-1) + 1e-3) ** -2
            nearness /= nearness.sum(axis=-1, keepdims=True)
            parts.append(np.where(known, own, nearness) @ traits[..., columns])
        return np.concatenate(parts, axis=-1)

    def _some(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        w = self._weights
        count = len(self._tiles)
        trait = self._traits(x)
        z = np.clip((x[:, self._body] - self._shift) / self._scale, -6.0, 6.0)
        told = trait[..., :TRAITS] @ w["w0"][:, z.shape[1] :]
        hidden = _silu(z @ w["w0"][:, : z.shape[1]] + told + w["b0"])
        hidden = _silu(hidden @ w["w1"] + w["b1"])
        out = hidden @ w["w2"] + w["b2"]
        compute = x[:, [self._compute]]
        if self._sustained is not None:
            compute = compute - x[:, [self._sustained]]
        rounds = x[:, self._tiles] + compute
        cost = rounds + w["rate"] + EFFICIENCY_GAIN * out[..., :count] + trait[..., :1]
        gate = GATE_GAIN * out[..., count : 2 * count] - w["gate"] * cost
        if trait.shape[-1] > TRAITS:  # networks of before there was any have no favour
            gate += GATE_GAIN * trait[..., TRAITS:]
        gate -= gate.max(axis=-1, keepdims=True)
        gate -= np.log(np.exp(gate).sum(axis=-1, keepdims=True))
        work = _logsumexp(gate + cost)
        floor = np.logaddexp(
            w["floor"][:, :1] + trait[..., 1],
            x[:, self._memory] + w["floor"][:, 1:2] + trait[..., 2],
        )
        total = np.logaddexp(work, floor) + REST_GAIN * out[..., -2]
        return total - x[:, self._core], out[..., -1]


def _silu(values: np.ndarray) -> np.ndarray:
    silu: np.ndarray = values / (1 + np.exp(-np.clip(values, -60.0, None)))
    return silu


def _logsumexp(values: np.ndarray) -> np.ndarray:
    top = values.max(axis=-1, keepdims=True)
    total: np.ndarray = np.log(np.exp(values - top).sum(axis=-1)) + top[..., 0]
    return total
