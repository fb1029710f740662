"""A latency model as a frozen record: its card, its errors, what it was fitted to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tadnn.latency.op_model import EXACT_SIZES
from tadnn.report.text import kernel_text

if TYPE_CHECKING:
    from tadnn.latency import LatencyModel

_MOST_ROWS: Final = 2000


@dataclass(frozen=True)
class OpView:
    """One op of a latency model.

    Args:
        op: its name.
        rows: measurements it was fitted to.
        learner: what corrects the physical core; empty where nothing does.
        held_out: errors on shapes left out of the fit, in percent; empty where rows were few.
        ranges: least and greatest of each size, or every value of those that change the code.
    """

    op: str
    rows: int
    learner: str
    held_out: Mapping[str, float | None]
    ranges: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class KernelPairView:
    """One measured kernel and its prediction, microseconds."""

    op: str
    label: str
    measured_us: float
    predicted_us: float


@dataclass(frozen=True)
class ModelView:
    """A latency model.

    Args:
        name: how it is asked for.
        facts: label and text: devices, setting, data.
        environment: names and versions of the measurements.
        notes: the card's.
        nets: errors on whole networks left out of the fit; empty where there were none.
        ops: the ops, by name.
        pairs: measured kernels and what the model says of them; some of many.
        rows: how many measurements lie beside the model; 0 where none do.
    """

    name: str
    facts: tuple[tuple[str, str], ...]
    environment: tuple[tuple[str, str], ...]
    notes: str
    nets: Mapping[str, float | None]
    ops: tuple[OpView, ...]
    pairs: tuple[KernelPairView, ...]
    rows: int


def model_view(model: LatencyModel, table: Path | None) -> ModelView:
    """Return the view of a latency model.

    Args:
        model: the model.
        table: the kernel table that lies beside it; None where there is none.
    """
    from tadnn.kernels import read_kernel_table

    card = model.card
    rows = [] if table is None else list(read_kernel_table(table))
    shown = rows
    if len(rows) > _MOST_ROWS:
        at = np.random.default_rng(0).choice(len(rows), _MOST_ROWS, replace=False)
        shown = [rows[i] for i in sorted(at)]
    predicted: Any = model.predict_us([row.kernel for row in shown]) if shown else []
    facts = [
        ("devices", ", ".join(f"{device.name} ({device.slug})" for device in card.devices)),
        ("setting", ", ".join(f"{k} {v}" for k, v in card.setting.to_dict().items())),
        *((str(key).replace("_", " "), _fact(value)) for key, value in card.data.items()),
        ("hash", model.hash),
    ]
    return ModelView(
        name=card.name,
        facts=tuple(facts),
        environment=tuple(sorted(card.environment.items())),
        notes=card.notes,
        nets=dict(model.nets.held_out),
        ops=tuple(_op(name, fitted) for name, fitted in sorted(model.ops.items())),
        pairs=tuple(
            KernelPairView(
                row.kernel.op, kernel_text(row.kernel.key), float(row.latency_us), float(us)
            )
            for row, us in zip(shown, predicted, strict=True)
        ),
        rows=len(rows),
    )


def _op(name: str, fitted: Any) -> OpView:
    facts = fitted.to_dict()
    ranges = tuple((size, _range(size, values)) for size, values in facts["range"].items())
    return OpView(name, facts["rows"], facts["learner"] or "", facts["held_out"], ranges)


def _range(size: str, values: list[int]) -> str:
    if size in EXACT_SIZES:
        return ", ".join(f"{value:,}" for value in values)
    low, high = values
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _fact(value: Any) -> str:
    return f"{len(value)} networks" if isinstance(value, list) else str(value)
