"""Image folders as data sets."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tadnn.accuracy import load_dataset
from tadnn.errors import DataError

RANDOM = np.random.RandomState(0)


def noise(height: int = 6, width: int = 8, channels: int = 3) -> Image.Image:
    shape = (height, width, channels) if channels > 1 else (height, width)
    return Image.fromarray(RANDOM.randint(0, 256, shape).astype(np.uint8))


def write_folder(root: Path, count: int = 5, **size: int) -> Path:
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for i in range(count):
            noise(**size).save(root / name / f"{i}.png")
    return root


def sizes(dataset) -> dict[str, int]:
    return {name: len(split) for name, split in dataset.splits.items()}


def test_a_folder_of_classes_is_divided(tmp_path):
    root = write_folder(tmp_path / "pets")
    (root / ".hidden").mkdir()
    (root / "cat" / ".directory").write_text("no image")
    dataset = load_dataset(f"folder:{root}")
    assert dataset.class_names == ("cat", "dog")
    assert sizes(dataset) == {"train": 6, "validation": 2, "test": 2}
    assert dataset.input_shape == (3, 6, 8)
    assert dataset.preprocess()["decode"]["resize"] is None
    assert load_dataset(f"folder:{root}") is dataset


def test_a_folder_with_splits_keeps_them(tmp_path):
    for split, count in (("train", 4), ("val", 1), ("test", 2)):
        write_folder(tmp_path / split, count)
    dataset = load_dataset(f"folder:{tmp_path}")
    assert sizes(dataset) == {"train": 8, "validation": 2, "test": 4}
    assert dataset.splits["test"].labels.tolist() == [0, 0, 1, 1]
    stored = np.asarray(Image.open(tmp_path / "test" / "dog" / "1.png")) / 255.0
    wanted = (stored - dataset.mean) / dataset.std
    found = dataset.splits["test"].images[3].permute(1, 2, 0)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_train_and_test_folders_leave_validation_to_be_carved(tmp_path):
    write_folder(tmp_path / "train", 10)
    write_folder(tmp_path / "test", 1)
    assert sizes(load_dataset(f"folder:{tmp_path}")) == {"train": 18, "validation": 2, "test": 2}


def test_the_record_alone_reproduces_an_image(tmp_path):
    root = write_folder(tmp_path, height=30, width=20)
    noise(height=15, width=40).save(root / "dog" / "0.png")
    dataset = load_dataset(f"folder:{root}", (3, 10, 10))
    record = json.loads(json.dumps(dataset.preprocess(), allow_nan=False))
    decode = record["decode"]
    assert decode["crop"].startswith("around the centre")
    assert decode["resize"] == {"size": [10, 10], "mode": "bilinear", "antialias": True}
    assert record["resize"] is None
    known = []
    for path in root.glob("*/*.png"):
        image = Image.open(path).convert(decode["mode"])
        side = min(image.size)
        left, top = (image.width - side) / 2, (image.height - side) / 2
        box = (left, top, left + side, top + side)
        x = np.asarray(image.resize((10, 10), Image.Resampling.BILINEAR, box=box)) / 255.0
        known.append((path.parent.name, ((x - record["mean"]) / record["std"]).transpose(2, 0, 1)))
    assert sum(len(split) for split in dataset.splits.values()) == len(known) == 10
    for split in dataset.splits.values():
        for image, label in zip(split.images, split.labels, strict=True):
            same = [name for name, x in known if np.abs(image.numpy() - x).max() < 1e-5]
            assert same == [record["class_names"][int(label)]]


def test_grey_folders_stay_grey_unless_colour_is_wanted(tmp_path):
    root = write_folder(tmp_path, channels=1)
    assert load_dataset(f"folder:{root}").input_shape == (1, 6, 8)
    assert load_dataset(f"folder:{root}", (3, 6, 8)).input_shape == (3, 6, 8)
    noise().save(root / "cat" / "0.png")
    assert load_dataset(f"folder:{root}", (1, 6, 8)).preprocess()["decode"]["mode"] == "L"


def test_orientation_and_palettes(tmp_path):
    root = write_folder(tmp_path)
    turned = noise(height=8, width=6)
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(root / "cat" / "0.png", exif=exif)
    noise().quantize(8).save(root / "cat" / "1.png")
    noise().quantize(8).save(root / "cat" / "2.png", transparency=b"\0\1\2")
    assert load_dataset(f"folder:{root}").input_shape == (3, 6, 8)


def broken_folder(root: Path, case: str) -> None:
    write_folder(root)
    if case == "empty class":
        (root / "emu").mkdir()
    elif case == "no image":
        (root / "dog" / "notes.txt").write_text("woof")
    elif case == "truncated":
        path = root / "dog" / "3.png"
        path.write_bytes(path.read_bytes()[:-60])
    elif case == "sizes":
        noise(5, 5).save(root / "dog" / "4.png")
    elif case == "deep":
        Image.fromarray(np.zeros((6, 8), np.uint16)).save(root / "dog" / "2.png")
    elif case == "one class":
        for path in (root / "dog").iterdir():
            path.unlink()
        (root / "dog").rmdir()
    elif case == "few":
        for path in root.glob("*/[12345].png"):
            path.unlink()


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("empty class", "class folder .*emu holds no image"),
        ("no image", r"cannot read .*notes\.txt as an image"),
        ("truncated", r"cannot read .*3\.png as an image"),
        ("sizes", r"set input_shape .*0\.png is 8x6 and .*4\.png is 5x5"),
        ("deep", r"8 bits per channel; .*2\.png"),
        ("one class", "two classes or more.*only 'cat'"),
        ("few", "too few images per class to carve validation"),
    ],
)
def test_folders_that_break_a_rule(tmp_path, case, message):
    broken_folder(tmp_path / "pets", case)
    with pytest.raises(DataError, match=message) as caught:
        load_dataset(f"folder:{tmp_path / 'pets'}")
    assert "pets" in str(caught.value)


def test_folders_whose_splits_break_a_rule(tmp_path):
    with pytest.raises(DataError, match=r"there is no folder .*nowhere"):
        load_dataset(f"folder:{tmp_path / 'nowhere'}")
    with pytest.raises(DataError, match="holds no folder"):
        load_dataset(f"folder:{tmp_path}")
    write_folder(tmp_path / "train")
    write_folder(tmp_path / "val")
    with pytest.raises(DataError, match="call them test"):
        load_dataset(f"folder:{tmp_path}")
    write_folder(tmp_path / "tests")
    with pytest.raises(DataError, match="received 'tests'"):
        load_dataset(f"folder:{tmp_path}")
    (tmp_path / "tests").rename(tmp_path / "test")
    (tmp_path / "test" / "dog").rename(tmp_path / "test" / "wolf")
    with pytest.raises(DataError, match="'wolf' is only in test"):
        load_dataset(f"folder:{tmp_path}")
    with pytest.raises(DataError, match="1 or 3 channels; received 2"):
        load_dataset(f"folder:{tmp_path / 'train'}", (2, 4, 4))
    with pytest.raises(DataError, match="at most 4 GiB"):
        load_dataset(f"folder:{tmp_path / 'train'}", (3, 90_000, 90_000))
