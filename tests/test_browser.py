"""The browser's pages, asked for as a browser would ask, and the report file."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import sqlite3
import threading
import zipfile

import httpx
import pytest
import yaml
from browser_examples import MANY, enlarge, served
from studies_examples import finished, write_study

from tadnn.cli.browsing import build_export
from tadnn.cli.main import run
from tadnn.errors import RequestError, UnknownName
from tadnn.report import Library
from tadnn.report.browser import Exports, build_app, open_port
from tadnn.report.browser.assets import assets
from tadnn.search import load_spec

TIGHT = {"latency_model": "auto-tiny", "constraints": {"parameters": 4000.0}, "finalists": None}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder with two finished studies; leave it as it is."""
    folder = tmp_path_factory.mktemp("browser")
    with finished(folder), finished(folder, name="tight", **TIGHT):
        return folder


@pytest.fixture(scope="module")
def knee(whole):
    return json.loads((whole / "studies" / "tiny" / "front.json").read_text())["members"][0][
        "trial"
    ]


@pytest.fixture(scope="module")
def site(whole):
    """The studies of that folder, served."""
    with contextlib.chdir(whole):
        with served(build_app(Library(), build_export)) as address:
            with httpx.Client(base_url=address, timeout=60) as client:
                yield client


@pytest.fixture
def here(whole, tmp_path, monkeypatch):
    """A copy of the folder, to do harm to."""
    folder = tmp_path / "here"
    shutil.copytree(whole, folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def own(here):
    with served(build_app(Library(("tiny",)))) as address:
        with httpx.Client(base_url=address, timeout=60) as client:
            yield client


def sentence(answer):
    """Return what an error page says, without its markup."""
    import html

    return html.unescape(re.search(r'class="error-text">([^<]+)<', answer.text)[1])


def test_every_page_answers_and_is_also_json(site, knee):
    pages = ["/studies/tiny", "/studies/tight", f"/studies/tiny/trials/{knee}",
             "/latency-models", "/latency-models/auto-tiny"]  # fmt: skip
    for page in pages:
        answer = site.get(page)
        assert answer.status_code == 200, page
        assert answer.text.startswith("<!doctype html>")
        assert answer.headers["content-type"].startswith("text/html")
        assert "script-src 'self';" in answer.headers["content-security-policy"]
        data = site.get(f"{page}.json")
        assert data.headers["content-type"] == "application/json", page
        assert isinstance(data.json(), dict)
    for page, data in (
        ("/", "/studies.json"),
        ("/compare?study=tiny&study=tight", "/compare.json?study=tiny&study=tight"),
    ):
        assert site.get(page).status_code == 200
        assert site.get(data).json()


def test_the_list_of_studies(site):
    rows = {row["key"]: row for row in site.get("/studies.json").json()["studies"]}
    assert set(rows) == {"tiny", "tight"}  # the built-in quickstart was never searched here
    assert rows["tiny"]["progress"]["completed"] == 12
    assert rows["tiny"]["progress"]["state"] == "done"
    assert rows["tiny"]["hypervolume"] > 0
    assert "meets the constraints" in rows["tight"]["warning"]


def test_a_study_says_what_front_json_says(site, whole):
    front = json.loads((whole / "studies" / "tiny" / "front.json").read_text())
    data = site.get("/studies/tiny.json").json()
    on_front = {t for t, s in zip(data["trials"], data["status"], strict=True) if s == 0}
    assert on_front == {m["trial"] for m in front["members"]}
    assert data["history"]["volume"] == pytest.approx(front["hypervolume"], rel=1e-5)
    assert data["history"]["reference"] == pytest.approx(front["reference"], rel=1e-5)
    columns = {c["key"]: c for c in data["columns"]}
    assert {"latency", "accuracy", "flops", "memory_bytes", "trial"} <= set(columns)
    for member in front["members"]:
        at = data["trials"].index(member["trial"])
        predicted = member["predicted"]
        assert columns["latency"]["values"][at] == pytest.approx(predicted["latency_ms"], rel=1e-5)
        assert columns["latency"]["errors"][at] == pytest.approx(predicted["std_ms"], rel=1e-5)
        arch = {
            name: choice["values"][choice["index"][at]]
            for name, choice in data["choices"].items()
            if choice["index"][at] >= 0
        }
        assert arch == member["arch"]
        if member["measured"]:
            measured = columns["latency"]["measured"][str(member["trial"])]
            assert measured[0] == pytest.approx(member["measured"]["latency_ms"], rel=1e-5)
    page = site.get("/studies/tiny").text
    embedded = re.search(r'id="study-data">(.*?)</script>', page, re.S)[1]
    assert json.loads(embedded) == data


def test_a_network_says_what_the_command_line_says(site, whole, knee, monkeypatch, capsys):
    monkeypatch.chdir(whole)
    view = site.get(f"/studies/tiny/trials/{knee}.json").json()
    line = next(c["line"] for c in view["commands"] if c["line"].startswith("tadnn latency"))
    assert line == f"tadnn latency 'tiny#{knee}' --on auto-tiny"
    assert run(["latency", f"tiny#{knee}", "--on", "auto-tiny", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert view["breakdown"]["total_us"] == pytest.approx(1000 * printed["latency_ms"], rel=1e-5)
    kernels = [s for s in view["breakdown"]["shares"] if s["is_kernel"]]
    assert len(kernels) == len(printed["kernels"])
    assert [s["waves"] for s in kernels] == [k["waves"] for k in printed["kernels"]]
    assert [s["utilisation"] for s in kernels] == pytest.approx(
        [k["utilisation"] for k in printed["kernels"]], rel=1e-5
    )
    blocks = [b for stage in view["stages"] for b in stage["blocks"]]
    assert sum(b["latency_us"] for b in blocks) == pytest.approx(
        sum(s["latency_us"] for s in kernels), rel=1e-3
    )
    page = site.get(f"/studies/tiny/trials/{knee}").text
    assert page.count('role="img"') >= 3
    assert all("aria-label=" in tag for tag in re.findall(r"<[^>]*role=\"img\"[^>]*>", page))


def test_the_tail_view_says_what_tadnn_tail_says(site, whole, knee, monkeypatch, capsys):
    monkeypatch.chdir(whole)
    view = site.get(f"/studies/tiny/trials/{knee}.json").json()
    assert run(["tail", f"tiny#{knee}", "--on", "auto-tiny", "--json"]) == 0
    groups = json.loads(capsys.readouterr().out)["groups"]
    assert [g["name"] for g in view["groups"]] == [g["name"] for g in groups]
    page = site.get(f"/studies/tiny/trials/{knee}").text
    for shown, group in zip(view["groups"], groups, strict=True):
        assert shown["layers"] == group["layers"]
        assert (shown["width"], shown["waves"]) == (group["width"], group["waves"])
        assert shown["utilisation"] == pytest.approx(group["utilisation"], rel=1e-5)
        assert shown["latency_us"] == pytest.approx(group["latency_us"], rel=1e-5)
        assert shown["frozen"] == (group["frozen"] or "")
        assert (shown["below"] or {}).get("width") == (group["edge_down"] or {}).get("width")
        assert (shown["above"] or {}).get("width") == (group["edge_up"] or {}).get("width")
        assert f">{group['name']}<" in page
        stair = shown["stair"]
        assert (stair is None) == bool(group["frozen"])
        if stair is not None:
            assert stair["present"] == group["width"]
            edges = [e["width"] for e in (shown["below"], shown["above"]) if e]
            assert set(edges) <= set(stair["efficient"]) <= set(stair["widths"])
    # Four widths that additions tie, and the classes, which can't change.
    assert sum(g["stair"] is not None for g in view["groups"]) >= 4
    assert "it is the network&#39;s output" in page


def test_a_latency_model_shows_its_card(site, whole):
    card = yaml.safe_load((whole / "latency_models" / "auto-tiny" / "card.yaml").read_text())
    view = site.get("/latency-models/auto-tiny.json").json()
    assert {op["op"]: op["rows"] for op in view["ops"]} == {
        op: facts["rows"] for op, facts in card["ops"].items()
    }
    assert view["rows"] == len(view["pairs"]) == card["data"]["rows"]
    assert view["nets"]["mape"] == card["nets"]["held_out"]["mape"]
    conv = next(op for op in view["ops"] if op["op"] == "conv2d")
    assert dict(conv["ranges"])["k"] == "{} to {}".format(*card["ops"]["conv2d"]["range"]["k"])
    assert dict(conv["ranges"])["stride"] == ", ".join(
        map(str, card["ops"]["conv2d"]["range"]["stride"])
    )


def test_studies_are_compared(site):
    view = site.get("/compare.json?study=tiny&study=tight&study=tiny").json()
    assert [s["key"] for s in view["studies"]] == ["tiny", "tight"]
    assert view["studies"][0]["volume"] > 0
    assert view["studies"][1]["trials"] == []
    page = site.get("/compare?study=tiny").text
    assert 'value="tiny" checked' in page


def test_an_export_is_downloaded_whole(site, knee):
    answer = site.get(f"/studies/tiny/trials/{knee}/export.zip")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/zip"
    assert f"tiny-{knee}.zip" in answer.headers["content-disposition"]
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.testzip() is None
        names = set(archive.namelist())
    assert {f"tiny-{knee}/{n}" for n in ("model.onnx", "card.md", "SHA256SUMS")} <= names


def test_exports_are_built_one_at_a_time_and_once(tmp_path):
    running, most, built = 0, 0, []
    lock = threading.Lock()

    def build(spec, trial, folder):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        folder.mkdir()
        (folder / "a.txt").write_text("a")
        built.append(trial)
        with lock:
            running -= 1

    exports = Exports(build)
    spec = type("Spec", (), {"name": "s"})()
    jobs = [
        threading.Thread(target=exports.zipped, args=("s", spec, trial, "facts"))
        for trial in (1, 2, 1, 2)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    path = exports.zipped("s", spec, 1, "facts")
    assert (sorted(built), most) == ([1, 2], 1)
    exports.zipped("s", spec, 1, "trained since")
    assert sorted(built) == [1, 1, 2]
    exports.close()
    assert not path.exists()


def test_without_a_builder_networks_are_not_handed_out(own, knee):
    assert "export.zip" not in own.get(f"/studies/tiny/trials/{knee}").text
    answer = own.get(f"/studies/tiny/trials/{knee}/export.zip")
    assert (answer.status_code, "without exports" in sentence(answer)) == (404, True)


def test_what_does_not_exist_is_404_with_near_matches(site, knee):
    assert "did you mean 'tiny'?" in sentence(site.get("/studies/tiney"))
    assert "did you mean 'auto-tiny'?" in sentence(site.get("/latency-models/auto-tony"))
    for page in ("/studies/tiney", "/studies/tiny/trials/999", "/studies/tiny/trials/x",
                 "/studies/tiny/trials/9" + "9" * 40, f"/studies/nope/trials/{knee}",
                 "/latency-models/nope", "/assets/nope.js", "/assets/app.py", "/nowhere",
                 "/compare?study=nope", f"/studies/tiny/trials/{knee}/export"):  # fmt: skip
        answer = site.get(page)
        assert answer.status_code == 404, page
        assert sentence(answer)
    answer = site.get("/studies/tiny/trials/999.json")
    assert (answer.status_code, answer.json()["status"]) == (404, 404)
    assert "no evaluated trial 999" in answer.json()["error"]
    assert site.get("/compare.json").status_code == 400


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8642", "127.0.0.1.evil.example", ""]
)
def test_a_foreign_host_is_refused(site, host):
    answer = site.get("/studies.json", headers={"host": host})
    assert answer.status_code == 400
    assert "127.0.0.1 and localhost only" in answer.json()["error"]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:9", "[::1]:80"])
def test_this_machine_is_welcome_by_any_of_its_names(site, host):
    assert site.get("/studies.json", headers={"host": host}).status_code == 200


def test_another_sites_page_is_refused_and_a_link_is_not(site):
    asked = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert site.get("/", headers=asked).status_code == 403
    assert site.get("/", headers={**asked, "sec-fetch-mode": "navigate"}).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_a_wrong_method_is_405(site, method):
    answer = site.request(method, "/studies/tiny")
    assert answer.status_code == 405
    assert f"this was '{method}'" in sentence(answer)


def _raw(site, target):
    """Send a request line as it is; clients tidy addresses up."""
    import socket

    host, port = site.base_url.host, site.base_url.port
    with socket.create_connection((host, port), timeout=10) as link:
        link.sendall(b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n" % target)
        parts = []
        while part := link.recv(65536):
            parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize(
    "target",
    [b"/../etc/passwd", b"/assets/../../../etc/passwd", b"/assets/..%2f..%2fetc%2fpasswd",
     b"/studies/%2e%2e/%2e%2e/etc/passwd", b"/studies/..%5c..", b"/studies/a%00b",
     b"//etc/passwd", b"/assets//etc/passwd", b"/latency-models/%2fetc%2fpasswd"],
)  # fmt: skip
def test_no_address_reaches_the_file_system(site, target):
    answer = _raw(site, target)
    assert answer.split(b" ")[1] in (b"400", b"404")
    assert b"root:" not in answer
    assert b'class="error-text">' in answer


@pytest.mark.parametrize("size", [3000, 60_000, 300_000])
def test_a_huge_query_is_4xx_and_the_server_goes_on(site, size):
    answer = _raw(site, b"/?q=" + b"a" * size)
    assert answer.split(b" ")[1] == b"414"
    assert site.get("/").status_code == 200


def test_assets_are_compressed_and_not_sent_twice(site):
    answer = site.get("/assets/plotly.min.js")
    assert answer.headers["content-encoding"] == "gzip"
    assert int(answer.headers["content-length"]) < 2_000_000
    assert answer.content == assets()["plotly.min.js"].plain
    again = site.get("/assets/plotly.min.js", headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    plain = site.get("/assets/style.css", headers={"accept-encoding": "identity"})
    assert plain.content == assets()["style.css"].plain


def test_new_trials_show_at_once(own, here):
    import optuna

    assert own.get("/studies/tiny.json").json()["progress"]["state"] == "done"
    study = optuna.load_study(
        study_name="tiny",
        storage=f"sqlite:///{here}/studies/tiny/study.db",
        sampler=optuna.samplers.RandomSampler(),
    )
    trial = study.ask()
    trial.set_user_attr("tadnn:error", "<b>it broke</b>")
    study.tell(trial, state=optuna.trial.TrialState.FAIL)
    data = own.get("/studies/tiny.json").json()
    assert data["failures"] == [{"trial": 12, "reason": "<b>it broke</b>"}]
    assert "<b>it broke" not in own.get("/studies/tiny").text  # what a study says is no markup


def test_a_database_that_cannot_be_read_is_told_and_the_others_go_on(here, monkeypatch):
    monkeypatch.setattr("tadnn.search.sqlite_reader._PATIENCE_S", 0.05)
    path = here / "studies" / "tight" / "study.db"
    whole = path.read_bytes()
    with (
        served(build_app(Library(("tiny", "tight")))) as address,
        httpx.Client(base_url=address, timeout=60) as client,
    ):

        def told():
            rows = {r["key"]: r for r in client.get("/studies.json").json()["studies"]}
            assert rows["tiny"]["progress"]["completed"] == 12
            answer = client.get("/studies/tight")
            assert 400 <= answer.status_code < 500
            assert sentence(answer).casefold() == rows["tight"]["error"].casefold()
            return rows["tight"]["error"]

        assert client.get("/studies/tight").status_code == 200
        with contextlib.closing(sqlite3.connect(path)) as other:
            other.execute("PRAGMA journal_mode = DELETE")
            other.execute("PRAGMA locking_mode = EXCLUSIVE")
            other.execute("BEGIN EXCLUSIVE")
            assert "locked" in told()
        assert client.get("/studies/tight").status_code == 200
        path.write_bytes(whole[:4096] + bytes(len(whole) - 4096))
        assert "damaged" in told()
        path.write_bytes(b"")
        assert "no results yet" in told()
        old = here / "old.db"
        with contextlib.closing(sqlite3.connect(old)) as other, other:
            other.execute("CREATE TABLE version_info (version_info_id, schema_version)")
            other.execute("CREATE TABLE studies (a)")
            other.execute("INSERT INTO version_info VALUES (1, 9)")
        path.write_bytes(old.read_bytes())
        assert "version 9" in told()
        path.write_bytes(whole)
        assert client.get("/studies/tight").status_code == 200


def test_a_network_without_its_latency_model_says_why(here, knee):
    shutil.rmtree(here / "latency_models")
    with served(build_app(Library(("tiny",)))) as address:
        answer = httpx.get(f"{address}/studies/tiny/trials/{knee}.json", timeout=60).json()
    assert answer["breakdown"] is None
    assert "unknown latency model 'auto-tiny'" in answer["note"]
    assert answer["stages"]


def test_twenty_thousand_trials(here):
    enlarge(here, "many")
    with served(build_app(Library(("many",)))) as address:
        with httpx.Client(base_url=address, timeout=120) as client:
            first = client.get("/studies/many")
            again = client.get("/studies/many")
    assert first.status_code == again.status_code == 200
    assert len(again.content) < 3_000_000
    # Read and drawn up once: the second answer is put together, not worked out again.
    assert again.elapsed < first.elapsed
    data = json.loads(re.search(r'id="study-data">(.*?)</script>', again.text, re.S)[1])
    assert data["total"] == MANY
    assert len(data["trials"]) == MANY


def test_the_same_name_twice_gets_two_addresses(here):
    (here / "elsewhere").mkdir()
    shutil.copytree(here / "studies", here / "elsewhere" / "studies")
    library = Library(("tiny", "elsewhere/studies/tiny.yaml"))
    assert list(library.shelves()) == ["tiny", "tiny-2"]
    assert library.shelf("tiny-2").where == "elsewhere/studies/tiny.yaml"


def test_a_mistyped_study_is_refused_before_anything_is_served(here):
    with pytest.raises(UnknownName, match="did you mean 'tiny'"):
        Library(("tiney",))
    assert run(["browse", "tiney"]) == 2


def test_a_study_that_was_not_searched_is_shown_as_such(here):
    write_study(here, name="later")
    assert [row.key for row in Library().rows()] == ["tight", "tiny"]
    (row,) = Library(("later",)).rows()
    assert "tadnn search comes first" in row.error


def test_a_port_in_use_is_refused_and_the_next_free_one_offered(capsys):
    with open_port(0) as taken:
        port = taken.getsockname()[1]
        assert taken.getsockname()[0] == "127.0.0.1"
        with pytest.raises(RequestError, match=r"--port (\d+) is free") as refused:
            open_port(port)
        free = int(re.search(r"--port (\d+)", str(refused.value))[1])
        assert free > port
        open_port(free).close()
        assert run(["browse", "--port", str(port)]) == 2
        assert f"cannot listen on port {port}" in capsys.readouterr().err
    with pytest.raises(RequestError, match="0 to 65535"):
        open_port(70_000)


def test_a_report_is_one_file(here, capsys):
    assert run(["report", "tiny", "-o", "out/r.html"]) == 0
    assert capsys.readouterr().out == "out/r.html\n"
    text = (here / "out" / "r.html").read_text()
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]*\.(?:js|css)"', text)
    assert not re.findall(r'<a href="/', text)
    spec = load_spec("tiny")
    assert text.count("data-network=") >= spec.finalists.count
    assert "Latency model auto-tiny" in text
    first = (here / "out" / "r.html").read_bytes()
    assert run(["report", "tight", "-o", "out/r.html"]) == 0
    assert (here / "out" / "r.html").read_bytes() != first


def test_a_report_that_cannot_be_written_is_refused(here, capsys):
    assert run(["report", "tiny", "-o", "studies"]) == 2
    assert "studies is a folder" in capsys.readouterr().err
    assert run(["report", "tiny", "-o", "studies/tiny.yaml/r.html"]) == 2
    assert run(["report", "tiney"]) == 2


def test_optuna_dashboard_shows_names_directions_and_attributes(here):
    dashboard = pytest.importorskip("optuna_dashboard")
    import optuna

    storage = optuna.storages.RDBStorage(f"sqlite:///{here}/studies/tiny/study.db")
    wsgi = dashboard.wsgi(storage)

    def get(path):
        seen = {}
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "QUERY_STRING": "",
                   "SERVER_NAME": "x", "SERVER_PORT": "1", "wsgi.input": io.BytesIO(),
                   "wsgi.url_scheme": "http", "wsgi.errors": io.StringIO()}  # fmt: skip
        body = b"".join(wsgi(environ, lambda status, *_: seen.update(status=status)))
        assert seen["status"].startswith("200")
        return json.loads(body)

    (study,) = get("/api/studies")["study_summaries"]
    detail = get(f"/api/studies/{study['study_id']}")
    assert detail["name"] == "tiny"
    assert detail["directions"] == ["minimize", "maximize"]
    assert detail["objective_names"] == ["latency", "accuracy"]
    keys = {attribute["key"] for attribute in detail["trials"][0]["user_attrs"]}
    assert "tadnn:result" in keys
