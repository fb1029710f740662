"""Fronts of studies with more than one latency, as views and pictures."""

from __future__ import annotations

import pytest
from test_report import front, member

from tadnn.report import FrontView, PredictionView, front_rows, pareto_figure
from tadnn.report.table import front_columns

DECODE = ("latency", "decode_latency", "accuracy")


def phased(trial: int, latency: float, decode: float, score: float, measured: bool = False):  # type: ignore[no-untyped-def]
    again = {"spread_ms": 0.25, "repeats": 3}
    record = member(trial, latency, score)
    decoded = {"predicted": {"latency_ms": decode, "std_ms": 0.5, "in_range": decode < 9}}
    record["phases"] = {"decode": {**decoded, "measured": None}}
    if measured:
        record["measured"] = {"latency_ms": latency + 1, **again}
        record["phases"]["decode"]["measured"] = {"latency_ms": decode + 2, **again}
    return record


MEMBERS = (
    phased(0, 1.0, 8.0, 1.0),
    phased(1, 4.0, 2.0, 2.0, measured=True),
    phased(2, 9.0, 9.0, 3.0),
)


def view(*objectives: str) -> FrontView:
    return FrontView.from_records(front(*MEMBERS, objectives=list(objectives or DECODE)))


def test_a_phase_has_its_own_latencies() -> None:
    whole, decode = view(), view().in_phase("decode")
    assert [(p.trial, p.predicted_ms, p.measured_ms) for p in whole.members] == [
        (0, 1.0, None),
        (1, 4.0, 5.0),
        (2, 9.0, None),
    ]
    assert [(p.trial, p.predicted_ms, p.measured_ms) for p in decode.members] == [
        (1, 2.0, 4.0),
        (0, 8.0, None),
        (2, 9.0, None),
    ]
    assert [p.in_range for p in decode.members] == [True, True, False]
    assert [p.score for p in decode.members] == [2.0, 1.0, 3.0]
    assert whole.score_label == decode.score_label == "naswot score, more is better"
    # Of three objectives a line between two would bound nothing.
    assert not whole.joined
    assert not decode.joined


def test_a_line_joins_what_bounds_the_front() -> None:
    assert view("decode_latency", "accuracy").in_phase("decode").joined
    assert not view("decode_latency", "accuracy").joined
    assert view("latency", "accuracy").joined


def test_latencies_alone_are_drawn_against_each_other() -> None:
    alone = view("latency", "decode_latency")
    assert alone.score_phase == "decode"
    assert alone.score_label == "Predicted latency of decode (ms), less is better"
    assert [p.score for p in alone.members] == [8.0, 2.0, 9.0]
    assert alone.knee is not None


def test_pictures_name_the_phase() -> None:
    def labels(shown: FrontView) -> str:
        return pareto_figure(shown).axes[0].get_xlabel()

    assert labels(view()) == "Latency (ms)"
    assert labels(view().in_phase("decode")) == "Latency of decode (ms)"
    pairs = PredictionView.from_front(front(*MEMBERS, objectives=list(DECODE)), "decode")
    assert pairs.title == "quickstart, decode: predicted and measured"
    assert [(p.name, p.predicted_ms, p.measured_ms) for p in pairs.pairs] == [("#1", 2.0, 4.0)]


def test_the_table_has_both_latencies() -> None:
    columns = front_columns(view())
    assert columns[2:6] == (
        "predicted ms",
        "measured ms",
        "decode predicted ms",
        "decode measured ms",
    )
    rows = [dict(zip(columns, row, strict=True)) for row in front_rows(view())]
    assert [row["decode predicted ms"][:1] for row in rows] == ["8", "2", "9"]
    assert rows[2]["decode predicted ms"].endswith("?")
    assert rows[1]["decode measured ms"].startswith("4")
    assert rows[0]["decode measured ms"] == "–"


@pytest.mark.parametrize("objectives", [("latency", "accuracy"), ("parameters", "flops")])
def test_without_phases_nothing_changes(objectives: tuple[str, ...]) -> None:
    plain = FrontView.from_records(front(member(0, 1.0, 1.0), objectives=list(objectives)))
    assert plain.phases == ()
    assert front_columns(plain)[2:5] == ("predicted ms", "measured ms", "proxy")
