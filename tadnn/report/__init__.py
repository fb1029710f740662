"""Views of a study as plain records, and the table and plots made of them. Reads only."""

from tadnn.report.breakdown import breakdown_figure
from tadnn.report.front_view import FrontView, PointView
from tadnn.report.history import history_figure
from tadnn.report.library import Library, StudyRow, StudyShelf
from tadnn.report.network_gather import breakdown_view, costliest_stair, frozen_model
from tadnn.report.pareto import pareto_figure
from tadnn.report.prediction import prediction_figure
from tadnn.report.screening import screening_figure
from tadnn.report.stairs import stairs_figure
from tadnn.report.study_gather import study_view
from tadnn.report.study_view import HistoryView, StudyView
from tadnn.report.style import save_figure
from tadnn.report.table import COLUMNS, front_rows, front_table
from tadnn.report.tail import tail_figure
from tadnn.report.tail_view import GroupView, group_views, tail_view
from tadnn.report.text import kernel_text, share_text
from tadnn.report.views import (
    BreakdownView,
    PairView,
    PredictionView,
    ShareView,
    StairView,
    TailView,
    setting_text,
)

__all__ = [
    "COLUMNS",
    "BreakdownView",
    "FrontView",
    "GroupView",
    "HistoryView",
    "Library",
    "PairView",
    "PointView",
    "PredictionView",
    "ShareView",
    "StairView",
    "StudyRow",
    "StudyShelf",
    "StudyView",
    "TailView",
    "breakdown_figure",
    "breakdown_view",
    "costliest_stair",
    "front_rows",
    "front_table",
    "frozen_model",
    "group_views",
    "history_figure",
    "kernel_text",
    "pareto_figure",
    "prediction_figure",
    "save_figure",
    "screening_figure",
    "setting_text",
    "share_text",
    "stairs_figure",
    "study_view",
    "tail_figure",
    "tail_view",
]
