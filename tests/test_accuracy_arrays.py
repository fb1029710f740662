"""Data sets of one's own as .npz files and torch data sets, and how they are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tadnn.accuracy import load_dataset, require_dataset
from tadnn.errors import DataError, UnknownName

RANDOM = np.random.RandomState(0)


def sizes(dataset) -> dict[str, int]:
    return {name: len(split) for name, split in dataset.splits.items()}


GOOD = {
    "images": RANDOM.randint(0, 256, (20, 3, 4, 4)).astype(np.uint8),
    "labels": np.arange(20) % 2,
}


def saved(path: Path, **changes) -> str:
    arrays = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    np.savez(path / "mine.npz", **arrays)
    return f"npz:{path / 'mine.npz'}"


def test_npz_arrays(tmp_path):
    splits = np.array(["train"] * 12 + ["validation"] * 3 + ["test"] * 5)
    dataset = load_dataset(saved(tmp_path, splits=splits, class_names=np.array(["off", "on"])))
    assert sizes(dataset) == {"train": 12, "validation": 3, "test": 5}
    assert dataset.class_names == ("off", "on")
    wanted = torch.from_numpy(GOOD["images"][15:]).double() / 255
    mean, std = (torch.tensor(v)[:, None, None] for v in (dataset.mean, dataset.std))
    torch.testing.assert_close(
        dataset.splits["test"].images.double(), (wanted - mean) / std, atol=1e-5, rtol=1e-5
    )
    assert dataset.splits["test"].labels.tolist() == [1, 0, 1, 0, 1]


@pytest.mark.parametrize("dtype", ["float64", "int16", ">f4", "bool"])
def test_npz_of_other_types(tmp_path, dtype):
    images = (GOOD["images"][:, 0] > 100).astype(dtype)
    dataset = load_dataset(saved(tmp_path, images=images))
    assert dataset.input_shape == (1, 4, 4)
    assert sizes(dataset) == {"train": 12, "validation": 4, "test": 4}
    assert float(dataset.splits["train"].images.std(correction=0)) == pytest.approx(1, abs=1e-5)


def with_value(value: float) -> np.ndarray:
    images = GOOD["images"].astype(np.float64)
    images[7, 0, 1, 1] = value
    return images


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": with_value(np.nan)}, "finite; image 7 holds NaN"),
        ({"images": with_value(np.inf)}, "finite; image 7 holds NaN, inf"),
        ({"images": with_value(1e39)}, "more than float32"),
        ({"images": GOOD["images"].astype(complex)}, "real numbers; received complex128"),
        ({"images": np.array(["x"])}, "real numbers; received <U1"),
        ({"images": GOOD["images"].transpose(0, 2, 3, 1)}, r"moveaxis\(images, -1, 1\)"),
        ({"images": GOOD["images"][0, 0]}, r"\[n, H, W\] or"),
        ({"images": GOOD["images"][:0]}, r"nothing empty; received \[0, 3, 4, 4\]"),
        ({"images": np.array([None] * 20)}, "cannot read .* of plain arrays"),
        ({"images": None}, "must hold the arrays images and labels"),
        ({"lables": GOOD["labels"]}, "received images, labels, lables"),
        ({"labels": GOOD["labels"][:19]}, "19 labels for 20 images"),
        ({"labels": GOOD["labels"] * 1.0}, "must be integers"),
        ({"labels": GOOD["labels"] * 2}, r"without gaps; label 1 .* is 2"),
        ({"labels": GOOD["labels"] - 1}, r"label 0 \(counted from 0\) is -1"),
        ({"labels": GOOD["labels"] * 0}, "two classes or more"),
        ({"class_names": np.array(["a", "a"])}, "different texts"),
        ({"class_names": np.array(["a", "b"]), "labels": np.arange(20)}, "0 to 1; label 2"),
        ({"splits": np.array(["train"])}, "one text per image, 20"),
        ({"splits": np.array(["train", "tset"] * 10)}, "received 'tset'"),
        ({"splits": np.array(["train", "validation"] * 10)}, "call them test"),
        ({"splits": np.array(["test"] * 20)}, "received test"),
    ],
)
def test_npz_files_that_break_a_rule(tmp_path, changes, message):
    with pytest.raises(DataError, match=message) as caught:
        load_dataset(saved(tmp_path, **changes))
    assert "mine.npz" in str(caught.value)


def test_npz_files_that_are_none(tmp_path):
    path = tmp_path / "x.npz"
    with pytest.raises(DataError, match=r"no such file: .*x\.npz"):
        load_dataset(f"npz:{path}")
    for content in (b"", b"PK\x03\x04 nothing", b"text"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"cannot read .*x\.npz"):
            load_dataset(f"npz:{path}")
    np.savez(path, **GOOD)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"cannot read .*x\.npz"):
        load_dataset(f"npz:{path}")
    with path.open("wb") as file:
        np.save(file, GOOD["images"])
    with pytest.raises(DataError, match="single array"):
        load_dataset(f"npz:{path}")


CODE = """
import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset

def tensors(n=20, dtype=torch.float32):
    images = torch.arange(n * 12).reshape(n, 1, 3, 4).to(dtype)
    return TensorDataset(images, torch.arange(n) % 2)

class Pillow(Dataset):
    classes = ["no", "yes"]
    def __len__(self): return 20
    def __getitem__(self, i):
        return Image.fromarray(np.full((3, 4, 3), 10 * i, np.uint8)), i % 2

class Items(Dataset):
    def __init__(self, item): self.item = item
    def __len__(self): return 10
    def __getitem__(self, i): return self.item(i)

class Stream(IterableDataset):
    def __iter__(self): return iter([])

class NoLength(Dataset):
    def __getitem__(self, i): raise IndexError

def splits(): return {"train": tensors(), "validation": tensors(4), "test": tensors(6)}
def augmented(): return Items(lambda i: (torch.rand(1, 3, 4), i % 2))
def stream(): return Stream()
def no_length(): return NoLength()
def empty(): return tensors(0)
def sizes(): return Items(lambda i: (torch.zeros(1, 3 + i, 4), i % 2))
def triple(): return Items(lambda i: (1, 2, 3))
def text(): return Items(lambda i: (torch.zeros(3, 4), "cat"))
def complex(): return Items(lambda i: (torch.zeros(3, 4, dtype=torch.complex64), 0))
def nan(): return Items(lambda i: (torch.full((3, 4), float("nan")), i % 2))
def failing(): return Items(lambda i: (torch.zeros(3, 4), i // (3 - i)))
def gaps(): return Items(lambda i: (torch.rand(3, 4), 5 * (i % 2)))
def one(): return Items(lambda i: (torch.rand(3, 4), 0))
def palette(): return Items(lambda i: (Image.new("P", (4, 3)), i % 2))
def wrong(): return [1, 2]
def keys(): return {"train": tensors(), "eval": tensors()}
def raising(): raise KeyError("disk")
number = 3
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    return path


def test_torch_data_sets(code):
    dataset = load_dataset(f"torch:{code}:tensors")
    assert sizes(dataset) == {"train": 12, "validation": 4, "test": 4}
    assert dataset.class_names == ("0", "1")
    assert dataset.input_shape == (1, 3, 4)
    dataset = load_dataset(f"torch:{code}:splits")
    assert sizes(dataset) == {"train": 20, "validation": 4, "test": 6}
    assert dataset.preprocess()["value_range"] == [0.0, 239.0]
    dataset = load_dataset(f"torch:{code}:Pillow", (3, 6, 8))
    assert dataset.class_names == ("no", "yes")
    assert dataset.preprocess()["value_range"] == [0.0, 255.0]
    assert dataset.preprocess()["raw_shape"] == [3, 3, 4]


def test_a_module_on_the_path(code, monkeypatch):
    monkeypatch.syspath_prepend(str(code.parent))
    assert load_dataset("torch:mine:tensors", (3, 3, 4)).input_shape == (3, 3, 4)


def test_random_transforms_are_seeded_and_the_callers_generator_stays(code, tmp_path, monkeypatch):
    state = torch.get_rng_state()
    first = load_dataset(f"torch:{code}:augmented")
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(123)
    monkeypatch.chdir(tmp_path)
    second = load_dataset("torch:mine.py:augmented")
    assert second is not first
    assert torch.equal(first.splits["test"].images, second.splits["test"].images)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("stream", "must be a torch.utils.data.Dataset with a length; received Stream"),
        ("no_length", "needs __len__"),
        ("empty", "it is empty"),
        ("sizes", r"resize them in .* item 1 is \[1, 4, 4\]"),
        ("triple", r"\[0\] must be a pair"),
        ("text", "integer label; received 'cat'"),
        ("complex", "real numbers .*complex64"),
        ("nan", "image 0 holds NaN"),
        ("failing", r"\[3\] raised ZeroDivisionError"),
        ("gaps", "without gaps"),
        ("one", "two classes or more"),
        ("palette", "grey or RGB"),
        ("wrong", "received list"),
        ("keys", "received eval, train"),
        ("raising", "raised KeyError: 'disk'"),
    ],
)
def test_torch_data_sets_that_break_a_rule(code, name, message):
    with pytest.raises(DataError, match=message) as caught:
        load_dataset(f"torch:{code}:{name}")
    assert "mine.py" in str(caught.value)


def test_torch_references_that_lead_nowhere(code, tmp_path):
    for name in ("tensor", "number"):
        with pytest.raises(UnknownName, match=f"unknown callable of .*mine.py '{name}'"):
            load_dataset(f"torch:{code}:{name}")
    with pytest.raises(DataError, match=r"no such file: .*none\.py"):
        load_dataset(f"torch:{tmp_path / 'none.py'}:x")
    with pytest.raises(DataError, match="cannot import no_such_module_here"):
        load_dataset("torch:no_such_module_here:x")
    with pytest.raises(DataError, match="torch: is followed by"):
        load_dataset("torch:module")
    code.write_text("1 / 0")
    with pytest.raises(DataError, match=r"mine\.py raised ZeroDivisionError"):
        load_dataset(f"torch:{code}:x")


def test_names_are_told_from_places():
    for name in ("digits", "fashion-mnist", "folder:a/b", "npz:C:x.npz", "torch:a.b:c"):
        require_dataset(name)
    for name in ("folder", "folder:", "images/pets", "zip:a", ""):
        with pytest.raises(UnknownName, match="folder:PATH"):
            require_dataset(name)


def test_a_study_may_name_data_of_its_own():
    from tadnn.search.load import parse_spec
    from tadnn.search.names import require_names

    record = {
        "name": "mine",
        "space": "resnet",
        "dataset": "folder:pets",
        "objectives": ["parameters", "accuracy"],
        "accuracy": {"proxy": "naswot"},
        "trials": 4,
    }
    require_names(parse_spec(record))
