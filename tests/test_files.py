from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tadnn import files
from tadnn.errors import CorruptFile, RequestError, UnknownName, Unwritable
from tadnn.files import NamedFolder


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class TestAtomicWrites:
    def test_creates_folders_and_leaves_nothing_else(self, tmp_path: Path) -> None:
        target = tmp_path / "a" / "b.txt"
        files.write_text(target, "µs\n")
        assert target.read_bytes() == "µs\n".encode()
        assert left_in(target.parent) == ["b.txt"]

    def test_failing_body_keeps_the_old_content(self, tmp_path: Path) -> None:
        target = tmp_path / "a.txt"
        target.write_text("old")

        def write_half() -> None:
            with files.atomic_open(target) as file:
                file.write("new, half")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            write_half()
        assert target.read_text() == "old"
        assert left_in(tmp_path) == ["a.txt"]

    def test_full_disk_keeps_the_old_content(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(handle: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        target = tmp_path / "a.txt"
        target.write_text("old")
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(Unwritable, match=r"a\.txt: No space left"):
            files.write_text(target, "new")
        assert target.read_text() == "old"
        assert left_in(tmp_path) == ["a.txt"]

    def test_binary(self, tmp_path: Path) -> None:
        with files.atomic_open(tmp_path / "a.bin", "wb") as file:
            file.write(b"\x00\xff\r\n")
        assert (tmp_path / "a.bin").read_bytes() == b"\x00\xff\r\n"

    def test_temporary_path_keeps_the_suffix(self, tmp_path: Path) -> None:
        with files.atomic_path(tmp_path / "plot.svg") as temporary:
            assert temporary.suffix == ".svg"
            assert temporary.parent == tmp_path
            temporary.write_text("x")
        assert left_in(tmp_path) == ["plot.svg"]

    def test_permissions_follow_the_umask(self, tmp_path: Path) -> None:
        old = os.umask(0o027)
        try:
            files.write_text(tmp_path / "a.txt", "x")
        finally:
            os.umask(old)
        assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o640

    def test_a_file_where_a_folder_is_needed(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        with pytest.raises(Unwritable, match="cannot write"):
            files.write_text(tmp_path / "file" / "a.txt", "x")
        with pytest.raises(Unwritable, match="cannot write in"):
            files.ensure_writable(tmp_path / "file" / "sub")

    def test_ensure_writable_creates_the_folder_and_leaves_it_empty(self, tmp_path: Path) -> None:
        files.ensure_writable(tmp_path / "a" / "b")
        assert left_in(tmp_path / "a" / "b") == []


class TestJson:
    def test_round_trip(self, tmp_path: Path) -> None:
        value = {"b": [1, 2.5, None, True], "a": "µ"}
        files.write_json(tmp_path / "a.json", value)
        assert files.read_json(tmp_path / "a.json") == value

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_numbers_that_json_lacks_are_refused(self, tmp_path: Path, value: float) -> None:
        with pytest.raises(ValueError, match="not JSON compliant"):
            files.write_json(tmp_path / "a.json", {"x": value})
        assert left_in(tmp_path) == []

    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(RequestError, match="no such file"):
            files.read_json(tmp_path / "none.json")

    @pytest.mark.parametrize("content", [b'{"a": 1,\n "b"', b"\xff\xfe", b""])
    def test_damaged(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "a.json").write_bytes(content)
        with pytest.raises(CorruptFile, match="not valid JSON"):
            files.read_json(tmp_path / "a.json")

    def test_damaged_message_gives_the_line(self, tmp_path: Path) -> None:
        (tmp_path / "a.json").write_text('{"a": 1,\n "b"')
        with pytest.raises(CorruptFile, match="line 2"):
            files.read_json(tmp_path / "a.json")


class TestNamedFolder:
    @pytest.fixture(autouse=True)
    def _package(self, in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A package at tmp_path/site/tadnn, the working directory at tmp_path/work."""
        package = in_tmp_path / "site" / "tadnn"
        package.mkdir(parents=True)
        (in_tmp_path / "work").mkdir()
        monkeypatch.setattr(files, "_PACKAGE", package)
        monkeypatch.chdir(in_tmp_path / "work")

    @staticmethod
    def put(path: str) -> Path:
        file = Path.cwd().parent / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
        return file

    def test_working_directory_overrides_and_adds(self) -> None:
        spaces = NamedFolder("search_spaces", "space", ".py")
        builtin = self.put("site/search_spaces/resnet.py")
        other = self.put("site/search_spaces/vit.py")
        assert spaces.entries() == {"resnet": builtin, "vit": other}
        own = self.put("work/search_spaces/resnet.py")
        added = self.put("work/search_spaces/mine.py")
        assert spaces.entries() == {"mine": added, "resnet": own, "vit": other}
        assert spaces.find("resnet") == own

    def test_an_installed_wheel_carries_its_own(self) -> None:
        studies = NamedFolder("studies", "study", ".yaml")
        self.put("site/studies/stray.yaml")
        carried = self.put("site/tadnn/_builtin/studies/quickstart.yaml")
        assert studies.entries() == {"quickstart": carried}

    def test_a_checkout_as_working_directory_counts_once(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spaces = NamedFolder("search_spaces", "space", ".py")
        file = self.put("site/search_spaces/resnet.py")
        monkeypatch.chdir(file.parents[1])
        assert spaces.roots() == (file.parent,)

    def test_what_does_not_count(self) -> None:
        spaces = NamedFolder("search_spaces", "space", ".py")
        models = NamedFolder("latency_models", "latency model", "", marker="card.yaml")
        for path in ("README.md", "_private.py", ".hidden.py", "folder.py/x"):
            self.put(f"work/search_spaces/{path}")
        for path in ("README.md", "half/model.txt", ".tmp/card.yaml"):
            self.put(f"work/latency_models/{path}")
        good = self.put("work/latency_models/good/card.yaml").parent
        assert spaces.entries() == {}
        assert models.entries() == {"good": good}

    def test_what_a_directory_learned_by_itself_stays_there(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        models = NamedFolder("latency_models", "latency model", "", "card.yaml", own="auto-")
        shipped = self.put("site/latency_models/v100/card.yaml").parent
        learned = self.put("site/latency_models/auto-quickstart/card.yaml").parent
        assert models.entries() == {"v100": shipped}
        monkeypatch.chdir(shipped.parents[1])
        assert models.entries() == {"auto-quickstart": learned, "v100": shipped}

    def test_unknown_name_shows_near_matches(self) -> None:
        self.put("work/search_spaces/resnet.py")
        with pytest.raises(UnknownName, match=r"unknown space 'resnt'; did you mean 'resnet'\?"):
            NamedFolder("search_spaces", "space", ".py").find("resnt")

    def test_the_folder_may_be_absent(self) -> None:
        assert NamedFolder("search_spaces", "space", ".py").entries() == {}


def test_stable_hash_depends_on_content_only() -> None:
    value: dict[str, Any] = {"b": 1, "a": [1, 2]}
    assert files.stable_hash(value) == files.stable_hash({"a": [1, 2], "b": 1})
    assert files.stable_hash(value) != files.stable_hash({"a": [2, 1], "b": 1})
    # Keys of networks and spaces are stored in studies: the value must never change.
    expected = hashlib.sha256(b'{"a":[1,2],"b":1}').hexdigest()[:16]
    assert files.stable_hash(value) == expected


def test_file_hash_of_known_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert files.file_hash(tmp_path / "a") == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )


def test_environment_is_text_and_names_what_decides_a_measurement() -> None:
    record = files.environment()
    assert {"tadnn", "python", "torch", "numpy", "onnxruntime", "cores"} <= set(record)
    assert all(isinstance(value, str) and value for value in record.values())
    assert files._version("no-such-package") == "absent"
