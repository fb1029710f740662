"""Published data sets: IDX files and CIFAR's binary batches."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from tadnn.accuracy import load_dataset
from tadnn.accuracy.sources import idx, read_cifar10, read_cifar100, read_fashion_mnist, read_mnist
from tadnn.accuracy.sources.idx import read_idx
from tadnn.errors import DataError


def idx_bytes(values: np.ndarray) -> bytes:
    return (
        bytes([0, 0, 8, values.ndim])
        + struct.pack(f">{values.ndim}I", *values.shape)
        + bytes(values.astype(np.uint8))
    )


def write(path: Path, data: bytes) -> None:
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty $TADNN_DATA, and nothing installed."""
    monkeypatch.setenv("TADNN_DATA", str(tmp_path / "data sets"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(idx, "FASHION_FOLDER", tmp_path / "not installed")
    (tmp_path / "data sets").mkdir()
    return tmp_path / "data sets"


TRAIN_LABELS = np.arange(100, dtype=np.uint8) % 10
TRAIN_IMAGES = np.random.RandomState(0).randint(0, 256, (100, 4, 5)).astype(np.uint8)
TEST_LABELS = np.array([3, 9, 0], np.uint8)
TEST_IMAGES = np.arange(60, dtype=np.uint8).reshape(3, 4, 5)


def write_mnist(folder: Path, suffix: str = "", mark: str = "-") -> Path:
    folder.mkdir(parents=True)
    for stem, images, labels in (
        ("train", TRAIN_IMAGES, TRAIN_LABELS),
        ("t10k", TEST_IMAGES, TEST_LABELS),
    ):
        write(folder / f"{stem}-images{mark}idx3-ubyte{suffix}", idx_bytes(images))
        write(folder / f"{stem}-labels{mark}idx1-ubyte{suffix}", idx_bytes(labels))
    return folder


@pytest.mark.parametrize(("suffix", "mark"), [("", "-"), (".gz", "-"), ("", "."), (".gz", ".")])
def test_idx_files_give_every_image_with_its_label(data, suffix, mark):
    write_mnist(data / "mnist", suffix, mark)
    raw = read_mnist()
    assert raw.class_names == tuple("0123456789")
    assert raw.value_range == (0.0, 255.0)
    assert not raw.mirrors
    assert np.array_equal(raw.splits["test"].images[:, 0].numpy(), TEST_IMAGES)
    assert raw.splits["test"].labels.tolist() == [3, 9, 0]
    known = {
        image.tobytes(): label for image, label in zip(TRAIN_IMAGES, TRAIN_LABELS, strict=True)
    }
    seen = {
        image.numpy().tobytes(): int(label)
        for name in ("train", "validation")
        for image, label in zip(raw.splits[name].images[:, 0], raw.splits[name].labels, strict=True)
    }
    assert seen == known
    assert raw.splits["train"].images.dtype == torch.uint8
    # A tenth of every class, and always the same.
    assert raw.splits["validation"].labels.bincount().tolist() == [1] * 10
    assert torch.equal(raw.splits["train"].images, read_mnist().splits["train"].images)


def test_the_places_in_order(data, tmp_path, monkeypatch):
    installed = write_mnist(tmp_path / "not installed")
    assert len(read_fashion_mnist().splits["test"]) == 3
    local = write_mnist(tmp_path / "data" / "fashion-mnist")
    write(local / "t10k-images-idx3-ubyte", idx_bytes(TEST_IMAGES[:2]))
    write(local / "t10k-labels-idx1-ubyte", idx_bytes(TEST_LABELS[:2]))
    assert len(read_fashion_mnist().splits["test"]) == 2
    own = write_mnist(data / "fashion-mnist")
    write(own / "t10k-images-idx3-ubyte", idx_bytes(TEST_IMAGES[:1]))
    write(own / "t10k-labels-idx1-ubyte", idx_bytes(TEST_LABELS[:1]))
    assert len(read_fashion_mnist().splits["test"]) == 1
    assert installed.is_dir()
    # What was loaded for one place is not taken for another's.
    assert len(load_dataset("fashion-mnist").splits["test"]) == 1
    monkeypatch.delenv("TADNN_DATA")
    assert len(load_dataset("fashion-mnist").splits["test"]) == 2


def test_missing_data_sets_say_what_to_put_where(data, monkeypatch):
    with pytest.raises(DataError, match=r"install Debian's package dataset-fashion-mnist, or put"):
        load_dataset("fashion-mnist")
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte.*data/mnist.*TADNN_DATA/mnist"):
        load_dataset("mnist")
    with pytest.raises(DataError, match=r"data_batch_1\.bin to .*data/cifar-10 in"):
        load_dataset("cifar-10")
    monkeypatch.delenv("TADNN_DATA")
    with pytest.raises(DataError, match=r"fine_label_names\.txt.*data/cifar-100 in"):
        load_dataset("cifar-100")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t10k-images-idx3-ubyte", None, "no such file: .*t10k-images-idx3-ubyte"),
        ("t10k-images-idx3-ubyte", b"", "begins with nothing"),
        ("t10k-images-idx3-ubyte", b"\x89PNG\r\n", "begins with 89 50 4e 47"),
        ("t10k-images-idx3-ubyte", idx_bytes(TEST_LABELS), r"3 dimension\(s\)"),
        ("t10k-images-idx3-ubyte", bytes([0, 0, 0x0D, 3]) + bytes(99), "unsigned bytes"),
        ("t10k-images-idx3-ubyte", idx_bytes(TEST_IMAGES)[:10], "ends within its header"),
        ("t10k-images-idx3-ubyte", idx_bytes(TEST_IMAGES)[:-1], "3 x 4 x 5 = 60 bytes, 59 are"),
        ("t10k-images-idx3-ubyte", idx_bytes(TEST_IMAGES) + b"x", "longer than its header"),
        ("t10k-images-idx3-ubyte", idx_bytes(TEST_IMAGES[:0]), "must hold something"),
        ("t10k-images-idx3-ubyte", b"\0\0\x08\x03" + b"\xff" * 12, "at most 4 GiB"),
        ("t10k-images-idx3-ubyte", idx_bytes(TEST_IMAGES[:, :3]), "shape of the train split"),
        ("t10k-labels-idx1-ubyte", idx_bytes(TEST_LABELS[:2]), "2 labels for 3 images"),
        ("t10k-labels-idx1-ubyte", idx_bytes(np.array([1, 10, 2])), r"0 to 9; label 1 .* is 10"),
        ("train-labels-idx1-ubyte", idx_bytes(np.full(100, 4)), "two classes or more.*only '4'"),
    ],
)
def test_idx_files_that_break_a_rule(data, name, content, message):
    path = write_mnist(data / "mnist") / name
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_mnist()
    assert name in str(caught.value) or "mnist" in str(caught.value)


@pytest.mark.parametrize("damage", [slice(0, -12), slice(0, 30), slice(4, None)])
def test_damaged_gzip_names_the_file(tmp_path, damage):
    path = tmp_path / "labels.gz"
    path.write_bytes(gzip.compress(idx_bytes(np.random.RandomState(0).randint(0, 9, 999)))[damage])
    with pytest.raises(DataError, match=r"cannot read .*labels\.gz"):
        read_idx(path, 1)


def test_the_real_fashion_mnist(require, monkeypatch, tmp_path):
    require(idx.FASHION_FOLDER.is_dir(), "Debian's dataset-fashion-mnist")
    monkeypatch.delenv("TADNN_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    dataset = load_dataset("fashion-mnist")
    assert {name: len(split) for name, split in dataset.splits.items()} == {
        "train": 54_000,
        "validation": 6_000,
        "test": 10_000,
    }
    assert dataset.input_shape == (1, 28, 28)
    for name, count in (("train", 5400), ("validation", 600), ("test", 1000)):
        assert dataset.splits[name].labels.bincount().tolist() == [count] * 10
    # The first test image is an ankle boot; labels of the first ten are published.
    assert dataset.splits["test"].labels[:10].tolist() == [9, 2, 1, 1, 6, 1, 4, 6, 5, 7]
    assert dataset.class_names[9] == "Ankle boot"
    # Often quoted for all 60,000 images: 0.2860 and 0.3530.
    assert dataset.mean[0] == pytest.approx(0.2860, abs=1e-3)
    assert dataset.std[0] == pytest.approx(0.3530, abs=1e-3)
    train = dataset.splits["train"].images
    assert float(train.mean(dtype=torch.float64)) == pytest.approx(0.0, abs=1e-5)
    assert dataset.mirrors
    assert dataset.licence.startswith("MIT")


def write_cifar(folder: Path, label_bytes: int, files: dict[str, np.ndarray], names: str) -> Path:
    folder.mkdir(parents=True)
    random = np.random.RandomState(0)
    for file, labels in files.items():
        records = random.randint(0, 20, (len(labels), label_bytes + 3072)).astype(np.uint8)
        records[:, label_bytes - 1] = labels
        (folder / file).write_bytes(records.tobytes())
    classes = 10 if label_bytes == 1 else 100
    (folder / names).write_text("".join(f"thing {i}\n" for i in range(classes)) + "\n")
    return folder


def write_cifar10(folder: Path) -> Path:
    batches = {f"data_batch_{number}.bin": np.arange(20) % 10 for number in range(1, 6)}
    return write_cifar(folder, 1, {**batches, "test_batch.bin": np.arange(4)}, "batches.meta.txt")


@pytest.mark.parametrize("inner", ["", "cifar-10-batches-bin"])
def test_cifar10(data, inner):
    folder = write_cifar10(data / "cifar-10" / inner)
    raw = read_cifar10()
    assert raw.class_names[3] == "thing 3"
    assert {name: len(split) for name, split in raw.splits.items()} == {
        "train": 90,
        "validation": 10,
        "test": 4,
    }
    first = (folder / "test_batch.bin").read_bytes()[3073 : 2 * 3073]
    assert raw.splits["test"].labels.tolist() == [0, 1, 2, 3]
    image = raw.splits["test"].images[1]
    assert image.shape == (3, 32, 32)
    # Red, then green, then blue, each row by row.
    assert image[1, 2, 3] == first[1 + 1024 + 2 * 32 + 3]
    stored = b"".join((folder / f"data_batch_{n}.bin").read_bytes() for n in range(1, 6))
    wanted = {stored[i + 1 : i + 3073]: stored[i] for i in range(0, len(stored), 3073)}
    seen = {
        image.numpy().tobytes(): int(label)
        for name in ("train", "validation")
        for image, label in zip(raw.splits[name].images, raw.splits[name].labels, strict=True)
    }
    assert seen == wanted


def test_cifar100_uses_the_fine_labels(data):
    files = {"train.bin": np.arange(1000) % 100, "test.bin": np.array([99, 7])}
    write_cifar(data / "cifar-100", 2, files, "fine_label_names.txt")
    raw = read_cifar100()
    assert len(raw.class_names) == 100
    assert raw.splits["test"].labels.tolist() == [99, 7]
    assert raw.splits["train"].labels.bincount().tolist() == [9] * 100
    assert load_dataset("cifar-100").input_shape == (3, 32, 32)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data_batch_3.bin", None, r"no such file: .*data_batch_3\.bin"),
        ("data_batch_3.bin", bytes(3073 * 20 - 5), r"3\.bin must hold .* 19 records and 3068 b"),
        ("data_batch_3.bin", bytes(3073 * 19), r"of one length.* 20 images .*3\.bin has 19"),
        ("test_batch.bin", b"", r"test_batch\.bin must hold records of 3073"),
        ("test_batch.bin", b"\x0a" * 3073, r"test_batch\.bin must be 0 to 9; .* is 10"),
        ("batches.meta.txt", None, r"no such file: .*batches\.meta\.txt"),
        ("batches.meta.txt", b"cat\ndog\n", r"meta\.txt must hold 10 different"),
        ("batches.meta.txt", b"\xff\xfe", r"cannot read .*meta\.txt"),
    ],
)
def test_cifar_files_that_break_a_rule(data, name, content, message):
    path = write_cifar10(data / "cifar-10") / name
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_cifar10()
