from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from tadnn.errors import RequestError
from tadnn.report import (
    COLUMNS,
    BreakdownView,
    FrontView,
    PairView,
    PredictionView,
    ShareView,
    StairView,
    TailView,
    breakdown_figure,
    front_rows,
    front_table,
    pareto_figure,
    prediction_figure,
    save_figure,
    stairs_figure,
    tail_figure,
)
from tadnn.report.text import arch_text, count_text, kernel_text, number_text, pair_text

Record = dict[str, Any]


def result(trial: int, latency: float | None, score: float, **changes: Any) -> Record:
    predicted = {"latency_ms": latency, "std_ms": 0.125, "in_range": True}
    return {
        "trial": trial,
        "key": f"{trial:016x}",
        "space": "resnet",
        "arch": {"block": "basic", "width1": 64, "width2": 128},
        "parameters": 1000 * trial + 500,
        "flops": 2_000_000 * trial,
        "memory_bytes": 4096,
        "predicted": None if latency is None else predicted,
        "proxy": {"name": "naswot", "value": score},
        "trained": None,
        **changes,
    }


def member(trial: int, latency: float, score: float, **changes: Any) -> Record:
    return {**result(trial, latency, score), "measured": None, **changes}


def finalist(trial: int, latency: float, score: float, accuracy: float, ms: float) -> Record:
    return member(
        trial,
        latency,
        score,
        trained={"accuracy": accuracy, "epochs": 20, "split": "test"},
        measured={"latency_ms": ms, "spread_ms": 0.25, "repeats": 30},
    )


def front(*members: Record, **changes: Any) -> Record:
    return {
        "study": "quickstart",
        "latency_model": "imaginary",
        "device": "Imaginary CPU",
        "runtime": "torch-eager",
        "dtype": "fp32",
        "threads": 2,
        "batch": 4,
        "input_shape": [1, 32, 32],
        "environment": {},
        "objectives": ["latency", "accuracy"],
        "hypervolume": 1.0,
        "reference": [10.0, 0.0],
        "members": list(members),
        **changes,
    }


MEMBERS = (
    finalist(5, 8.0, 102.0, 0.98, 9.0),
    finalist(2, 1.0, 10.0, 0.90, 1.1),
    finalist(7, 2.0, 90.0, 0.95, 1.9),
)
TRIALS = (
    *(result(m["trial"], m["predicted"]["latency_ms"], m["proxy"]["value"]) for m in MEMBERS),
    result(0, 3.0, 50.0),
    result(1, 20.0, 150.0, feasible=False),
    result(3, None, 50.0),
    result(4, 5.0, math.inf),
)


def saved(figure: Figure, folder: Path, suffix: str = ".svg") -> bytes:
    (path,) = save_figure(figure, folder / f"plot{suffix}")
    return path.read_bytes()


def words(figure: Figure, folder: Path) -> str:
    """All text of a figure; matplotlib writes it into comments beside the glyphs."""
    return saved(figure, folder).decode()


# Views


def test_front_view_sorts_names_and_finds_the_knee() -> None:
    view = FrontView.from_records(front(*MEMBERS), TRIALS)
    assert [p.trial for p in view.members] == [2, 7, 5]
    assert [p.predicted_ms for p in view.members] == [1.0, 2.0, 8.0]
    assert [p.score for p in view.members] == [10.0, 90.0, 102.0]
    assert [p.measured_ms for p in view.members] == [1.1, 1.9, 9.0]
    assert [p.accuracy for p in view.members] == [0.90, 0.95, 0.98]
    assert all(p.finalist for p in view.members)
    assert view.knee == 7
    assert view.joined
    assert view.score_label == "naswot score, more is better"
    assert view.accuracy_label == "Test accuracy"
    assert view.subtitle == "Imaginary CPU · torch-eager fp32 · 2 threads · batch 4 · input 1×32×32"
    others = {p.trial: p for p in view.others}
    assert sorted(others) == [0, 1, 3, 4]
    assert [n for n, p in others.items() if not p.feasible] == [1]
    assert others[3].predicted_ms is None
    assert others[4].score is None, "an infinite score is no place on an axis"


def test_front_view_takes_a_knee_that_is_handed_in() -> None:
    assert FrontView.from_records(front(*MEMBERS), knee=5).knee == 5


def test_front_view_of_a_study_that_trains_tells_finalists_from_the_others() -> None:
    def trained(accuracy: float, epochs: int, split: str) -> Record:
        return {"accuracy": accuracy, "epochs": epochs, "split": split}

    short = [trained(0.5, 2, "validation"), trained(0.6, 2, "validation")]
    trials = [result(i, 1.0 + i, 0.0, proxy=None, trained=short[i]) for i in (0, 1)]
    members = [
        member(0, 1.0, 0.0, proxy=None, trained=trained(0.9, 20, "test")),
        member(1, 2.0, 0.0, proxy=None, trained=short[1]),
    ]
    view = FrontView.from_records(front(*members), trials)
    assert view.score_label == "Validation accuracy"
    assert [p.score for p in view.members] == [0.5, 0.6], "what the search saw"
    assert [p.accuracy for p in view.members] == [0.9, 0.6]
    assert [p.finalist for p in view.members] == [True, False]
    assert view.accuracy_label == "Test accuracy"
    # Without the trials nothing says that it was trained twice.
    assert not any(p.finalist for p in FrontView.from_records(front(*members)).members)


@pytest.mark.parametrize(
    ("objectives", "scores", "label", "knee", "joined"),
    [
        (["latency", "parameters"], [2500, 7500, 5500], "Parameters, less is better", 2, True),
        (["latency", "flops"], [4e6, 14e6, 10e6], "FLOPs, less is better", 2, True),
        (["accuracy", "flops"], [10.0, 90.0, 102.0], "naswot score, more is better", 7, False),
        (
            ["latency", "accuracy", "memory"],
            [10.0, 90.0, 102.0],
            "naswot score, more is better",
            7,
            False,
        ),
    ],
)
def test_front_view_takes_the_studys_other_objective(
    objectives: list[str], scores: list[float], label: str, knee: int, joined: bool
) -> None:
    view = FrontView.from_records(front(*MEMBERS, objectives=objectives), TRIALS)
    assert [p.score for p in view.members] == scores
    assert (view.score_label, view.knee, view.joined) == (label, knee, joined)


def test_front_view_refuses_an_objective_it_does_not_know() -> None:
    with pytest.raises(
        RequestError, match=r"unknown objective 'beauty'\. Valid: accuracy, latency, flops"
    ):
        FrontView.from_records(front(*MEMBERS, objectives=["latency", "beauty"]))


def test_prediction_view_counts_errors_and_order() -> None:
    view = PredictionView.from_front(front(*MEMBERS, member(9, 3.0, 1.0)))
    assert [p.name for p in view.pairs] == ["#5", "#2", "#7"]
    assert view.pairs[0] == PairView("#5", 8.0, 0.125, 9.0, 0.25)
    assert view.mape == pytest.approx(100 * (1 / 9 + 0.1 / 1.1 + 0.1 / 1.9) / 3)
    assert view.ordered == 1.0


def test_prediction_view_ignores_the_order_of_near_equals() -> None:
    def pair(predicted: float, measured: float) -> PairView:
        return PairView("", predicted, 0.1, measured, 0.1)

    near = PredictionView("", "", (pair(2.0, 1.0), pair(1.0, 1.1)))
    assert near.ordered is None
    # Measured 1, 1.05, 2: the first two are too near; of the others one is the wrong way round.
    mixed = PredictionView("", "", (pair(1.0, 1.0), pair(3.0, 1.05), pair(2.0, 2.0)))
    assert mixed.ordered == 0.5
    assert PredictionView("", "", ()).mape is None


CONV = (
    "conv2d(n=1,c=64,h=56,w=56,k=128,r=3,s=3,stride=2,pad=1,dilation=1,groups=1,"
    "dtype=fp32,epilogue=bias+relu)"
)


def prediction(latency_ms: float, **latencies: tuple[int, float]) -> Record:
    return {
        "latency_ms": latency_ms,
        "std_ms": 0.1,
        "kernels": [
            {
                "kernel": f"linear(m=1,n={name[1:]},k=64,dtype=fp32)",
                "count": count,
                "latency_us": us,
                "std_us": us / 10,
                "in_range": us < 100,
            }
            for name, (count, us) in latencies.items()
        ],
        "opaque": [],
    }


def test_breakdown_view_adds_up() -> None:
    record = prediction(0.4, n10=(1, 20.0), n20=(3, 50.0), n30=(1, 120.0))
    view = BreakdownView.from_prediction("title", "", record)
    assert view.total_us == 400.0
    assert view.shares == (
        ShareView("linear 64→20", 3, 150.0, 15.0),
        ShareView("linear 64→30", 1, 120.0, 12.0, in_range=False),
        ShareView("between kernels", 1, 110.0, 0.0, is_kernel=False),
        ShareView("linear 64→10", 1, 20.0, 2.0),
    )


def test_breakdown_view_without_a_rest() -> None:
    view = BreakdownView.from_prediction("", "", prediction(0.1, n10=(2, 50.0)))
    assert [share.label for share in view.shares] == ["linear 64→10"]


def test_stair_view_knows_where_the_network_stands() -> None:
    stairs = {"title": "", "subtitle": "", "axis": "output channels"}
    view = StairView(**stairs, widths=(8, 16), latency_us=(3.0, 4.0), std_us=(0.1, 0.2), present=16)
    assert view.present_us == 4.0
    off = StairView(**stairs, widths=(8, 16), latency_us=(3.0, 4.0), std_us=(0.1, 0.2), present=12)
    assert off.present_us is None
    with pytest.raises(RequestError, match="widths of a staircase ascend"):
        StairView(**stairs, widths=(16, 8), latency_us=(3.0, 4.0), std_us=(0.1, 0.2))
    with pytest.raises(RequestError, match="one latency and deviation per width"):
        StairView(**stairs, widths=(8, 16), latency_us=(3.0,), std_us=(0.1, 0.2))
    with pytest.raises(RequestError, match=r"efficient widths are .* got \[12\]"):
        StairView(
            **stairs, widths=(8, 16), latency_us=(3.0, 4.0), std_us=(0.1, 0.2), efficient=(8, 12)
        )


def test_efficient_widths_are_drawn(tmp_path: Path) -> None:
    stairs = StairView(
        "t", "", "width", (8, 16, 24), (1.0, 2.0, 2.1), (0.0,) * 3, efficient=(8, 24)
    )
    assert "efficient" in words(stairs_figure(stairs), tmp_path)
    (axes,) = stairs_figure(stairs).axes
    (marks,) = [line for line in axes.lines if line.get_label() == "efficient"]
    assert marks.get_xydata().tolist() == [[8, 1.0], [24, 2.1]]
    (small,) = tail_figure(TailView("t", "", (stairs,))).axes
    assert [[8, 1.0], [24, 2.1]] in [line.get_xydata().tolist() for line in small.lines]


# Texts


def test_texts_of_numbers() -> None:
    counts = [0, 999, 1000, 11_689_512, 1_819_066_368, 3.2e12]
    assert [count_text(n) for n in counts] == ["0", "999", "1 k", "11.7 M", "1.82 G", "3.20 T"]
    numbers = [0.0963, 1.234, 12.34, 812.34, 12345.6, 1.5e7]
    assert [number_text(n) for n in numbers] == [
        "0.0963",
        "1.23",
        "12.3",
        "812",
        "12346",
        "1.5e+07",
    ]
    assert pair_text(12.345, 0.5) == "12.3 ± 0.5"
    assert pair_text(5.0, 0.12) == "5.00 ± 0.12"
    assert pair_text(0.0963, 0.0048) == "0.096 ± 0.005"
    assert pair_text(0.0023, 0.0001) == "0.0023 ± 0.0001"


def test_text_of_an_architecture_is_short() -> None:
    arch = {
        "block": "basic",
        "depth1": 2,
        "depth2": 3,
        "width1": 64,
        "width2": 64,
        **{f"kernel{stage}_{i}": 3 + 2 * (i == 1) for stage in (1, 2, 3) for i in (1, 2, 3)},
    }
    assert arch_text(arch) == "block basic, depth 2-3, width 64, kernel 3/5"
    assert arch_text({f"w{i}": 8 * i for i in range(1, 9)}) == "w 8…64"
    assert arch_text({}) == ""


def test_text_of_a_kernel_tells_what_differs() -> None:
    assert kernel_text(CONV) == "conv 3×3 64→128, 56×56, /2 +bias +relu"
    assert (
        kernel_text(CONV.replace("(n=1,", "(n=8,")) == "conv 3×3 64→128, 8 × 56×56, /2 +bias +relu"
    )
    depthwise = CONV.replace("groups=1", "groups=64").replace("stride=2", "stride=1")
    assert kernel_text(depthwise) == "conv 3×3 64→128, 56×56, 64 groups +bias +relu"
    assert kernel_text("relu(rows=64,cols=1024,dtype=fp32)") == "relu 64×1024"
    assert kernel_text("linear(m=8,n=10,k=64,dtype=fp32)") == "linear 64→10, 8 rows"


# Tables


def test_rows_of_the_front() -> None:
    view = FrontView.from_records(front(*MEMBERS[:2], member(7, 2.0, 90.0)), TRIALS)
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in front_rows(view)]
    assert rows[0] == {
        "trial": "2",
        "architecture": "block basic, width 64-128",
        "predicted ms": "1.00 ± 0.12",
        "measured ms": "1.10 ± 0.25",
        "proxy": "10",
        "accuracy": "0.900",
        "parameters": "2.50 k",
        "FLOPs": "4 M",
    }
    assert rows[1]["trial"] == "knee 7"
    assert rows[1]["measured ms"] == rows[1]["accuracy"] == "–"


def test_rows_doubt_predictions_out_of_range() -> None:
    doubtful = member(1, 2.0, 3.0, predicted={"latency_ms": 2.0, "std_ms": 1.0, "in_range": False})
    view = FrontView.from_records(front(doubtful))
    assert front_rows(view)[0][2] == "2.00 ± 1.00?"


@pytest.mark.parametrize(("width", "architecture"), [(80, False), (120, True)])
def test_table_never_cuts_a_number(width: int, architecture: bool) -> None:
    view = FrontView.from_records(front(*MEMBERS), TRIALS)
    console = Console(file=io.StringIO(), width=width)
    console.print(front_table(view, width))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert ("block basic" in text) == architecture
    for row in front_rows(view):
        for column, value in zip(COLUMNS, row, strict=True):
            assert column == "architecture" or value in text


# Plots: warnings are errors in every one of them


def test_pareto_figure_says_everything(tmp_path: Path) -> None:
    view = FrontView.from_records(front(*MEMBERS), TRIALS)
    figure = pareto_figure(view)
    text = words(figure, tmp_path)
    for part in (
        "quickstart",
        view.subtitle,
        "Predicted latency (ms)",
        "naswot score, more is better",
        "Test accuracy",
        "dominated (1)",
        "infeasible (1)",
        "front, predicted ± std (3)",
        "measured ± spread",
    ):
        assert f"<!-- {part} -->" in text, part
    for axes in figure.axes:
        assert [label.get_text() for label in axes.texts] == ["knee: trial 7"]
        assert axes.get_xscale() == "log"


def spots(figure: Figure, panel: int, colour: str) -> list[tuple[float, float]]:
    """Data of the marked lines of one colour."""
    found = []
    for line in figure.axes[panel].lines:
        if line.get_color() == colour and line.get_marker() in "oD":
            found += [(float(x), float(y)) for x, y in line.get_xydata()]
    return found


def test_pareto_figure_draws_the_views_values() -> None:
    figure = pareto_figure(FrontView.from_records(front(*MEMBERS), TRIALS))
    assert spots(figure, 0, "#0072B2") == [(1.0, 10.0), (2.0, 90.0), (8.0, 102.0)]
    assert spots(figure, 1, "#0072B2") == [(1.0, 0.90), (2.0, 0.95), (8.0, 0.98)]
    assert spots(figure, 1, "#D55E00") == [(1.1, 0.90), (1.9, 0.95), (9.0, 0.98)]


def test_pareto_figure_of_measured_but_untrained_members_has_one_panel() -> None:
    members = [{**m, "trained": None} for m in MEMBERS]
    figure = pareto_figure(FrontView.from_records(front(*members), TRIALS))
    assert len(figure.axes) == 1
    assert spots(figure, 0, "#D55E00") == [(1.1, 10.0), (1.9, 90.0), (9.0, 102.0)]


def test_a_narrow_front_has_plain_axes() -> None:
    figure = pareto_figure(FrontView.from_records(front(*MEMBERS[1:])))
    assert [axes.get_xscale() for axes in figure.axes] == ["linear", "linear"]


def test_knee_labels_cover_no_finalist() -> None:
    crowd = [
        finalist(i, 1.0 + i / 5, 10.0 * i, 0.90 + 0.001 * (i % 3), 1.0 + i / 5) for i in range(12)
    ]
    figure = pareto_figure(FrontView.from_records(front(*crowd), knee=6))
    figure.draw_without_rendering()
    for panel in figure.axes:
        (label,) = (t for t in panel.texts if t.get_text() == "knee: trial 6")
        box = label.get_window_extent()
        for line in panel.lines:
            if line.get_marker() in "oD":
                for x, y in panel.transData.transform(line.get_xydata()):
                    assert not box.contains(x, y)
        assert panel.get_window_extent().contains(box.x0, box.y0)
        assert panel.get_window_extent().contains(box.x1, box.y1)


@pytest.mark.parametrize(
    ("members", "trials", "objectives"),
    [
        ((), (), ["latency", "accuracy"]),
        ((), TRIALS[3:], ["latency", "accuracy"]),
        (MEMBERS[:1], (), ["latency", "accuracy"]),
        ([member(0, 1.0, 1.0)], (), ["latency"]),
        ([member(0, 1.0, 1.0, predicted=None)], (), ["accuracy", "parameters"]),
        ([member(i, 1.0, 1.0) for i in range(3)], (), ["latency", "accuracy"]),
        (MEMBERS, TRIALS, ["latency", "parameters"]),
        ([member(i, 10.0**i, 1e9 * i) for i in range(-2, 4)], (), ["latency", "accuracy"]),
        ([{**m, "measured": None} for m in MEMBERS], TRIALS, ["latency", "accuracy"]),
    ],
)
def test_pareto_figure_of_odd_studies(
    members: list[Record], trials: list[Record], objectives: list[str], tmp_path: Path
) -> None:
    record = front(*members, study="a_$1_b$ " * 12, objectives=objectives)
    view = FrontView.from_records(record, trials)
    ElementTree.fromstring(saved(pareto_figure(view), tmp_path))
    assert saved(prediction_figure(PredictionView.from_front(record)), tmp_path)
    front_table(view)


def test_prediction_figure_says_how_good_it_is(tmp_path: Path) -> None:
    view = PredictionView.from_front(front(*MEMBERS))
    text = words(prediction_figure(view), tmp_path)
    assert "3 networks: mean absolute error 8.5 %; 100 % of pairs over 10 % apart" in text
    one = words(prediction_figure(PredictionView.from_front(front(MEMBERS[0]))), tmp_path)
    assert "1 network: mean absolute error 11.1 %" in one


def test_breakdown_figure_puts_small_shares_together(tmp_path: Path) -> None:
    record = prediction(1.0, **{f"n{i}": (2, float(i)) for i in range(1, 21)})
    figure = breakdown_figure(BreakdownView.from_prediction("t", "s", record))
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(labels) == 14
    # 13 stand alone, the gap and 20 down to 9; what is left is 8 to 1, two launches each.
    assert labels[:2] == ["between kernels", "2 × linear 64→20"]
    assert labels[-1] == "16 launches of 8 other kinds"
    bars = figure.axes[0].patches
    assert [bar.get_width() for bar in bars] == [580.0, *range(40, 16, -2), 72.0]
    assert "1000 µs together" in words(figure, tmp_path)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_breakdown_figure_of_few_kernels(count: int, tmp_path: Path) -> None:
    record = prediction(0.1 * count, **{f"n{i}": (1, 100.0) for i in range(1, count + 1)})
    text = words(breakdown_figure(BreakdownView.from_prediction("t", "", record)), tmp_path)
    assert ("no kernel is launched" in text) == (count == 0)


@pytest.mark.parametrize("present", [None, 8, 20, 64])
def test_stairs_figure_marks_the_present_width(present: int | None, tmp_path: Path) -> None:
    widths = tuple(range(8, 65, 8))
    latency = tuple(10.0 * math.ceil(w / 32) for w in widths)
    view = StairView("t", "s", "output channels", widths, latency, (0.5,) * 8, present, "mine")
    text = words(stairs_figure(view), tmp_path)
    assert "<!-- Output channels -->" in text
    assert (f"<!-- mine: {present} -->" in text) == (present is not None)


@pytest.mark.parametrize("widths", [(), (8,)])
def test_stairs_figure_of_no_stairs(widths: tuple[int, ...], tmp_path: Path) -> None:
    view = StairView("t", "", "width", widths, (1.0,) * len(widths), (0.0,) * len(widths), 8)
    assert saved(stairs_figure(view), tmp_path)


# Files


def test_files_are_valid_and_deterministic(tmp_path: Path) -> None:
    view = FrontView.from_records(front(*MEMBERS), TRIALS)
    for suffix, magic in ((".png", b"\x89PNG\r\n\x1a\n"), (".pdf", b"%PDF-"), (".svg", b"<?xml")):
        first, second = (saved(pareto_figure(view), tmp_path, suffix) for _ in range(2))
        assert first.startswith(magic)
        assert first == second
    root = ElementTree.fromstring(saved(pareto_figure(view), tmp_path))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["plot.pdf", "plot.png", "plot.svg"]


def test_one_figure_goes_to_several_paths(tmp_path: Path) -> None:
    figure = stairs_figure(StairView("t", "", "width", (8, 16), (1.0, 2.0), (0.0, 0.0)))
    paths = [tmp_path / "stairs.png", tmp_path / "deeper" / "stairs.svg"]
    assert save_figure(figure, *paths) == paths
    assert all(path.stat().st_size > 1000 for path in paths)


def test_other_suffixes_are_refused(tmp_path: Path) -> None:
    figure = stairs_figure(StairView("t", "", "width", (8, 16), (1.0, 2.0), (0.0, 0.0)))
    with pytest.raises(RequestError, match=r"\.pdf, \.png, \.svg; got 'a\.jpg'"):
        save_figure(figure, tmp_path / "a.png", tmp_path / "a.jpg")
    assert list(tmp_path.iterdir()) == []


def test_fonts_are_readable() -> None:
    figures = [
        pareto_figure(FrontView.from_records(front(*MEMBERS), TRIALS)),
        breakdown_figure(BreakdownView.from_prediction("t", "s", prediction(0.1, n1=(1, 90.0)))),
    ]
    for figure in figures:
        sizes = [t.get_fontsize() for t in figure.findobj(lambda a: hasattr(a, "get_fontsize"))]
        assert len(sizes) > 10
        assert min(sizes) >= 9


def test_the_users_style_stays_as_it_was() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    pareto_figure(FrontView.from_records(front(*MEMBERS), TRIALS))
    assert dict(matplotlib.rcParams) == before
