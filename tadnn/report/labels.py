"""Where a label goes so that it hides nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox
from numpy.typing import ArrayLike

# Degrees, best first: above a front on its left nothing can be; then wherever there is room.
_ANGLES: Final = (135, 160, 110, 90, 60, 30, 180, 0, 315, 225, 270)
_RADII: Final = (13, 24, 38, 56, 80)
_CLEARANCE: Final = 5.0


def place_label(
    axes: Axes, text: str, at: tuple[float, float], obstacles: Sequence[tuple[float, float]]
) -> Annotation:
    """Write ``text`` near ``at``, where it covers fewest of the obstacles and leaves no axes.

    The figure must be complete otherwise: its layout is fixed here. ``at`` and the obstacles
    are data coordinates. A label that had to go far gets a line to its point.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    label = axes.annotate(
        text,
        at,
        xytext=(0, 0),
        textcoords="offset points",
        fontsize=9.5,
        fontweight="bold",
        zorder=7,
        annotation_clip=False,
        path_effects=[withStroke(linewidth=3, foreground="white")],
    )
    size = label.get_window_extent()
    points = axes.transData.transform(np.asarray(obstacles, dtype=float).reshape(-1, 2))
    anchor = axes.transData.transform(at)
    pixels = figure.dpi / 72
    room = axes.get_window_extent().padded(-_CLEARANCE)
    best, best_cost = (0.0, 0.0, 0), math.inf
    for rank, (radius, angle) in enumerate((r, a) for r in _RADII for a in _ANGLES):
        x, y = _corner(radius * pixels, math.radians(angle), size)
        box = Bbox.from_bounds(anchor[0] + x, anchor[1] + y, size.width, size.height)
        cost = 100.0 * _covered(box, points) + 1000.0 * (not _inside(box, room)) + rank
        if cost < best_cost:
            best, best_cost = (x / pixels, y / pixels, radius), cost
    label.set_position(best[:2])
    if best[2] > _RADII[1]:
        _lead(axes, at, (best[0] + size.width / pixels / 2, best[1]))
    return label


def _corner(radius: float, angle: float, size: Bbox) -> tuple[float, float]:
    """Return the offset of a box's lower left corner whose near side is ``radius`` away."""
    dx, dy = math.cos(angle), math.sin(angle)
    # From -1 (box wholly on the left or below) to 1, sliding in between.
    x = radius * dx - size.width * (1 - dx) / 2
    y = radius * dy - size.height * (1 - dy) / 2
    return x, y


def _covered(box: Bbox, points: ArrayLike) -> int:
    padded = box.padded(_CLEARANCE)
    return int(sum(padded.contains(x, y) for x, y in np.asarray(points)))


def _inside(box: Bbox, room: Bbox) -> bool:
    return bool(room.x0 <= box.x0 and box.x1 <= room.x1 and room.y0 <= box.y0 and box.y1 <= room.y1)


def _lead(axes: Axes, at: tuple[float, float], to: tuple[float, float]) -> None:
    axes.annotate(
        "",
        at,
        xytext=to,
        textcoords="offset points",
        arrowprops={"arrowstyle": "-", "lw": 0.8, "shrinkB": 7, "shrinkA": 0},
        zorder=6,
    )
