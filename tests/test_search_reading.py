"""Reading studies without touching them."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3

import optuna
import pytest
from studies_examples import finished, write_study

from tadnn.errors import CorruptFile, RequestError, WorkFailed
from tadnn.search import (
    finalist_facts,
    find_study,
    front_record,
    has_results,
    load_spec,
    read_study,
    study_progress,
)
from tadnn.search.address import StorageAddress
from tadnn.search.sqlite_reader import SqliteReader


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Two studies' folder: one whose constraints nothing meets; leave it as it is."""
    folder = tmp_path_factory.mktemp("reading")
    tight = {"latency_model": "auto-tiny", "constraints": {"parameters": 4000.0}, "finalists": None}
    with finished(folder), finished(folder, name="tight", **tight):
        return folder


@pytest.fixture
def here(whole, tmp_path, monkeypatch):
    folder = tmp_path / "here"
    shutil.copytree(whole, folder)
    monkeypatch.chdir(folder)
    return folder


def database(folder, name="tiny"):
    return folder / "studies" / name / "study.db"


def writable(folder):
    return optuna.load_study(
        study_name="tiny",
        storage=f"sqlite:///{database(folder)}",
        sampler=optuna.samplers.RandomSampler(),
    )


@pytest.mark.parametrize("name", ["tiny", "tight"])
def test_a_study_reads_as_optuna_reads_it(here, name):
    spec = load_spec(name)
    mine, theirs = read_study(spec), find_study(spec)
    assert mine.get_trials() == theirs.get_trials()
    assert mine.user_attrs == theirs.user_attrs
    assert mine.directions == theirs.directions
    assert mine.metric_names == theirs.metric_names
    assert front_record(mine) == front_record(theirs)
    states = (optuna.trial.TrialState.RUNNING,)
    assert mine.get_trials(states=states) == []
    last = theirs.trials[-1]
    assert mine._storage.get_trial(last._trial_id) == last
    (summary,) = optuna.get_all_study_summaries(mine._storage)
    assert (summary.study_name, summary.n_trials) == (name, len(theirs.trials))


def test_every_kind_of_number_comes_back(here):
    spec = load_spec("tiny")
    study = writable(here)
    trial = study.ask()
    trial.suggest_float("x", 0, 1)
    trial.suggest_categorical("y", ["a", None, 3])
    for step, value in enumerate([1.5, float("inf"), float("-inf")]):
        study._storage.set_trial_intermediate_value(trial._trial_id, step, value)
    study.tell(trial, [float("inf"), float("-inf")])
    assert read_study(spec).get_trials()[-1] == study.get_trials()[-1]


def test_new_trials_are_seen_and_finished_ones_are_not_read_again(here):
    spec = load_spec("tiny")
    study = read_study(spec)
    before = study.get_trials(deepcopy=False)
    writer = writable(here)
    asked = writer.ask()
    after = study.get_trials(deepcopy=False)
    assert len(after) == len(before) + 1
    assert after[0] is before[0]
    assert after[-1].state == optuna.trial.TrialState.RUNNING
    writer.tell(asked, [1.0, 2.0])
    assert study.get_trials(deepcopy=False)[-1].values == [1.0, 2.0]


def test_nothing_is_written_and_a_writer_is_not_kept_waiting(here):
    path = database(here)
    content, stamp = path.read_bytes(), path.stat().st_mtime_ns
    study = read_study(load_spec("tiny"))
    study.get_trials()
    with contextlib.closing(sqlite3.connect(path, timeout=0)) as writer:
        writer.execute("BEGIN IMMEDIATE")  # fails at once where a reader is in the way
        study.get_trials()
        writer.rollback()
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (content, stamp)
    with pytest.raises(WorkFailed, match="open for reading only"):
        study.set_user_attr("a", 1)
    with pytest.raises(WorkFailed, match="open for reading only"):
        study.ask()


def test_progress_tells_the_living_from_the_dead(here):
    study = find_study(load_spec("tiny"))
    progress = study_progress(study)
    assert (progress["completed"], progress["running"], progress["failed"]) == (12, 0, [])
    assert progress["started"] <= progress["updated"]
    from tadnn.search.owner import Owner

    me = Owner.current()
    for owner in (me, Owner(me.host, me.pid, me.started - 100.0), Owner("elsewhere", 1, 0.0)):
        study.ask().set_user_attr("tadnn:worker", owner.to_dict())
    failed = study.ask()
    failed.set_user_attr("tadnn:error", "it broke")
    study.tell(failed, state=optuna.trial.TrialState.FAIL)
    progress = study_progress(read_study(load_spec("tiny")))
    # This process lives; its number with another start is dead; elsewhere nobody can tell.
    assert progress["running"] == 2
    assert progress["failed"] == [(failed.number, "it broke")]


def test_finalists_keep_the_curve_of_their_training(here):
    facts = finalist_facts(read_study(load_spec("tiny")))
    assert len(facts) == 3
    for finalist in facts.values():
        assert finalist["measured"]["latency_ms"] > 0
        (epoch,) = finalist["trained"]["history"]
        assert set(epoch) == {"epoch", "validation_accuracy", "validation_loss"}


def test_what_is_missing_empty_damaged_or_of_another_version_is_said(here):
    spec = load_spec("tiny")
    path = database(here)
    assert has_results(spec)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE version_info SET schema_version = 11")
    with pytest.raises(RequestError, match=r"version 11; this tadnn reads version 12.*upgrade"):
        read_study(spec)
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + bytes(8192) + whole[12288:])
    with pytest.raises(CorruptFile, match="damaged"):
        read_study(spec)
    path.write_text("not a database, though long enough to have a header of one" * 20)
    with pytest.raises(CorruptFile, match="damaged"):
        read_study(spec)
    path.unlink()
    for suffix in ("-wal", "-shm"):
        (path.parent / f"study.db{suffix}").unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE other (a)")
    with pytest.raises(RequestError, match="no Optuna storage"):
        read_study(spec)
    path.write_bytes(b"")
    assert not has_results(spec)
    with pytest.raises(RequestError, match="tadnn search comes first"):
        read_study(spec)
    path.unlink()
    with pytest.raises(RequestError, match="tadnn search comes first"):
        read_study(spec)


def test_a_study_of_another_name_has_no_results(here):
    write_study(here, name="other", storage=f"sqlite:///{database(here)}")
    with pytest.raises(RequestError, match="'other' has no results yet"):
        read_study(load_spec("other"))


def test_a_locked_database_is_said_to_be_locked(here, monkeypatch):
    monkeypatch.setattr("tadnn.search.sqlite_reader._PATIENCE_S", 0.05)
    study = read_study(load_spec("tiny"))
    with contextlib.closing(sqlite3.connect(database(here))) as other:
        other.execute("PRAGMA journal_mode = DELETE")
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(WorkFailed, match=r"another process keeps .* locked"):
            study.get_trials()
    assert len(study.get_trials()) == 12


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_takes_no_files_is_read(here):
    folder = database(here).parent
    folder.chmod(0o500)
    try:
        assert len(read_study(load_spec("tiny")).get_trials()) == 12
    finally:
        folder.chmod(0o700)


def test_another_database_is_opened_as_optuna_does(here, monkeypatch):
    storage = optuna.storages.RDBStorage(f"sqlite:///{database(here)}")
    monkeypatch.setattr(
        StorageAddress, "of", classmethod(lambda cls, spec: cls("postgresql://host/db", None))
    )
    monkeypatch.setattr(StorageAddress, "open", lambda self, checked=False: storage)
    spec = load_spec("tiny")
    assert has_results(spec)
    assert len(read_study(spec).trials) == 12


def test_reading_many_trials_takes_a_fraction_of_optunas_time(here):
    """Not of time: of queries, which is what Optuna's reading spends it on."""
    statements = []
    reader = SqliteReader(database(here))
    real = sqlite3.connect

    def connect(*args, **kwargs):
        connection = real(*args, **kwargs)
        connection.set_trace_callback(statements.append)
        return connection

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", connect)
        reader.get_all_trials(1)
    assert len(statements) < 12
