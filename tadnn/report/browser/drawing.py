"""Small drawings as SVG text; colours come from the page's style."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Final

from tadnn.report.network_view import BlockView, NetworkView, shape_text
from tadnn.report.text import count_text, number_text
from tadnn.report.views import StairView

_WIDTH, _LANE, _LEFT = 860, 84, 116
_BOX, _GAP, _PAD = 44, 10, 12
_NARROWEST, _WIDEST = 300, 500
_LETTERS: Final = 0.148  # per unit of width, at this font's size


def network_svg(view: NetworkView) -> str:
    """Draw a network from top to bottom: a box per block, as wide as it has channels.

    The deeper a box is coloured, the more of the predicted latency passes there.
    """
    blocks = [block for stage in view.stages for block in stage.blocks]
    most = max(_channels(block) for block in blocks)
    total = sum(block.latency_us or 0.0 for block in blocks)
    parts, y = [], 8.0
    parts.append(_text(_LEFT, y + 12, f"input {_input(view)}", "quiet"))
    y += 26
    for stage in view.stages:
        top = y
        for block in stage.blocks:
            parts += _box(block, y, most, total)
            y += _BOX + _GAP
        bottom = y - _GAP
        parts.append(f'<path class="lane" d="M{_LANE} {top} V{bottom}"/>')
        middle = (top + bottom) / 2 + 4
        parts.append(_text(_LANE - 10, middle, stage.title, "stage", anchor="end"))
        y += _PAD
    label = (
        f"Drawing of {view.title}: {len(blocks)} kinds of blocks in {len(view.stages)} stages, "
        + ", then ".join(f"{len(s.blocks)} at {s.title}" for s in view.stages)
    )
    return (
        f'<svg class="drawing" role="img" viewBox="0 0 {_WIDTH} {y:.0f}" '
        f'aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def sparkline_svg(xs: Sequence[float], ys: Sequence[float], label: str) -> str:
    """Draw a line in a word's height."""
    return _tiny(xs, ys, label, steps=False, mark=None)


def stair_svg(view: StairView, label: str) -> str:
    """Draw a staircase in a word's height, the present width marked."""
    return _tiny(view.widths, view.latency_us, label, steps=True, mark=view.present)


def _tiny(
    xs: Sequence[float], ys: Sequence[float], label: str, *, steps: bool, mark: float | None
) -> str:
    width, height, pad = 120, 28, 3
    low, high = (min(xs), max(xs)) if xs else (0, 1)
    top = max(ys, default=1.0) or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        across = (x - low) / (high - low) if high > low else 0.5
        return pad + across * (width - 2 * pad), height - pad - y / top * (height - 2 * pad)

    path: list[str] = []
    for x, y in (at(x, y) for x, y in zip(xs, ys, strict=True)):
        path.append(
            f"H{x:.1f}V{y:.1f}" if path and steps else f"{'L' if path else 'M'}{x:.1f} {y:.1f}"
        )
    dot = ""
    if mark is not None and mark in xs:
        x, y = at(mark, ys[list(xs).index(mark)])
        dot = f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
    return (
        f'<svg class="spark" role="img" aria-label="{escape(label)}" width="{width}" '
        f'height="{height}" viewBox="0 0 {width} {height}"><path d="{"".join(path)}"/>{dot}</svg>'
    )


def _box(block: BlockView, y: float, most: int, total: float) -> list[str]:
    share = (block.latency_us or 0.0) / total if total else 0.0
    wide = _NARROWEST + (_WIDEST - _NARROWEST) * math.sqrt(_channels(block) / most)
    times = f"{block.repeats} × " if block.repeats > 1 else ""
    layers = " · ".join(block.layers)
    room = int((wide - 24) * _LETTERS * 1.12)
    short = layers if len(layers) <= room else layers[: room - 1] + "…"
    facts = f"{count_text(block.parameters)} parameters"
    latency = ""
    if block.latency_us is not None:
        latency = f"{number_text(block.latency_us)} µs, {100 * share:.0f} %"
    right = _LEFT + _WIDEST + 16
    parts = [
        f"<g><title>{escape(f'{times}{block.name} ({block.label}): {layers}')}</title>",
        f'<rect class="block" x="{_LEFT}" y="{y}" width="{wide:.0f}" height="{_BOX}" rx="6"/>',
        f'<rect class="heat" x="{_LEFT}" y="{y}" width="{wide:.0f}" height="{_BOX}" rx="6" '
        f'style="fill-opacity:{min(0.45, 1.2 * share):.3f}"/>',
        _text(_LEFT + 12, y + 18, f"{times}{block.label}", "name"),
        _text(_LEFT + 12, y + 34, short, "layers"),
        _text(right, y + 18, shape_text(block.output), "shape"),
        _text(right, y + 34, ", ".join(part for part in (facts, latency) if part), "quiet"),
    ]
    if block.skips:
        x = _LEFT - 14
        parts.append(
            f'<path class="skip" d="M{_LEFT} {y + 6} C{x} {y + 6} {x} {y + _BOX - 6} '
            f'{_LEFT} {y + _BOX - 6}"/>'
        )
    return [*parts, "</g>"]


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def _channels(block: BlockView) -> int:
    # Images have their channels first, sequences their width last.
    return block.output[0] if len(block.output) == 3 else block.output[-1]


def _input(view: NetworkView) -> str:
    return shape_text(view.input_shape)
