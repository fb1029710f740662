"""The 1797 handwritten digits that scikit-learn carries: 8x8 grey, no download."""

from __future__ import annotations

import numpy as np
import torch

from tadnn.accuracy.dataset import RawDataset, Split
from tadnn.accuracy.splitting import stratified_split
from tadnn.errors import MissingPackage

# Changing it changes every accuracy ever reported on this data set.
SPLIT_SEED = 0
SHARES = {"train": 0.6, "validation": 0.2, "test": 0.2}


def read_digits() -> RawDataset:
    """Read the test part of the UCI "Optical Recognition of Handwritten Digits".

    It has no split of its own: it is divided 60/20/20 by class, with a fixed seed. Writers are
    not known here, so the same hand may occur in train and test.

    Raises:
        MissingPackage: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise MissingPackage(
            "the data set 'digits' comes with scikit-learn, which is not installed; "
            "install it with: pip install scikit-learn"
        ) from error
    bunch = load_digits()
    labels = bunch.target.astype(np.int64)
    images = torch.from_numpy(bunch.images.astype(np.float32))[:, None]
    splits = {
        name: Split(images[indices], torch.from_numpy(labels[indices]))
        for name, indices in stratified_split(labels, SHARES, SPLIT_SEED).items()
    }
    return RawDataset(
        name="digits",
        class_names=tuple(str(name) for name in bunch.target_names),
        licence=(
            "CC BY 4.0; E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, "
            "UCI Machine Learning Repository, 1998"
        ),
        value_range=(0.0, 16.0),
        splits=splits,
        mirrors=False,
    )
