"""The exact front of many architectures by what is free to know: latency and size."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tadnn.errors import RequestError, UnknownName, WorkFailed
from tadnn.pareto import front_mask
from tadnn.progress import SILENT, Progress
from tadnn.search.free import FreeMeasures

if TYPE_CHECKING:
    from tadnn.latency import LatencyModel
    from tadnn.spaces import Space

#: Free stand-ins for accuracy; more is better.
PROXIES: Final = ("parameters", "flops")

_MEASURES: Final = ("latency_ms", *PROXIES)
_CHUNK: Final = 2_000


@dataclass(frozen=True)
class Screened:
    """What a screening found.

    Attributes:
        space: the space's name.
        latency_model: the model's name.
        proxy: what was weighed against latency.
        batch: inputs per run.
        seed: of the architectures that were drawn.
        count: architectures that were scored.
        failed: architectures that could not be built.
        members: the front, fastest first: ``latency_ms``, ``parameters``, ``flops``, ``arch``.
        choices: names of the space's choices.
        points: latency in ms and proxy of everything scored, [count, 2].
    """

    space: str
    latency_model: str
    proxy: str
    batch: int
    seed: int
    count: int
    failed: int
    members: tuple[Mapping[str, Any], ...]
    choices: tuple[str, ...]
    points: np.ndarray

    def record(self) -> dict[str, Any]:
        """Return it as JSON-able data, without the points."""
        return {
            "space": self.space,
            "latency_model": self.latency_model,
            "proxy": self.proxy,
            "batch": self.batch,
            "seed": self.seed,
            "count": self.count,
            "failed": self.failed,
            "members": [dict(member) for member in self.members],
        }

    def csv(self) -> str:
        """Return the front as CSV: measures, then a column per choice; absent ones are empty."""
        used = {name for member in self.members for name in member["arch"]}
        choices = [name for name in self.choices if name in used]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*_MEASURES, *choices])
        for member in self.members:
            measures = [member[name] for name in _MEASURES]
            writer.writerow([*measures, *(member["arch"].get(name, "") for name in choices)])
        return text.getvalue()


def screen(
    space: Space,
    model: LatencyModel,
    n: int = 100_000,
    *,
    proxy: str = "parameters",
    batch: int = 1,
    input_shape: tuple[int, ...] | None = None,
    seed: int = 0,
    progress: Progress = SILENT,
) -> Screened:
    """Score ``n`` distinct random architectures, or all of a smaller space; nothing is stored.

    Args:
        space: what to draw from.
        model: the latency model.
        n: how many.
        proxy: one of `PROXIES`; more is taken to be better.
        batch: inputs per run.
        input_shape: of one input; the space's default when None.
        seed: of the draws.
        progress: told of scored architectures.

    Raises:
        UnknownName: no such proxy.
        RequestError: ``n`` is not positive.
        WorkFailed: no architecture can be built.
    """
    if proxy not in PROXIES:
        raise UnknownName("free proxy", proxy, PROXIES)
    if n < 1:
        raise RequestError(f"a screening scores at least one architecture; got {n}")
    free = FreeMeasures(space, model, batch, model.setting.dtype, input_shape)
    names = ("latency_ms", proxy)
    front: list[Mapping[str, Any]] = []
    best = np.empty((0, 2))
    points, failed = [], 0
    total = min(n, space.size())
    with progress.task(f"screening {space.name}", total) as advance:
        for archs in _chunks(space, total, seed):
            columns = free.columns(archs, names)
            scored = np.stack([columns[name] for name in names], axis=1)
            good = np.flatnonzero(np.isfinite(scored).all(axis=1))
            failed += len(archs) - len(good)
            points.append(scored[good])
            # What leads so far comes first: of equals, the first one stays.
            everything = [*front, *(archs[i] for i in good.tolist())]
            values = np.vstack([best, scored[good]])
            kept = np.flatnonzero(front_mask(values * (1.0, -1.0)))
            front, best = [everything[i] for i in kept], values[kept]
            advance(len(archs))
    if not front:
        raise WorkFailed(f"none of {total} architectures of {space.name} can be built")
    order = np.argsort(best[:, 0], kind="stable")
    chosen = [front[i] for i in order]
    columns = free.columns(chosen, _MEASURES)
    members = tuple(
        {
            "latency_ms": float(columns["latency_ms"][i]),
            "parameters": int(columns["parameters"][i]),
            "flops": int(columns["flops"][i]),
            "arch": dict(arch),
        }
        for i, arch in enumerate(chosen)
    )
    return Screened(
        space=space.name,
        latency_model=model.name,
        proxy=proxy,
        batch=batch,
        seed=seed,
        count=total - failed,
        failed=failed,
        members=members,
        choices=tuple(space.choices),
        points=np.vstack(points),
    )


def _chunks(space: Space, total: int, seed: int) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Yield ``total`` distinct architectures, a chunk at a time."""
    if total == space.size():
        chunk: list[Mapping[str, Any]] = []
        for arch in space.enumerate():
            chunk.append(arch)
            if len(chunk) == _CHUNK:
                yield chunk
                chunk = []
        if chunk:
            yield chunk
        return
    archs = space.sample(total, seed)
    for start in range(0, total, _CHUNK):
        yield archs[start : start + _CHUNK]
