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
# A device's traits: scales of compute, launch and memory; how much its library cares for shapes
# and cost; what the network is told; and how much the library favours each tile regardless.
SCALES: Final = 3
CARE: Final = 3
TRAITS: Final = 7
# The mean deviation of a normal variable is 0.8 of its standard deviation.
_MEAN_TO_SIGMA: Final = 1.25
_AT_A_TIME: Final = 4096
_NOMINAL: Final = 4  # SMs, clock, peak, bandwidth; behind them sustained share, generation, lanes
FAR: Final = 1e4  # a fact that no device has: whoever has it is like nobody


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
        self._compute, self._memory, self._core, self.device_column = places[:4]
        # Networks of before there was any reckon with the nominal peak.
        self._sustained = places[4] if len(places) > 4 else None
        self._shift, self._scale = arrays["shift"], arrays["scale"]
        names = ("w0", "b0", "w1", "b1", "w2", "b2", "rate", "gate", "floor", "devices", "facts")
        self.weights = {name: arrays[name].astype(float) for name in names}
        self._likeness = arrays.get("likeness")
        if len({len(weight) for weight in self.weights.values()}) != 1:
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

    @property
    def known(self) -> int:
        """How many devices it knows."""
        return int(self.weights["facts"].shape[1])

    @property
    def tunable(self) -> bool:
        """Whether one more device's traits can be fitted: networks of several devices tell."""
        return self.known > 1 and self.weights["devices"].shape[-1] > TRAITS

    def alike_by(self, likeness: np.ndarray) -> TileNetwork:
        """Return the network with other weights of the facts that tell likeness, [2, facts]."""
        return TileNetwork({**self._arrays, "likeness": likeness})

    def strangeness(self, x: np.ndarray) -> np.ndarray:
        """Return how far a stranger is from its nearest like, 0 to 1, [n].

        One generation is all the way, and so is a factor of two in size, clock, peak or bandwidth.
        """
        facts = self.weights["facts"][0]
        if self._likeness is None:  # a network of before there was any
            return np.ones(len(x))
        start = self.device_column + 1
        told = [*range(_NOMINAL), _NOMINAL + 1]
        away = x[:, None, [start + i for i in told]] - facts[:, told]
        nearest: np.ndarray = np.sqrt(np.sum(away**2, axis=-1)).min(axis=1)
        return nearest.clip(max=1.0)

    def with_device(self, traits: np.ndarray) -> TileNetwork:
        """Return the network knowing one more device, after the others, by its [members, traits].

        It is nobody's like: what was fitted to a handful of rows tells nothing of other devices.
        """
        a = self._arrays
        devices = np.concatenate([a["devices"], traits[:, None].astype(np.float32)], axis=1)
        facts = np.concatenate([a["facts"], np.full_like(a["facts"][:, :1], FAR)], axis=1)
        return TileNetwork({**a, "devices": devices, "facts": facts})

    def _each(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return log ratios and log mean deviations by member, [members, n] each."""
        parts = [self._some(x[i : i + _AT_A_TIME]) for i in range(0, max(len(x), 1), _AT_A_TIME)]
        each, spread = (np.concatenate(values, axis=1) for values in zip(*parts, strict=True))
        return each, spread

    def traits(self, x: np.ndarray) -> np.ndarray:
        """Return each row's device traits, [members, n, traits].

        A device of the fit has its own. A stranger has those of its likes, by their facts: a
        second memory size of a card is the card, whatever the others are. Which tiles a library
        takes and how fast a device is are told by different facts.
        """
        facts, traits = self.weights["facts"], self.weights["devices"]
        if facts.shape[1] == 1:
            return np.broadcast_to(traits, (len(traits), len(x), traits.shape[-1]))
        start = self.device_column + 1
        away = x[:, None, start : start + facts.shape[2]] - facts[:, None]
        own = np.eye(facts.shape[1])[x[:, self.device_column].astype(int)]
        known = x[:, [self.device_column]] >= 0
        parts = []
        likeness = np.ones((1, facts.shape[2])) if self._likeness is None else self._likeness
        for weights, columns in zip(likeness, trait_groups(len(likeness)), strict=True):
            nearness = (np.sum((away * weights) ** 2, axis=-1) + 1e-3) ** -2
            nearness /= nearness.sum(axis=-1, keepdims=True)
            parts.append(np.where(known, own, nearness) @ traits[..., columns])
        return np.concatenate(parts, axis=-1)

    def parts(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return inputs [n, d]; logarithms of rounds [n, tiles], memory and core [n]."""
        body = np.clip((x[:, self._body] - self._shift) / self._scale, -6.0, 6.0)
        compute = x[:, self._compute]
        if self._sustained is not None:
            compute = compute - x[:, self._sustained]
        return body, x[:, self._tiles] + compute[:, None], x[:, self._memory], x[:, self._core]

    def _some(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        w = self.weights
        trait = self.traits(x)
        z, rounds, memory, core = self.parts(x)
        count = rounds.shape[1]
        told = trait[..., : w["w0"].shape[1] - z.shape[1]] @ w["w0"][:, z.shape[1] :]
        hidden = _silu(z @ w["w0"][:, : z.shape[1]] + told + w["b0"])
        hidden = _silu(hidden @ w["w1"] + w["b1"])
        out = hidden @ w["w2"] + w["b2"]
        cost = rounds + w["rate"] + EFFICIENCY_GAIN * out[..., :count] + trait[..., :1]
        gate = GATE_GAIN * out[..., count : 2 * count] - w["gate"] * cost
        if trait.shape[-1] > TRAITS:  # networks of before there was any have no favour
            gate = np.exp(trait[..., CARE, None]) * gate + GATE_GAIN * trait[..., TRAITS:]
        gate -= gate.max(axis=-1, keepdims=True)
        gate -= np.log(np.exp(gate).sum(axis=-1, keepdims=True))
        work = _logsumexp(gate + cost)
        floor = np.logaddexp(
            w["floor"][:, :1] + trait[..., 1], memory + w["floor"][:, 1:2] + trait[..., 2]
        )
        total = np.logaddexp(work, floor) + REST_GAIN * out[..., -2]
        return total - core, out[..., -1]


def _silu(values: np.ndarray) -> np.ndarray:
    silu: np.ndarray = values / (1 + np.exp(-np.clip(values, -60.0, None)))
    return silu


def _logsumexp(values: np.ndarray) -> np.ndarray:
    top = values.max(axis=-1, keepdims=True)
    total: np.ndarray = np.log(np.exp(values - top).sum(axis=-1)) + top[..., 0]
    return total
