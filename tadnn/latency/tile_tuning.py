"""Fitting one more device's traits to a network over tiles, by a few of its kernels.

What differs from one GPU to another is little beside what they share: how fast arithmetic, memory
and launches are, and which tiles the library takes. A network of several devices holds that as
traits of each device (:mod:`tadnn.latency.tile_network`). The traits of a device that was
measured a little are the most probable ones, given the rows and how far devices are expected
from their likes; how far that is, is chosen by rows left out.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tadnn.latency.tile_network import CARE, SCALES, TRAITS, TileNetwork
from tadnn.latency.tile_training import forward

FEWEST_ROWS_TO_TUNE: Final = 8
_MOST_ROWS: Final = 200
_FOLDS: Final = 5
# How far a new device's traits are expected from those of its likes, in logarithms.
_SPREADS: Final = (0.2, 0.2, 0.2, 2.0, 0.15, 0.15, 0.15)
_FAVOUR: Final = 0.5
_STRENGTHS: Final = (0.2, 0.5, 1.0)
_NOISE: Final = 0.06
_STEPS: Final = 200
_RATE: Final = 0.05
# A library that takes one tile whatever it costs: where the search for such a habit begins.
_CARELESS: Final = -3.0


def tune(
    network: TileNetwork, x: np.ndarray, y: np.ndarray, seed: int
) -> tuple[TileNetwork, np.ndarray]:
    """Return the network knowing one more device, and what it says of each row unseen.

    Args:
        network: a tunable one.
        x: features of the device's kernels, as of a stranger, [n, d].
        y: their log ratios to the core, [n].
        seed: of the choice of rows, where they are many, and of the parts left out.

    Returns:
        The network, the device its last, and log ratios [n]: each row's is predicted by traits
        that were fitted without it.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _tune(torch, network, x, y, np.random.default_rng(seed))
    finally:
        torch.set_num_threads(threads)


def _tune(
    torch: Any, network: TileNetwork, x: np.ndarray, y: np.ndarray, rng: np.random.Generator
) -> tuple[TileNetwork, np.ndarray]:
    order = rng.permutation(len(y))
    shown = order[:_MOST_ROWS]
    task = _Task(torch, network, x[shown], y[shown])
    centres, starts = _habits(task.prior, network.weights["devices"])
    members, count = centres.shape[:2]
    everything = np.ones(len(shown), dtype=bool)
    _, losses = task.fit(
        np.repeat(np.arange(members), count),
        centres.reshape(members * count, -1),
        starts.reshape(members * count, -1),
        np.ones(members * count),
        np.tile(everything, (members * count, 1)),
    )
    best = np.arange(members), losses.reshape(members, count).argmin(axis=1)
    part = np.arange(len(shown)) % _FOLDS
    fits = [(strength, fold) for strength in _STRENGTHS for fold in range(_FOLDS + 1)]
    traits, _ = task.fit(
        np.tile(np.arange(members), len(fits)),
        np.tile(centres[best], (len(fits), 1)),
        np.tile(starts[best], (len(fits), 1)),
        np.repeat([strength for strength, _ in fits], members),
        np.repeat(np.stack([part != fold for _, fold in fits]), members, axis=0),
    )
    traits = traits.reshape(len(_STRENGTHS), _FOLDS + 1, members, -1)
    # Or the likes' traits as they are: a twin of a known device has nothing to be told.
    traits = np.concatenate([np.broadcast_to(task.prior, (1, *traits.shape[1:])), traits])
    told = x.copy()
    told[:, network.device_column] = network.known
    unseen = np.empty((len(traits), len(y)))
    for i in range(len(traits)):
        unseen[i] = network.with_device(traits[i, _FOLDS]).mean(told)
        for fold in range(_FOLDS):
            out = shown[part == fold]
            unseen[i, out] = network.with_device(traits[i, fold]).mean(told[out])
    chosen = int(np.argmin(np.mean(np.abs(unseen - y)[:, shown], axis=1)))
    return network.with_device(traits[chosen, _FOLDS]), unseen[chosen]


def _habits(prior: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return traits to be drawn to, and to begin with, by member: [members, habits, traits] each.

    The likes' mixture; each known device's own habits at the likes' scales; and, drawn to the
    mixture, a library that is stuck to one tile: from elsewhere no slope leads there.
    """
    tiles = prior.shape[-1] - TRAITS
    mixture = prior[:, None]
    others = known.copy()
    others[..., :SCALES] = mixture[..., :SCALES]
    stuck = np.repeat(mixture, tiles, axis=1)
    centres = np.concatenate([mixture, others, stuck], axis=1)
    stuck[..., CARE] = _CARELESS
    stuck[..., TRAITS:] += np.eye(tiles)
    return centres, np.concatenate([mixture, others, stuck], axis=1)


class _Task:
    """The rows of one device, and the network that is to explain them."""

    def __init__(self, torch: Any, network: TileNetwork, x: np.ndarray, y: np.ndarray) -> None:
        self._torch = torch
        self.prior = network.traits(x[:1])[:, 0]
        body, rounds, memory, core = network.parts(x)
        self._inputs = [self._tensor(values) for values in (body, rounds, memory)]
        self._target = self._tensor(y + core)
        self._weights = {name: self._tensor(w) for name, w in network.weights.items()}
        favours = [_FAVOUR] * (self.prior.shape[-1] - TRAITS)
        self._spreads = self._tensor(np.array([*_SPREADS, *favours]))

    def fit(
        self,
        members: np.ndarray,
        centre: np.ndarray,
        start: np.ndarray,
        strength: np.ndarray,
        shown: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the most probable traits of each job, [jobs, traits], and their losses, [jobs].

        Args:
            members: the network's member of each job.
            centre: traits that are expected, [jobs, traits].
            start: traits to begin with, [jobs, traits].
            strength: multiplies how far traits are expected to go, [jobs].
            shown: the rows that each job sees, [jobs, n].
        """
        torch = self._torch
        w = {name: values[members] for name, values in self._weights.items()}
        prior = self._tensor(centre)[:, None]
        reach = self._spreads * self._tensor(strength)[:, None, None]
        # A job that hardly may move begins where the others begin, and is drawn back.
        move = ((self._tensor(start)[:, None] - prior) / self._spreads).requires_grad_()
        seen = self._tensor(shown)
        body, rounds, memory = self._inputs
        optimizer = torch.optim.Adam([move], lr=_RATE)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, _STEPS)
        for _ in range(_STEPS):
            trait = prior + move * self._spreads
            total, _ = forward(torch, w, body, rounds, memory, trait)
            error = (total - self._target) / _NOISE
            # Student's t of four degrees of freedom: a slow row is a row, not a device.
            unlikely = (2.5 * torch.log1p(error**2 / 4) * seen).sum(dim=-1)
            far = (((trait - prior) / reach) ** 2).sum(dim=(-1, -2))
            loss = unlikely + 0.5 * far
            optimizer.zero_grad()
            loss.sum().backward()
            optimizer.step()
            schedule.step()
        fitted = (prior + move * self._spreads).detach().numpy()[:, 0]
        return fitted, loss.detach().numpy()

    def _tensor(self, values: np.ndarray) -> Any:
        return self._torch.tensor(np.asarray(values, dtype=np.float32))
