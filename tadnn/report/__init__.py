"""Views of a study as plain records, and the table and plots made of them. Reads only."""

from tadnn.report.breakdown import breakdown_figure
from tadnn.report.front_view import FrontView, PointView
from tadnn.report.pareto import pareto_figure
from tadnn.report.prediction import prediction_figure
from tadnn.report.stairs import stairs_figure
from tadnn.report.style import save_figure
from tadnn.report.table import COLUMNS, front_rows, front_table
from tadnn.report.text import kernel_text, share_text
from tadnn.report.views import (
    BreakdownView,
    PairView,
    PredictionView,
    ShareView,
    StairView,
    setting_text,
)

__all__ = [
    "COLUMNS",
    "BreakdownView",
    "FrontView",
    "PairView",
    "PointView",
    "PredictionView",
    "ShareView",
    "StairView",
    "breakdown_figure",
    "front_rows",
    "front_table",
    "kernel_text",
    "pareto_figure",
    "prediction_figure",
    "save_figure",
    "setting_text",
    "share_text",
    "stairs_figure",
]
