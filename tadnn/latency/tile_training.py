"""Training of :class:`tadnn.latency.tile_network.TileNetwork`; all members at once, in torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tadnn.latency.tile_network import (
    CARE,
    EFFICIENCY_GAIN,
    FAR,
    GATE_GAIN,
    REST_GAIN,
    TRAITS,
    Places,
    TileNetwork,
)

WIDTH: Final = 96
_NARROW: Final = 32  # where there are no tiles to choose from
_BATCH: Final = 256
_EPOCHS: Final = 60
_STEPS: Final = (2000, 3500)
_NARROW_STEPS: Final = 1000
_RATE: Final = 6e-3
_DECAY: Final = 1e-4
_TRAIT_DECAY: Final = 3e-3
# How much each of the likeness columns tells of scales, and of habits; a fit chooses.
LIKENESSES: Final = tuple(
    np.array([[0, 0, 0, 0, *scales], [0, 0, 0, 0, 0, 1, lanes]])
    for scales in ((1, 0.1, 0.1), (1, 0.5, 0.5))
    for lanes in (0.2, 1, 2)
)
_BETA: Final = 0.03  # log error below which the loss is square


def train(
    x: np.ndarray,
    y: np.ndarray,
    places: Places,
    left_out: np.ndarray,
    unseen: np.ndarray,
    seed: int,
    effort: float = 1.0,
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Train one member per row of ``left_out``.

    Args:
        x: features, [n, d].
        y: log ratios to the core, [n].
        places: what the columns are.
        left_out: rows that each member doesn't see, bool [members, n].
        unseen: members that are to predict a device they never saw, bool [members].
        seed: of weights and batches.
        effort: multiplies the number of steps.

    Returns:
        The arrays of all members, and what each says about the rows it didn't see: mean and
        deviation, [members, n] (NaN where it saw them).
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            arrays = _train(torch, x, y, places, left_out, seed, effort)
    finally:
        torch.set_num_threads(threads)
    means, deviations = np.full(left_out.shape, np.nan), np.full(left_out.shape, np.nan)
    for member, out in enumerate(left_out):
        one = TileNetwork(members(arrays, [member]))
        seen = x[out].copy()
        if unseen[member]:
            seen[:, places.device] = -1
        if len(seen):
            means[member, out], deviations[member, out] = one.predict(seen)
    return arrays, means, deviations


_SHARED: Final = ("body", "tiles", "places", "shift", "scale", "likeness")


def members(arrays: dict[str, np.ndarray], which: Sequence[int]) -> dict[str, np.ndarray]:
    """Return the arrays of some members."""
    return {n: a if n in _SHARED else a[list(which)] for n, a in arrays.items()}


def _train(
    torch: Any,
    x: np.ndarray,
    y: np.ndarray,
    places: Places,
    left_out: np.ndarray,
    seed: int,
    effort: float,
) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    count, known = len(left_out), int(x[:, places.device].max()) + 1
    body = x[:, list(places.body)]
    shift, scale = body.mean(axis=0), body.std(axis=0)
    scale[scale < 1e-9] = 1e9  # what never varied mustn't speak up when it does

    def tensor(values: np.ndarray) -> Any:
        return torch.tensor(values, dtype=torch.float32)

    z = tensor(np.clip((body - shift) / scale, -6, 6))
    compute = x[:, [places.compute]] - x[:, [places.sustained]]
    rounds = tensor(x[:, list(places.tiles)] + compute)
    memory, device = tensor(x[:, places.memory]), torch.tensor(x[:, places.device]).long()
    target = tensor(y + x[:, places.core])
    parts = _parameters(torch, z.shape[1], len(places.tiles), count, known, float(target.min()))
    decayed = [parts[n] for n in ("w0", "w1", "w2")]
    plain = [parts[n] for n in ("b0", "b1", "b2", "rate", "gate", "floor")]
    rows = [np.flatnonzero(~out) for out in left_out]
    batch = min(_BATCH, min(len(r) for r in rows))
    epochs = _EPOCHS * max(len(r) for r in rows) / batch
    steps = min(max(epochs, _STEPS[0]), _STEPS[1]) if len(places.tiles) > 1 else _NARROW_STEPS
    steps = int(effort * steps)
    optimizer = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": _DECAY},
            {"params": [parts["devices"]], "weight_decay": _TRAIT_DECAY / _RATE},
            {"params": plain, "weight_decay": 0.0},
        ],
        lr=_RATE,
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=steps)
    order = [rng.permutation(r) for r in rows]
    at = [0] * count
    for _ in range(steps):
        picks = []
        for member in range(count):
            if at[member] + batch > len(order[member]):
                order[member], at[member] = rng.permutation(rows[member]), 0
            picks.append(order[member][at[member] : at[member] + batch])
            at[member] += batch
        pick = torch.from_numpy(np.stack(picks))
        told = device[pick][..., None].expand(-1, -1, parts["devices"].shape[-1])
        trait = torch.gather(parts["devices"], 1, told)
        total, spread = forward(torch, parts, z[pick], rounds[pick], memory[pick], trait)
        error = total - target[pick]
        loss = torch.nn.functional.smooth_l1_loss(total, target[pick], beta=_BETA)
        # Laplace's likelihood of the errors as they are: what tells the deviation.
        likelihood = (spread + error.detach().abs().clamp(min=1e-3) * torch.exp(-spread)).mean()
        optimizer.zero_grad()
        (count * (loss + 0.02 * likelihood)).backward()
        torch.nn.utils.clip_grad_norm_(decayed + plain, float(count))
        optimizer.step()
        schedule.step()
    arrays = {name: value.detach().numpy().astype(np.float32) for name, value in parts.items()}
    inputs = z.shape[1]
    arrays["w0"][:, inputs : inputs + CARE + 1] = 0
    arrays["facts"] = _facts(x, places, left_out, known)
    return {name: a.reshape(count, *a.shape[1:]) for name, a in arrays.items()} | {
        "body": np.array(places.body),
        "tiles": np.array(places.tiles),
        "places": np.array(
            [places.compute, places.memory, places.core, places.device, places.sustained]
        ),
        "likeness": LIKENESSES[0],
        "shift": shift,
        "scale": scale,
    }


def _facts(x: np.ndarray, places: Places, left_out: np.ndarray, known: int) -> np.ndarray:
    """Return the facts of each member's devices, [members, known, facts]; far off where unseen."""
    device = x[:, places.device].astype(int)
    first = [int(np.argmax(device == i)) for i in range(known)]
    facts = np.tile(x[first, places.device + 1 :], (len(left_out), 1, 1))
    for member, out in enumerate(left_out):
        for i in range(known):
            if out[device == i].all():
                facts[member, i] = FAR
    return facts


def _parameters(
    torch: Any, inputs: int, tiles: int, count: int, known: int, least: float
) -> dict[str, Any]:
    def drawn(fan_in: int, *shape: int) -> Any:
        return torch.randn(count, *shape) / fan_in**0.5

    outputs = 2 * tiles + 2
    width = WIDTH if tiles > 1 else _NARROW
    parts = {
        "w0": drawn(inputs, inputs + TRAITS, width),
        "b0": torch.zeros(count, 1, width),
        "w1": drawn(width, width, width),
        "b1": torch.zeros(count, 1, width),
        "w2": 0.02 * drawn(width, width, outputs),
        "b2": torch.zeros(count, 1, outputs),
        "rate": torch.zeros(count, 1, tiles),
        "gate": torch.full((count, 1, 1), 2.0),
        # Logarithms of launch (no more than the fastest row) and of a multiple of the memory's.
        "floor": torch.tensor([[least - 0.3, 0.0]]).repeat(count, 1),
        "devices": torch.zeros(count, known, TRAITS + tiles),
    }
    parts["b2"][..., -1] = -3.0
    return {name: value.requires_grad_() for name, value in parts.items()}


def forward(
    torch: Any, w: dict[str, Any], z: Any, rounds: Any, memory: Any, trait: Any
) -> tuple[Any, Any]:
    """Return log microseconds and log mean deviations; the twin of ``TileNetwork._some``."""
    count = rounds.shape[-1]
    silu = torch.nn.functional.silu
    # Scales say how fast a device is, not what runs there.
    own = torch.zeros_like(trait[..., : CARE + 1])
    habits = torch.cat([own, trait[..., CARE + 1 : TRAITS]], dim=-1)
    inputs = z.shape[-1]
    hidden = silu(z @ w["w0"][:, :inputs] + habits @ w["w0"][:, inputs:] + w["b0"])
    hidden = silu(hidden @ w["w1"] + w["b1"])
    out = hidden @ w["w2"] + w["b2"]
    cost = rounds + w["rate"] + EFFICIENCY_GAIN * out[..., :count] + trait[..., :1]
    gate = GATE_GAIN * out[..., count : 2 * count] - w["gate"] * cost
    gate = torch.exp(trait[..., CARE : CARE + 1]) * gate + GATE_GAIN * trait[..., TRAITS:]
    gate = torch.log_softmax(gate, dim=-1)
    work = torch.logsumexp(gate + cost, dim=-1)
    floor = torch.logaddexp(
        w["floor"][:, :1] + trait[..., 1], memory + w["floor"][:, 1:2] + trait[..., 2]
    )
    total = torch.logaddexp(work, floor) + REST_GAIN * out[..., -2]
    return total, out[..., -1]
