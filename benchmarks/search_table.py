r"""How much of a table's front samplers find within a budget of evaluations.

    python benchmarks/search_table.py TABLE.csv[.gz] --features 'block*' \
        --minimize '100 - val_top1' --minimize '1000/throughput_a100_ips' \
        [--known '1000/throughput_a100_ips'] --budgets 50,100,200 --seeds 10 \
        --samplers random,nsga2,tpe,frontier [--plot PICTURE.png] [--json]

Every row is a network that somebody evaluated; a search sees its objectives once it has paid for
it. Hypervolumes are against the table's worst corner, relative to that of the whole table. Random
search and ``frontier`` choose among the rows and take none twice. NSGA-II and TPE propose any
combination of features; the nearest row by Hamming distance is evaluated, and a row that comes up
again costs an evaluation. ``--known`` names an objective that needs no evaluation, such as
latency by an exact model; only ``frontier`` can use it.
"""

from __future__ import annotations

import argparse
import ast
import csv
import fnmatch
import gzip
import json
import math
import operator
import sys
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from tadnn.errors import RequestError, TableError, TadnnError, UnknownName
from tadnn.files import write_text
from tadnn.pareto import front_mask, hypervolume
from tadnn.search import FrontierSampler

REPETITION = "#"
SAMPLERS = ("random", "nsga2", "tpe", "frontier")
OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
FUNCTIONS = {"log": np.log, "sqrt": np.sqrt, "exp": np.exp, "abs": np.abs}


@dataclass(frozen=True)
class Table:
    """Rows and their objectives, all minimised.

    Attributes:
        points: the features of each row, and how many rows before it have the same ones.
        values: [n, objectives].
        known: indices of the objectives that need no evaluation.
    """

    points: list[dict[str, Any]]
    values: np.ndarray
    known: tuple[int, ...]


def read_columns(path: Path) -> dict[str, list[str]]:
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8", newline="") as file:
            reader = csv.reader(file)
            header = next(reader, [])
            rows = []
            for row in reader:
                if not row:
                    continue
                if len(row) != len(header):
                    raise TableError(
                        f"{path}, line {reader.line_num}: {len(header)} values expected as in "
                        f"the header; got {len(row)}"
                    )
                rows.append(row)
    except FileNotFoundError:
        raise RequestError(f"no such table: {path}") from None
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise TableError(f"{path} is no readable CSV: {error}") from None
    if not rows:
        raise TableError(f"a table has a header and at least one row; {path} has no row")
    if len(set(header)) < len(header):
        raise TableError(f"{path}: columns have distinct names; got {', '.join(header)}")
    return {name: [row[i] for row in rows] for i, name in enumerate(header)}


def features(columns: Mapping[str, list[str]], patterns: str) -> dict[str, list[Any]]:
    """Return the columns that match one of the patterns, as numbers where all are."""
    chosen: dict[str, list[Any]] = {}
    for pattern in (part.strip() for part in patterns.split(",")):
        names = fnmatch.filter(columns, pattern)
        if not names:
            raise UnknownName("column", pattern, columns)
        for name in names:
            chosen[name] = parsed(columns[name])
    return chosen


def parsed(texts: list[str]) -> list[Any]:
    for kind in (int, float):
        try:
            values = [kind(text) for text in texts]
        except ValueError:
            continue
        if all(map(math.isfinite, values)):
            return values
    return list(texts)


def evaluate(text: str, columns: Mapping[str, list[str]]) -> np.ndarray:
    """Evaluate a column's name or an arithmetic expression of columns, [n]; nothing is run."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        tree = None
    if text.strip() in columns:  # a name with spaces or dashes, too
        values = numbers(text.strip(), columns)
    elif tree is None:
        raise RequestError(f"an objective is a column or an expression of columns; got {text!r}")
    else:
        with np.errstate(all="ignore"):
            values = np.asarray(_value(tree, columns, text), dtype=float)
    rows = len(next(iter(columns.values())))
    return np.broadcast_to(values, (rows,)).copy()


def _value(node: ast.AST, columns: Mapping[str, list[str]], text: str) -> Any:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        # As a float: 9**9**9 of integers would never end.
        return np.float64(node.value)
    if isinstance(node, ast.Name):
        return numbers(node.id, columns)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        left, right = _value(node.left, columns, text), _value(node.right, columns, text)
        return OPERATORS[type(node.op)](left, right)
    if isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_value(node.operand, columns, text))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        function = FUNCTIONS.get(node.func.id)
        if function is None:
            raise UnknownName("function", node.func.id, FUNCTIONS)
        if len(node.args) == 1:
            return function(_value(node.args[0], columns, text))
    raise RequestError(
        "an expression has numbers, columns, + - * / **, parentheses and the functions "
        f"{', '.join(FUNCTIONS)} of one value; got {ast.unparse(node)!r} in {text!r}"
    )


def numbers(name: str, columns: Mapping[str, list[str]]) -> np.ndarray:
    if name not in columns:
        raise UnknownName("column", name, columns)
    try:
        return np.array([float(text) if text.strip() else math.nan for text in columns[name]])
    except ValueError:
        wrong = next(text for text in columns[name] if not _is_number(text))
        raise TableError(f"objectives are numbers; column {name} has {wrong!r}") from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return not text.strip()
    return True


def load(
    path: Path, patterns: str, objectives: Sequence[tuple[str, float]], known: Sequence[str]
) -> Table:
    """Read a table; ``objectives`` are expressions and 1 (minimised) or -1 (maximised)."""
    columns = read_columns(path)
    chosen = features(columns, patterns)
    texts = ["".join(text.split()) for text, _ in objectives]
    if len(set(texts)) < len(texts):
        raise RequestError(f"objectives are distinct; got {', '.join(texts)}")
    for text in known:
        if "".join(text.split()) not in texts:
            raise UnknownName("known objective", text, [text for text, _ in objectives])
    values = np.stack([sign * evaluate(text, columns) for text, sign in objectives], axis=1)
    whole = np.isfinite(values).all(axis=1)
    if not whole.all():
        dropped = int((~whole).sum())
        print(
            f"note: {dropped} of {len(values)} rows have no finite objectives and are left out",
            file=sys.stderr,
        )
    if not whole.any():
        raise TableError(f"{path}: no row has finite objectives")
    points = []
    met: Counter[tuple[Any, ...]] = Counter()
    for row in np.flatnonzero(whole).tolist():
        design = tuple(column[row] for column in chosen.values())
        points.append(dict(zip(chosen, design, strict=True)) | {REPETITION: met[design]})
        met[design] += 1
    wanted = {"".join(text.split()) for text in known}
    return Table(points, values[whole], tuple(i for i, text in enumerate(texts) if text in wanted))


class Nearest:
    """The row nearest to any combination of features, by Hamming distance; the first of equals."""

    def __init__(self, table: Table) -> None:
        self.levels = {
            name: list(dict.fromkeys(point[name] for point in table.points))
            for name in table.points[0]
            if name != REPETITION
        }
        self._codes = {
            name: {level: code for code, level in enumerate(levels)}
            for name, levels in self.levels.items()
        }
        self._rows = np.array([self._encode(point) for point in table.points])

    def row(self, point: Mapping[str, Any]) -> int:
        """Return its index."""
        return int(np.argmin((self._rows != self._encode(point)).sum(axis=1)))

    def _encode(self, point: Mapping[str, Any]) -> np.ndarray:
        return np.array([self._codes[name][point[name]] for name in self._codes])


def search(table: Table, kind: str, seed: int, budget: int) -> list[int]:
    """Return the rows that a sampler evaluates, in order."""
    if kind == "random":
        rng = np.random.default_rng(seed)
        return [int(row) for row in rng.permutation(len(table.points))[:budget]]
    rows: list[int] = []
    nearest = Nearest(table)
    most = max(point[REPETITION] for point in table.points)
    where = {frozenset(point.items()): row for row, point in enumerate(table.points)}

    def objective(trial: optuna.Trial) -> list[float]:
        point = {n: trial.suggest_categorical(n, levels) for n, levels in nearest.levels.items()}
        if kind == "frontier":
            point[REPETITION] = trial.suggest_int(REPETITION, 0, most)
            rows.append(where[frozenset(point.items())])
        else:
            rows.append(nearest.row(point))
        return [float(value) for value in table.values[rows[-1]]]

    def known(index: int, points: Sequence[Mapping[str, Any]]) -> np.ndarray:
        return table.values[[where[frozenset(point.items())] for point in points], index]

    sampler: optuna.samplers.BaseSampler
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if kind == "nsga2":
            sampler = optuna.samplers.NSGAIISampler(seed=seed)
        elif kind == "tpe":
            sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True)
        else:
            measures = {i: (lambda points, i=i: known(i, points)) for i in table.known}
            sampler = FrontierSampler(seed, pool=table.points, known=measures)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(directions=["minimize"] * table.values.shape[1], sampler=sampler)
    study.optimize(objective, n_trials=budget)
    return rows


def measured(
    table: Table, samplers: Sequence[str], budgets: Sequence[int], seeds: int
) -> dict[str, Any]:
    """Run every sampler with every seed; return the record that ``--json`` prints."""
    reference = table.values.max(axis=0)
    whole = hypervolume(table.values, reference)
    if whole <= 0:
        raise TableError(
            "every objective takes at least two values, and one row beats the worst "
            "corner in all of them; here the whole table dominates nothing"
        )
    results = []
    for kind in samplers:
        ratios = np.zeros((seeds, len(budgets)))
        start = time.perf_counter()
        for seed in range(seeds):
            rows = search(table, kind, seed, max(budgets))
            for column, budget in enumerate(budgets):
                found = hypervolume(table.values[rows[:budget]], reference)
                ratios[seed, column] = found / whole
            print(f"{kind}, seed {seed}: {ratios[seed].round(4).tolist()}", file=sys.stderr)
        per_trial = (time.perf_counter() - start) / (seeds * max(budgets))
        results += [
            {
                "sampler": kind,
                "budget": budget,
                "hv_ratio_mean": float(ratios[:, column].mean()),
                "hv_ratio_std": float(ratios[:, column].std()),
                "seconds_per_trial": per_trial,
            }
            for column, budget in enumerate(budgets)
        ]
    front = int(front_mask(table.values).sum())
    return {"rows": len(table.points), "front_size": front, "results": results}


def show(record: Mapping[str, Any]) -> str:
    """Return the record as a table for people."""
    lines = [f"{record['rows']} rows, {record['front_size']} on the front", ""]
    lines += [
        "| sampler | evaluations | hypervolume | std | s per trial |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['sampler']} | {r['budget']} | {r['hv_ratio_mean']:.4f} | {r['hv_ratio_std']:.4f} "
        f"| {r['seconds_per_trial']:.3f} |"
        for r in record["results"]
    ]
    return "\n".join(lines) + "\n"


def draw(record: Mapping[str, Any], path: Path) -> None:
    """Draw the share of the hypervolume that is missing, against the evaluations."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for kind in dict.fromkeys(r["sampler"] for r in record["results"]):
        own = [r for r in record["results"] if r["sampler"] == kind]
        missing = [max(1e-5, 1.0 - r["hv_ratio_mean"]) for r in own]
        axes.errorbar(
            [r["budget"] for r in own],
            missing,
            [min(r["hv_ratio_std"], 0.9 * m) for r, m in zip(own, missing, strict=True)],
            marker="o",
            capsize=3,
            label=kind,
        )
    axes.set(yscale="log", xlabel="evaluations", ylabel="missing share of the hypervolume")
    axes.grid(alpha=0.3, which="both")
    axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def listed(text: str, what: str, valid: Iterable[str] | None = None) -> list[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise RequestError(f"--{what} lists at least one, by commas; got {text!r}")
    for part in parts:
        if valid is not None and part not in valid:
            raise UnknownName(what.rstrip("s"), part, valid)
    return list(dict.fromkeys(parts))


def counts(text: str, what: str) -> list[int]:
    parts = listed(text, what)
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise RequestError(f"--{what} are positive whole numbers, by commas; got {text!r}")
    return sorted({int(part) for part in parts})


class Objective(argparse.Action):
    """Keeps --minimize and --maximize in the order in which they were given."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        """Add one."""
        sign = 1.0 if option == "--minimize" else -1.0
        namespace.objectives = [*(namespace.objectives or []), (values, sign)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", type=Path)
    parser.add_argument("--features", required=True, help="columns by names or patterns, by commas")
    parser.add_argument("--minimize", action=Objective, dest="objectives", metavar="EXPR")
    parser.add_argument("--maximize", action=Objective, dest="objectives", metavar="EXPR")
    parser.add_argument(
        "--known",
        action="append",
        default=[],
        metavar="EXPR",
        help="one of the objectives that needs no evaluation",
    )
    parser.add_argument("--budgets", default="50,100,200")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--samplers", default=",".join(SAMPLERS))
    parser.add_argument("--plot", type=Path, help="also draw the curves")
    parser.add_argument("--write", type=Path, help="also write the table, as Markdown")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    try:
        if not options.objectives:
            raise RequestError("at least one of --minimize and --maximize is needed")
        if options.seeds < 1:
            raise RequestError(f"--seeds is a positive whole number; got {options.seeds}")
        samplers = listed(options.samplers, "samplers", SAMPLERS)
        budgets = counts(options.budgets, "budgets")
        table = load(options.table, options.features, options.objectives, options.known)
        if max(budgets) > len(table.points):
            print(
                f"note: the table has {len(table.points)} rows; larger budgets are cut",
                file=sys.stderr,
            )
            budgets = sorted({min(budget, len(table.points)) for budget in budgets})
        record = measured(table, samplers, budgets, options.seeds)
    except TadnnError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if options.plot is not None:
        draw(record, options.plot)
    if options.write is not None:
        options.write.parent.mkdir(parents=True, exist_ok=True)
        write_text(options.write, show(record))
    print(json.dumps(record, indent=2) if options.json else show(record), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
