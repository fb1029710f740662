"""How names and numbers read in tables and plots."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tadnn.kernels import Kernel

_INDEXED = re.compile(r"(?P<stem>.*?[a-z])_?(?P<index>\d+(_\d+)*)", re.IGNORECASE)
_LISTED = 6


def count_text(value: float) -> str:
    """Return a count to three digits with its magnitude, such as ``11.7 M``."""
    for size, suffix in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= 0.9995 * size:
            return f"{_three(value / size)}{suffix}"
    return _three(value)


def number_text(value: float) -> str:
    """Return a number to three significant digits, never in scientific notation below 1e6."""
    return _three(value) if abs(value) < 1e6 else f"{value:.3g}"


def pair_text(value: float, deviation: float) -> str:
    """Return ``value ± deviation``, both with the decimals that give the value three digits.

    At most 3 decimals where that leaves two digits: more than a latency is worth.
    """
    decimals = min(_decimals(abs(value)), 3 if abs(value) >= 0.01 else 4)
    return f"{value:.{decimals}f} ± {deviation:.{decimals}f}"


def share_text(share: float) -> str:
    """Return a share, 0 to 1, in percent: ``12 %``, ``0.4 %``."""
    return f"{100 * share:.{0 if share >= 0.01 else 1}f} %"


def _three(value: float) -> str:
    if value != 0 and abs(value) < 0.001:
        return f"{value:.2e}"
    if value == int(value):
        return str(int(value))
    return f"{value:.{_decimals(abs(value))}f}"


def _decimals(magnitude: float) -> int:
    """Return how many decimals show three significant digits, at most 4."""
    for decimals, least in enumerate((99.95, 9.995, 0.9995, 0.09995)):
        if magnitude >= least:
            return decimals
    return 4


def arch_text(arch: Mapping[str, Any]) -> str:
    """Summarise an architecture: choices numbered alike become one, ``width 64-128-256-512``.

    Where all of more than one agree the value stands once, where they are many the distinct
    values stand, as ``kernel 3/5``.
    """
    groups: dict[str, list[Any]] = {}
    for name, value in arch.items():
        match = _INDEXED.fullmatch(name)
        groups.setdefault(match["stem"] if match else name, []).append(value)
    return ", ".join(f"{name} {_values(values)}" for name, values in groups.items())


def _values(values: list[Any]) -> str:
    if all(value == values[0] for value in values):
        return str(values[0])
    if len(values) <= _LISTED:
        return "-".join(map(str, values))
    numeric = all(isinstance(value, int | float) for value in values)
    distinct = sorted(set(values)) if numeric else sorted(set(map(str, values)))
    if len(distinct) <= _LISTED:
        return "/".join(map(str, distinct))
    return f"{distinct[0]}…{distinct[-1]}"


def kernel_text(kernel: str) -> str:
    """Return a kernel key in short, such as ``conv 3×3 64→128, 28×28, /2 +relu``."""
    parsed = Kernel.parse(kernel)
    d = parsed.dims
    fused = "".join(f" +{part}" for part in parsed.epilogue)
    batch = f"{d['n']} × " if d.get("n", 1) > 1 and parsed.op != "linear" else ""
    match parsed.op:
        case "conv2d":
            head = f"conv {d['r']}×{d['s']} {d['c']}→{d['k']}, {batch}{d['h']}×{d['w']}"
            tail = f", /{d['stride']}" if d["stride"] > 1 else ""
            tail += f", {d['groups']} groups" if d["groups"] > 1 else ""
            tail += f", dilation {d['dilation']}" if d["dilation"] > 1 else ""
            return head + tail + fused
        case "linear":
            rows = f", {d['m']} rows" if d["m"] > 1 else ""
            return f"linear {d['k']}→{d['n']}{rows}{fused}"
        case "max_pool2d":
            size = f"{d['r']}×{d['s']} {d['c']}, {batch}{d['h']}×{d['w']}"
            return f"max_pool {size}, /{d['stride']}{fused}"
        case "batch_norm" | "global_avg_pool":
            return f"{parsed.op} {d['c']}, {batch}{d['h']}×{d['w']}{fused}"
        case "opaque":
            flops = f", {count_text(parsed.flops)}FLOPs" if parsed.flops else ""
            return f"not understood, {count_text(parsed.bytes_moved)}B moved{flops}"
        case _:
            return f"{parsed.op} {'×'.join(map(str, parsed.sizes))}{fused}"
