from __future__ import annotations

import contextlib
import os
import sqlite3
import stat

import optuna
import pytest
from search_fakes import FACTS, make_evaluator, make_spec

from tadnn.errors import (
    CorruptFile,
    MissingPackage,
    RequestError,
    StudyMismatch,
    Unwritable,
    WorkFailed,
)
from tadnn.files import environment
from tadnn.search import find_study, frozen_model, read_study, search, study_storage
from tadnn.search.address import StorageAddress, storage_errors
from tadnn.search.storage import directions

HASHES = {"deep": "x"}


def run(spec, spaces=HASHES, facts=FACTS):
    return search(spec, make_evaluator(spec), spaces, facts)[0]


def database(tmp_path):
    return tmp_path / "study" / "study.db"


def test_a_study_is_an_ordinary_optuna_study_in_wal_mode(tmp_path):
    spec = make_spec(tmp_path, trials=2, constraints={"latency_ms": 1.0})
    run(spec)
    study = optuna.load_study(study_name="study", storage=f"sqlite:///{database(tmp_path)}")
    assert [d.name for d in study.directions] == ["MINIMIZE", "MAXIMIZE"]
    assert study.metric_names == ["latency", "accuracy"]
    assert study.user_attrs["tadnn:spec"] == spec.canonical()
    assert study.user_attrs["tadnn:space"] == HASHES
    assert study.user_attrs["tadnn:latency_model"] == FACTS
    assert study.user_attrs["tadnn:environment"] == environment()
    assert study.user_attrs["tadnn:input_shape"] == [1, 8, 8]
    connection = sqlite3.connect(database(tmp_path))
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_a_study_is_resumed_with_the_spec_it_began_with(tmp_path):
    run(make_spec(tmp_path, trials=2))
    assert len(run(make_spec(tmp_path, trials=4)).trials) == 4
    with pytest.raises(StudyMismatch, match=r"sampler: random -> tpe"):
        run(make_spec(tmp_path, trials=4, sampler="tpe"))
    with pytest.raises(StudyMismatch, match=r"objectives: .*'latency', 'accuracy'.* -> "):
        run(make_spec(tmp_path, trials=4, objectives=["latency", "flops"]))
    with pytest.raises(StudyMismatch, match=r"space it began with(?s:.*)deep: x -> y"):
        run(make_spec(tmp_path, trials=4), spaces={"deep": "y"})
    with pytest.raises(StudyMismatch, match=r"latency model it began with(?s:.*)hash: 0.* -> ff"):
        run(make_spec(tmp_path, trials=4), facts={**FACTS, "hash": "ff"})
    with pytest.raises(StudyMismatch, match="seed: 0 -> 1"):
        find_study(make_spec(tmp_path, trials=4, seed=1))
    assert len(find_study(make_spec(tmp_path, trials=4)).trials) == 4


def test_other_directions_in_the_storage_are_noticed_though_optuna_ignores_them(tmp_path):
    spec = make_spec(tmp_path, trials=1)
    run(spec)
    connection = sqlite3.connect(database(tmp_path))
    connection.execute("UPDATE study_directions SET direction = 'MINIMIZE'")
    connection.commit()
    connection.close()
    with pytest.raises(StudyMismatch, match="directions minimize, minimize"):
        run(spec)


def test_a_study_of_somebody_else_is_left_alone(tmp_path):
    spec = make_spec(tmp_path, trials=1)
    database(tmp_path).parent.mkdir()
    theirs = optuna.create_study(
        study_name="study", storage=study_storage(spec), directions=directions(spec.objectives)
    )
    theirs.add_trial(optuna.trial.create_trial(values=[1.0, 1.0]))
    with pytest.raises(StudyMismatch, match="tadnn did not make"):
        run(spec)
    assert len(theirs.trials) == 1


def test_two_studies_share_a_storage(tmp_path):
    url = f"sqlite:///{tmp_path}/both.db"
    one = run(make_spec(tmp_path, trials=2, storage=url))
    two = run(make_spec(tmp_path, trials=3, storage=url, name="other"))
    assert [len(one.trials), len(two.trials)] == [2, 3]


def test_the_frozen_model_is_known_before_the_search_resumes(tmp_path):
    spec = make_spec(tmp_path, trials=1)
    assert frozen_model(spec) is None
    assert not database(tmp_path).exists()
    run(spec)
    assert frozen_model(spec) == FACTS
    assert frozen_model(make_spec(tmp_path, trials=1, name="other")) is None


def test_a_study_without_results_says_what_comes_first(tmp_path):
    with pytest.raises(RequestError, match="tadnn search comes first"):
        find_study(make_spec(tmp_path))
    assert not database(tmp_path).exists()


def damage_header(path):
    path.write_bytes(b"not a database at all, but long enough" * 100)


def damage_middle(path):
    content = bytearray(path.read_bytes())
    content[8192:20480] = os.urandom(12288)
    path.write_bytes(content)


def damage_end(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damage", [damage_header, damage_middle, damage_end])
def test_a_damaged_database_is_named_and_left_as_it_is(tmp_path, damage):
    spec = make_spec(tmp_path, trials=3)
    run(spec)._storage._backend.engine.dispose()
    path = database(tmp_path)
    damage(path)
    before = path.read_bytes()
    for attempt in (run, find_study):
        with pytest.raises(CorruptFile, match=r"study\.db is damaged") as caught:
            attempt(spec)
        assert caught.value.exit_code == 2
    assert path.read_bytes() == before


def test_another_programs_database_is_left_alone(tmp_path):
    path = database(tmp_path)
    path.parent.mkdir()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE diary (day TEXT)")
    connection.close()
    with pytest.raises(RequestError, match="no Optuna storage"):
        run(make_spec(tmp_path, trials=1))
    connection = sqlite3.connect(path)
    assert [row[0] for row in connection.execute("SELECT name FROM sqlite_master")] == ["diary"]
    connection.close()


def test_an_empty_file_becomes_a_database(tmp_path):
    database(tmp_path).parent.mkdir()
    database(tmp_path).touch()
    assert len(run(make_spec(tmp_path, trials=1)).trials) == 1


@pytest.mark.parametrize(
    ("storage", "error", "says"),
    [
        ("study.db", RequestError, "a storage is a database URL"),
        ("sqlite:///:memory:", RequestError, "a study is stored in a file"),
        ("sqlite://", RequestError, "a study is stored in a file"),
        ("oracel://host/name", RequestError, "cannot be opened"),
        ("mysql+nodriver://host/name", RequestError, "cannot be opened"),
    ],
)
def test_a_storage_that_cannot_be_opened_is_named(tmp_path, storage, error, says):
    with pytest.raises(error, match=says) as caught:
        run(make_spec(tmp_path, trials=1, storage=storage))
    assert storage in str(caught.value)


def test_a_missing_driver_is_named(tmp_path):
    with pytest.raises(MissingPackage, match="driver that is not installed"):
        run(make_spec(tmp_path, trials=1, storage="mysql://u@127.0.0.1:1/x"))


def test_a_folder_with_braces_is_a_folder(tmp_path):
    folder = tmp_path / "{odd} % name"
    folder.mkdir()
    assert len(run(make_spec(folder, trials=1)).trials) == 1
    assert (folder / "study" / "study.db").exists()


def test_a_folder_that_cannot_be_made_is_unwritable(tmp_path):
    (tmp_path / "study").write_text("a file where the folder would be")
    with pytest.raises(Unwritable):
        run(make_spec(tmp_path, trials=1))


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_folder_is_unwritable(tmp_path):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(Unwritable):
        run(make_spec(tmp_path, trials=1))


def test_a_full_disk_is_unwritable_and_loses_nothing(tmp_path):
    """SQLite's own limit on the number of pages stands in for the disk's."""
    spec = make_spec(tmp_path, trials=3)
    study = run(spec)
    engine = study._storage._backend.engine
    with engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")

    def fill():
        with storage_errors(StorageAddress.of(spec).url):
            for i in range(200):
                study.set_user_attr(f"filler{i}", "x" * 2000)

    with pytest.raises(Unwritable, match="full"):
        fill()
    engine.dispose()
    assert len(find_study(spec).trials) == 3


def change(path, *statements):
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def test_tables_of_another_version_of_optuna_are_refused(tmp_path):
    spec = make_spec(tmp_path, trials=1)
    run(spec)
    change(database(tmp_path), "UPDATE alembic_version SET version_num = 'v9.0.0.a'")
    with pytest.raises(RequestError, match="tables of another version of Optuna"):
        find_study(spec)
    change(database(tmp_path), "ALTER TABLE trial_values DROP COLUMN value_type")
    with pytest.raises(RequestError, match="optuna storage upgrade"):
        read_study(spec).get_trials()


def test_a_locked_or_failing_storage_is_failed_work():
    busy = sqlite3.OperationalError("database is locked")
    with pytest.raises(WorkFailed, match="failed: database is locked"), storage_errors("url"):
        raise busy
    with pytest.raises(WorkFailed, match="failed: gone"), storage_errors("url"):
        raise optuna.exceptions.StorageInternalError("wrapped") from ValueError("gone")
