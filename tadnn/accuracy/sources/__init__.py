"""Where data sets come from: one file per format."""

from __future__ import annotations

from tadnn.accuracy.sources.cifar import read_cifar10, read_cifar100
from tadnn.accuracy.sources.idx import read_fashion_mnist, read_mnist
from tadnn.accuracy.sources.image_folder import read_folder
from tadnn.accuracy.sources.npz import read_npz
from tadnn.accuracy.sources.torch_dataset import read_torch

__all__ = [
    "read_cifar10",
    "read_cifar100",
    "read_fashion_mnist",
    "read_folder",
    "read_mnist",
    "read_npz",
    "read_torch",
]
