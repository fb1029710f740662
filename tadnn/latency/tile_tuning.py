"""Fitting one more device's traits into a network over tiles, by a few of its kernels."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tadnn.latency.tile_network import EFFICIENCY_GAIN, GATE_GAIN, REST_GAIN, SCALES, TRAITS
from tadnn.latency.tile_network import TileNetwork

# How far the traits of a new device are expected from those of its likes, in logarithms.
SPREADS: Final = (0.3, 0.3, 0.3, 0.3, 0.3, 0.3)
FAVOUR: Final = 0.5
NOISE: Final = 0.06
_STEPS: Final = 300
_RATE: Final = 0.03


def tuned_traits(network: TileNetwork, x: np.ndarray, y: np.ndarray, spreads=SPREADS, favour=FAVOUR, noise=NOISE, steps=_STEPS, rate=_RATE) -> np.ndarray:
    """Return the traits of the device of these rows, [members, traits]."""
    import torch

    arrays = network.to_arrays()
    def t(a): return torch.tensor(np.asarray(a, dtype=np.float32))
    start = network._traits(x[:1])[:, 0]
    body = np.clip((x[:, network._body] - network._shift) / network._scale, -6, 6)
    z = t(body)
    rounds = x[:, network._tiles] + x[:, [network._compute]] - x[:, [network._sustained]]
    rounds, memory = t(rounds), t(x[:, network._memory])
    target = t(y + x[:, network._core])
    w = {n: t(network._weights[n]) for n in ("w0","b0","w1","b1","w2","b2","rate","gate","floor")}
    n_in, count = z.shape[1], rounds.shape[-1]
    base = z @ w["w0"][:, :n_in] + w["b0"]
    prior = t(start)[:, None]
    scale = t(np.concatenate([spreads, np.full(count, favour)]))
    move = torch.zeros_like(prior).requires_grad_()
    optimizer = torch.optim.Adam([move], lr=rate)
    silu = torch.nn.functional.silu
    for i in range(steps):
        for g in optimizer.param_groups: g["lr"] = rate * (1 - i / steps) + 1e-4
        trait = prior + move * scale
        hidden = silu(base + trait[..., :TRAITS] @ w["w0"][:, n_in:])
        hidden = silu(hidden @ w["w1"] + w["b1"])
        out = hidden @ w["w2"] + w["b2"]
        cost = rounds + w["rate"] + EFFICIENCY_GAIN * out[..., :count] + trait[..., :1]
        fav = GATE_GAIN * (out[..., count:2*count] + trait[..., TRAITS:])
        gate = torch.log_softmax(fav - w["gate"] * cost, dim=-1)
        work = torch.logsumexp(gate + cost, dim=-1)
        floor = torch.logaddexp(w["floor"][:, :1] + trait[..., 1], memory + w["floor"][:, 1:2] + trait[..., 2])
        error = (torch.logaddexp(work, floor) + REST_GAIN * out[..., -2] - target) / noise
        # Student's t with four degrees of freedom: a slow row is a row, not a device.
        loss = (2.5 * torch.log1p(error**2 / 4)).sum() + 0.5 * (move**2).sum()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    return (prior + move * scale).detach().numpy()[:, 0]


def with_device(network: TileNetwork, traits: np.ndarray) -> TileNetwork:
    """Return the network knowing one more device, the last."""
    arrays = network.to_arrays()
    devices = np.concatenate([arrays["devices"], traits[:, None].astype(np.float32)], axis=1)
    far = np.full_like(arrays["facts"][:, :1], 1e4)
    return TileNetwork({**arrays, "devices": devices, "facts": np.concatenate([arrays["facts"], far], axis=1)})
