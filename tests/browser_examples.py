"""What tests of the browser share: a served library, a study of many trials, a driven Chromium."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from conftest import require

from tadnn.report.browser import HOST, new_server, open_port

CHROMIUM = Path("/usr/bin/chromium")
MANY = 20_000


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Serve an application on a free port; yield its address."""
    listening = open_port(0)
    server = new_server(app)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield f"http://{HOST}:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


@contextmanager
def chromium() -> Iterator[Any]:
    """Yield a Chromium that Playwright drives; skip the test where it is absent."""
    require(CHROMIUM.is_file(), f"{CHROMIUM} (apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Tests may run as root, where Chromium's sandbox does not start.
        browser = playwright.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


def enlarge(folder: Path, name: str, source: str = "tiny", trials: int = MANY) -> None:
    """Make ``studies/NAME``: a copy of a finished study with very many made-up trials."""
    studies = folder / "studies"
    spec = yaml.safe_load((studies / f"{source}.yaml").read_text())
    spec |= {"name": name, "trials": trials}
    (studies / f"{name}.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    (studies / name).mkdir()
    database = studies / name / "study.db"
    shutil.copy(studies / source / "study.db", database)
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        _fill(connection, name, trials)


def _fill(connection: sqlite3.Connection, name: str, trials: int) -> None:
    connection.execute("UPDATE studies SET study_name = ?", (name,))
    key = "tadnn:spec"
    (text,) = connection.execute(
        "SELECT value_json FROM study_user_attributes WHERE key = ?", (key,)
    ).fetchone()
    spec = {**json.loads(text), "name": name, "trials": trials}
    connection.execute(
        "UPDATE study_user_attributes SET value_json = ? WHERE key = ?", (json.dumps(spec), key)
    )
    row = "SELECT trial_id, datetime_start, datetime_complete FROM trials WHERE number = 0"
    first, start, end = connection.execute(row).fetchone()
    sql = "SELECT key, value_json FROM trial_user_attributes WHERE trial_id = ?"
    attributes = dict(connection.execute(sql, (first,)))
    sql = "SELECT param_name, param_value, distribution_json FROM trial_params WHERE trial_id = ?"
    params = connection.execute(sql, (first,)).fetchall()
    (most,) = connection.execute("SELECT max(number) FROM trials").fetchone()
    (last,) = connection.execute("SELECT max(trial_id) FROM trials").fetchone()
    draw = random.Random(0)
    for i in range(1, trials - most):
        _add(connection, last + i, most + i, (start, end), attributes, params, draw)


def _add(
    connection: sqlite3.Connection,
    trial: int,
    number: int,
    times: tuple[str, str],
    attributes: dict[str, str],
    params: list[Any],
    draw: random.Random,
) -> None:
    latency = 0.05 + 0.5 * draw.random()
    score = 4e4 * latency**0.5 * (1 - 0.6 * draw.random())
    result = json.loads(attributes["tadnn:result"])
    result |= {"key": f"{number:016x}", "parameters": int(score), "flops": int(1e7 * latency)}
    result["predicted"] = {"latency_ms": latency, "std_ms": 0.02 * latency, "in_range": True}
    result["proxy"] = {"name": "parameters", "value": score}
    result["arch"] |= {f"width{i}": draw.choice([8, 16, 24]) for i in range(1, 5)}
    connection.execute(
        "INSERT INTO trials (trial_id, number, study_id, state, datetime_start, datetime_complete)"
        " VALUES (?, ?, 1, 'COMPLETE', ?, ?)",
        (trial, number, *times),
    )
    connection.executemany(
        "INSERT INTO trial_values (trial_id, objective, value, value_type)"
        " VALUES (?, ?, ?, 'FINITE')",
        [(trial, 0, latency), (trial, 1, score)],
    )
    connection.executemany(
        "INSERT INTO trial_params (trial_id, param_name, param_value, distribution_json)"
        " VALUES (?, ?, ?, ?)",
        [(trial, *param) for param in params],
    )
    stored = {**attributes, "tadnn:result": json.dumps(result)}
    connection.executemany(
        "INSERT INTO trial_user_attributes (trial_id, key, value_json) VALUES (?, ?, ?)",
        [(trial, *item) for item in stored.items()],
    )
