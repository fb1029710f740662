from __future__ import annotations

import json
import sys
from collections.abc import Mapping

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

from tadnn.accuracy import (
    SOURCES,
    RawDataset,
    Split,
    load_dataset,
    preprocessing,
    stratified_split,
)
from tadnn.accuracy.dataset import prepare
from tadnn.accuracy.digits import read_digits
from tadnn.accuracy.preprocessing import resized
from tadnn.errors import DataError, MissingPackage, UnknownName


def raw(
    splits: Mapping[str, Split] | None = None, channels: int = 1, value_range=(0.0, 255.0)
) -> RawDataset:
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([0, 1, 0, 1])
    return RawDataset(
        name="noise",
        class_names=("a", "b"),
        licence="none",
        value_range=value_range,
        splits=splits
        or {
            name: Split(
                torch.randint(0, 256, (4, channels, 4, 6), generator=generator, dtype=torch.uint8),
                labels,
            )
            for name in ("train", "validation", "test")
        },
    )


def test_digits_keep_their_own_shape_unless_another_is_asked_for():
    digits = load_dataset("digits")
    assert digits.input_shape == (1, 8, 8)
    assert digits.classes == 10
    assert digits.class_names == tuple("0123456789")
    assert [digits.splits[name].images.shape[1:] for name in digits.splits] == [(1, 8, 8)] * 3
    assert digits.splits["train"].images.dtype == torch.float32
    assert digits.splits["train"].labels.dtype == torch.int64


def test_splits_are_disjoint_and_complete():
    digits = read_digits()
    # No image of digits occurs twice, so the bytes identify it.
    seen = {
        name: {image.numpy().tobytes() for image in split.images}
        for name, split in digits.splits.items()
    }
    assert {name: len(images) for name, images in seen.items()} == {
        "train": 1079,
        "validation": 359,
        "test": 359,
    }
    assert len(set.union(*seen.values())) == 1797
    everything = {image.astype(np.float32).tobytes() for image in load_digits().images}
    assert set.union(*seen.values()) == everything


def test_labels_stay_with_their_images():
    bunch = load_digits()
    known = {
        image.astype(np.float32).tobytes(): label
        for image, label in zip(bunch.images, bunch.target, strict=True)
    }
    for split in read_digits().splits.values():
        for image, label in zip(split.images, split.labels, strict=True):
            assert known[image.numpy().tobytes()] == int(label)


def test_every_class_has_its_share_of_every_split():
    digits = load_dataset("digits")
    total = np.bincount(load_digits().target)
    for name, share in (("train", 0.6), ("validation", 0.2), ("test", 0.2)):
        counts = np.bincount(digits.splits[name].labels.numpy())
        assert np.abs(counts - share * total).max() <= 1.0


def test_stratified_split_by_hand():
    labels = np.array([0] * 5 + [1] * 10)
    parts = stratified_split(labels, {"train": 0.6, "test": 0.4}, seed=1)
    assert np.bincount(labels[parts["train"]]).tolist() == [3, 6]
    assert np.bincount(labels[parts["test"]]).tolist() == [2, 4]
    assert sorted([*parts["train"], *parts["test"]]) == list(range(15))
    again = stratified_split(labels, {"train": 0.6, "test": 0.4}, seed=1)
    assert all(np.array_equal(parts[name], again[name]) for name in parts)
    other = stratified_split(labels, {"train": 0.6, "test": 0.4}, seed=2)
    assert not np.array_equal(parts["test"], other["test"])


def test_the_split_of_digits_never_changes():
    # Accuracies of different releases are comparable only as long as this holds.
    labels = load_digits().target.astype(np.int64)
    parts = stratified_split(labels, {"train": 0.6, "validation": 0.2, "test": 0.2}, seed=0)
    assert parts["test"][:8].tolist() == [5, 9, 14, 16, 18, 20, 22, 23]


def test_normalisation_comes_from_the_train_split_alone():
    digits = load_dataset("digits", (1, 12, 12))
    train, test = digits.splits["train"].images, digits.splits["test"].images
    assert float(train.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(train.std(correction=0)) == pytest.approx(1.0, abs=1e-6)
    assert float(test.mean()) != pytest.approx(0.0, abs=1e-4)


def test_the_record_alone_reproduces_the_input():
    digits = load_dataset("digits", (3, 10, 14))
    record = json.loads(json.dumps(digits.preprocess(), allow_nan=False))
    assert record["layout"] == "NCHW"
    assert record["class_names"] == list("0123456789")
    low, high = record["value_range"]
    x = (read_digits().splits["test"].images - low) / (high - low)
    resize = record["resize"]
    assert resize["mode"] == "bilinear"
    x = F.interpolate(
        x,
        size=resize["size"],
        mode=resize["mode"],
        align_corners=resize["align_corners"],
        antialias=resize["antialias"],
    )
    x = x.repeat(1, record["repeat_channels"], 1, 1)
    mean, std = (torch.tensor(record[key])[:, None, None] for key in ("mean", "std"))
    torch.testing.assert_close((x - mean) / std, digits.splits["test"].images)


def test_no_resize_is_recorded_where_none_happens():
    assert load_dataset("digits").preprocess()["resize"] is None


def test_bilinear_without_aligned_corners():
    row = torch.tensor([[[[0.0, 1.0]]]])
    assert resized(row, (1, 4)).flatten().tolist() == [0.0, 0.25, 0.75, 1.0]


def test_three_channels_are_one_repeated():
    images = load_dataset("digits", (3, 8, 8)).splits["train"].images
    assert torch.equal(images[:, 0], images[:, 1])
    assert torch.equal(images[:, 0], images[:, 2])
    assert torch.equal(images[:, :1], load_dataset("digits").splits["train"].images)


def test_black_is_what_the_lowest_raw_value_becomes():
    digits = load_dataset("digits")
    assert float(digits.preprocessing.black()) == float(digits.splits["train"].images.min())


def test_loading_again_costs_nothing_and_gives_the_same():
    assert load_dataset("digits", [1, 16, 16]) is load_dataset("digits", (1, 16, 16))


def test_unknown_names_show_near_ones():
    with pytest.raises(UnknownName, match="did you mean 'digits'"):
        load_dataset("digit")


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 32, 32), "1 or 3; received 2"),
        ((1, 0, 32), "three positive integers"),
        ((1, 32), "three positive integers"),
        ((1, 32.5, 32), "three positive integers"),
        ("1,32,32", "three positive integers"),
        (32, "three positive integers"),
        ((1, 100_000, 100_000), "held in memory"),
    ],
)
def test_impossible_shapes(shape, message):
    with pytest.raises(DataError, match=message):
        load_dataset("digits", shape)


def test_a_data_set_is_added_by_one_function(monkeypatch):
    monkeypatch.setitem(SOURCES, "noise", raw)
    noise = load_dataset("noise", (1, 8, 8))
    assert noise.classes == 2
    assert noise.splits["validation"].images.shape == (4, 1, 8, 8)


def test_colour_stays_colour():
    assert prepare(raw(channels=3)).mean != prepare(raw(channels=1)).mean * 3
    assert len(prepare(raw(channels=3)).mean) == 3
    with pytest.raises(DataError, match="can have 3; received 1"):
        prepare(raw(channels=3), (1, 4, 6))


def test_converting_in_chunks_changes_nothing(monkeypatch):
    whole = prepare(raw(), (3, 5, 5))
    monkeypatch.setattr(preprocessing, "CHUNK_VALUES", 3 * 5 * 5 * 3)
    parts = prepare(raw(), (3, 5, 5))
    assert parts.mean == pytest.approx(whole.mean, rel=1e-12)
    assert parts.std == pytest.approx(whole.std, rel=1e-12)
    for name, split in parts.splits.items():
        torch.testing.assert_close(split.images, whole.splits[name].images)
        assert torch.equal(split.images, parts.preprocessing.apply(raw().splits[name].images))


def test_one_class_is_no_classification():
    split = Split(torch.rand(2, 1, 4, 4), torch.tensor([1, 1]))
    with pytest.raises(DataError, match="two classes or more to train on; received only 'b'"):
        raw(dict.fromkeys(("train", "validation", "test"), split))


def test_statistics_are_per_channel():
    images = torch.zeros(4, 2, 1, 1)
    images[:, 0, 0, 0] = torch.tensor([0.0, 1.0, 0.0, 1.0])
    images[:, 1, 0, 0] = torch.tensor([0.0, 2.0, 4.0, 2.0])
    split = Split(images, torch.tensor([0, 1, 0, 1]))
    whole = raw(dict.fromkeys(("train", "validation", "test"), split), value_range=(0.0, 4.0))
    prepared = prepare(whole)
    assert prepared.mean == (0.125, 0.5)
    assert prepared.std == pytest.approx((0.125, np.sqrt(0.125)))


def test_constant_images_cannot_be_normalised():
    split = Split(torch.ones(2, 1, 4, 4), torch.tensor([0, 1]))
    with pytest.raises(DataError, match="without variation"):
        prepare(raw(dict.fromkeys(("train", "validation", "test"), split)))


GOOD = Split(torch.rand(2, 1, 4, 4), torch.tensor([0, 1]))


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ({"train": GOOD, "test": GOOD}, "must have the splits"),
        ({"train": GOOD, "validation": GOOD, "test": Split(GOOD.images, torch.tensor([0]))}, "n l"),
        (
            {
                "train": GOOD,
                "validation": GOOD,
                "test": Split(torch.rand(2, 1, 4, 5), GOOD.labels),
            },
            "of the shape of the train split",
        ),
        (
            {
                "train": GOOD,
                "validation": GOOD,
                "test": Split(GOOD.images, torch.tensor([0, 2])),
            },
            "must be 0 to 1; received 0 to 2",
        ),
    ],
)
def test_a_source_that_breaks_the_rules(splits, message):
    with pytest.raises(DataError, match=message):
        raw(splits)


def test_digits_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingPackage, match="pip install scikit-learn"):
        read_digits()
