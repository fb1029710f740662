"""Clicking through the pages in a real browser; ``make screenshots`` takes its pictures here."""

from __future__ import annotations

import contextlib
import json
import os
import time
import zipfile
from pathlib import Path

import pytest
from browser_examples import chromium, enlarge, served
from studies_examples import finished

from tadnn.cli.browsing import build_export
from tadnn.cli.main import run
from tadnn.report import Library
from tadnn.report.browser import build_app

SECOND = {"latency_model": "auto-tiny", "sampler": "nsga2", "seed": 3, "finalists": None}
PICTURES = os.environ.get("TADNN_SCREENSHOTS")
"""The folder that screenshots go to; none are kept when absent."""

# What people see first is a study worth looking at; tests need no more than a front.
SIZE = {"trials": 70, "sampler": "nsga2"} if PICTURES else {}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chromium")
    finalists = {"count": 3, "epochs": 6 if PICTURES else 2, "measure": True}
    with finished(folder, **SIZE, finalists=finalists), finished(folder, name="second", **SECOND):
        return folder


@pytest.fixture(scope="module")
def address(whole):
    with contextlib.chdir(whole), served(build_app(Library(), build_export)) as at:
        yield at


@pytest.fixture(scope="module")
def browser():
    with chromium() as driven:
        yield driven


@pytest.fixture
def page(browser, address):
    """A page whose console must stay without errors."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, base_url=address)
    opened = context.new_page()
    opened.set_default_timeout(60_000)
    said = []
    opened.on("console", lambda m: said.append(m.text) if m.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: said.append(str(error)))
    yield opened
    context.close()
    assert said == []


def until(page, holds):
    """Wait until an expression holds in the page (whose policy forbids Playwright's own way)."""
    deadline = time.monotonic() + 60
    while not page.evaluate(holds):
        assert time.monotonic() < deadline, holds
        time.sleep(0.05)


def ready(page):
    """Wait until the charts are drawn, and fit into the window."""
    until(
        page, "[...document.querySelectorAll('.chart')].every((c) => c.querySelector('.main-svg'))"
    )
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def knee_of(folder):
    data = json.loads((folder / "studies" / "tiny" / "front.json").read_text())
    measured = [m["trial"] for m in data["members"] if m["measured"]]
    return measured[0]


def test_from_the_list_to_a_network_and_its_export(page, whole, tmp_path):
    page.goto("/")
    page.get_by_role("link", name="tiny").click()
    ready(page)
    assert page.title() == "tiny · tadnn"
    # Choosing by the keyboard: the first trial's box, then the second's.
    boxes = page.locator("[data-choose]")
    boxes.nth(0).focus()
    page.keyboard.press("Space")
    boxes.nth(1).check()
    chosen = page.locator("[data-chosen]")
    assert chosen.get_by_text("Side by side").is_visible()
    first = boxes.nth(0).get_attribute("data-choose")
    chosen.get_by_role("link", name=f"#{first}", exact=True).click()
    ready(page)
    assert page.title() == f"tiny #{first} · tadnn"
    stairs = page.locator("[data-group]")
    stairs.nth(1).click()
    assert stairs.nth(1).get_attribute("aria-pressed") == "true"
    with page.expect_download(timeout=120_000) as waiting:
        page.get_by_role("link", name="Download the export").click()
    path = tmp_path / "export.zip"
    waiting.value.save_as(path)
    assert zipfile.ZipFile(path).testzip() is None
    page.locator("main").get_by_role("link", name="Latency model").click()
    ready(page)
    assert page.get_by_role("heading", name="auto-tiny").is_visible()


def test_a_point_is_chosen_by_clicking_it_and_a_box_lists_its_points(page):
    page.goto("/studies/tiny")
    ready(page)
    place = page.evaluate(
        """() => {
          const plot = document.querySelector("[data-front]"), box = plot.getBoundingClientRect();
          const front = plot.data.find((t) => /^front/.test(t.name));
          const {xaxis: x, yaxis: y} = plot._fullLayout;
          return {
            trial: front.customdata[0],
            x: box.left + x._offset + x.d2p(front.x[0]),
            y: box.top + y._offset + y.d2p(front.y[0]),
          };
        }"""
    )
    page.mouse.move(place["x"] - 2, place["y"])
    page.mouse.move(place["x"], place["y"])
    page.mouse.down()
    page.mouse.up()
    page.wait_for_selector(f'[data-chosen] th:has-text("#{place["trial"]}")')
    count = page.locator("[data-count]")
    every = count.inner_text()
    page.mouse.move(place["x"] - 12, place["y"] - 12)
    page.mouse.down()
    page.mouse.move(place["x"] + 12, place["y"] + 12, steps=4)
    page.mouse.up()
    until(page, "document.querySelector('[data-count]').textContent.includes('in the box')")
    assert count.inner_text() != every
    assert page.locator(f'[data-choose="{place["trial"]}"]').is_checked()


def test_axes_filters_and_sorting(page):
    page.goto("/studies/tiny")
    ready(page)
    axis = page.locator("[data-explorer] [data-axis='y']")
    for value in axis.locator("option").evaluate_all("(all) => all.map((o) => o.value)"):
        axis.select_option(value)
    axis.select_option("flops")
    assert "FLOPs" in page.locator("[data-front] .ytitle").text_content()
    page.locator("[data-log='y']").check()
    assert page.evaluate("document.querySelector('[data-front]').layout.yaxis.type") == "log"
    page.get_by_role("button", name="FLOPs").click()
    header = page.locator("th[aria-sort='ascending']")
    assert "FLOPs" in header.inner_text()
    page.get_by_role("button", name="FLOPs").click()
    assert "FLOPs" in page.locator("th[aria-sort='descending']").inner_text()
    rows = page.locator("[data-table] tbody tr")
    search = page.locator("[data-filter]")
    search.fill("width1=8")
    shown = rows.locator(".arch").all_inner_texts()
    assert shown
    assert all("width 8" in text for text in shown)
    search.fill("latency<0")
    assert rows.count() == 0
    search.fill("")
    page.locator("[data-front-only]").check()
    assert set(rows.locator("td.front").all_inner_texts()) <= {"front", "front, knee"}


def test_studies_are_compared(page):
    page.goto("/")
    page.get_by_label("Compare tiny").check()
    page.get_by_label("Compare second").check()
    page.get_by_role("button", name="Compare the chosen studies").click()
    ready(page)
    assert page.evaluate("document.querySelector('[data-fronts]').data.map((t) => t.name)") == [
        "second", "tiny",
    ]  # fmt: skip
    page.locator("[data-axis='x']").select_option("1")


def test_every_page_in_the_dark_in_a_narrow_window_and_by_keyboard(page, whole):
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 390, "height": 800})
    for path in ("/", "/studies/tiny", f"/studies/tiny/trials/{knee_of(whole)}",
                 "/compare?study=tiny&study=second", "/latency-models",
                 "/latency-models/auto-tiny"):  # fmt: skip
        page.goto(path)
        ready(page)
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 28)"
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        nameless = page.evaluate(
            "[...document.querySelectorAll('[role=img]')].filter((e) => !e.ariaLabel).length"
        )
        assert nameless == 0
    page.get_by_role("button", name="Switch to light colours").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"


def test_a_running_study_shows_new_trials_by_itself(page, whole):
    import optuna

    from tadnn.search.owner import Owner

    storage = f"sqlite:///{whole}/studies/second/study.db"
    study = optuna.load_study(
        study_name="second", storage=storage, sampler=optuna.samplers.RandomSampler()
    )
    trial = study.ask()
    trial.set_user_attr("tadnn:worker", Owner.current().to_dict())
    page.goto("/studies/second")
    ready(page)
    assert page.locator(".state").inner_text() == "running"
    trial.set_user_attr("tadnn:error", "it broke")
    study.tell(trial, state=optuna.trial.TrialState.FAIL)
    until(page, "document.querySelector('.state').textContent === 'done'")
    assert "1 failed" in page.locator("#live").inner_text()


def test_twenty_thousand_trials_stay_fluid(page, browser, whole, address):
    with contextlib.chdir(whole):
        enlarge(whole, "many")
    page.goto("/studies/many")
    ready(page)
    points = page.evaluate(
        "document.querySelector('[data-front]').data.reduce((n, t) => n + (t.x || []).length, 0)"
    )
    assert points < 4000  # drawn: what covers each other is drawn once
    assert "20000 of 20000" in page.locator("[data-count]").inner_text()
    page.locator("[data-filter]").fill("width1=8 latency<0.1")
    assert 0 < page.locator("[data-table] tbody tr").count() <= 25
    page.locator("[data-axis='x']").select_option("flops")
    assert page.locator("[data-front] .xtitle").text_content() == "FLOPs"


def test_a_report_opens_without_a_server(page, whole, monkeypatch):
    monkeypatch.chdir(whole)
    assert run(["report", "tiny", "-o", "report.html"]) == 0
    page.goto((whole / "report.html").as_uri())
    ready(page)
    trial = knee_of(whole)
    page.get_by_role("navigation").get_by_role("link", name=f"#{trial}").click()
    part = page.locator(f"#trial-{trial}")
    assert part.get_attribute("open") is not None
    assert part.get_by_role("heading", name="Tail view").is_visible()


@pytest.mark.skipif(not PICTURES, reason="make screenshots sets TADNN_SCREENSHOTS")
def test_screenshots(page, whole):
    folder = Path(PICTURES)
    folder.mkdir(parents=True, exist_ok=True)
    page.set_viewport_size({"width": 1200, "height": 860})
    page.goto("/studies/tiny")
    ready(page)
    page.wait_for_timeout(500)
    page.screenshot(path=folder / "study.png")
    page.emulate_media(color_scheme="dark")
    page.goto(f"/studies/tiny/trials/{knee_of(whole)}")
    ready(page)
    page.wait_for_timeout(500)
    page.screenshot(path=folder / "network.png")
    page.locator("[data-stairs]").screenshot(path=folder / "tail.png")
