"""The accuracy of an export from ``model.onnx`` and ``preprocess.json`` alone: no torch, no tadnn.

Run by tests as ``python -I export_accuracy.py FOLDER IMAGES.npz``, the raw ``images`` and their
``labels`` inside; prints how many there are, how many are recognised, and the first one's class.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

for name in ("tadnn", "torch"):
    sys.modules[name] = None


def positions(size, wanted):
    """Return for every output pixel its two neighbours and the weight of the second."""
    # Corners not aligned: pixels are areas, and their centres lie at halves.
    at = np.clip((np.arange(wanted) + 0.5) * size / wanted - 0.5, 0, size - 1)
    first = np.floor(at).astype(int)
    return first, np.minimum(first + 1, size - 1), (at - first).astype(np.float32)


def bilinear(images, size):
    for axis, wanted in ((2, size[0]), (3, size[1])):
        first, second, weight = positions(images.shape[axis], wanted)
        weight = weight[:, None] if axis == 2 else weight
        low, high = np.take(images, first, axis), np.take(images, second, axis)
        images = low * (1 - weight) + high * weight
    return images


folder = Path(sys.argv[1])
how = json.loads((folder / "preprocess.json").read_text())
with np.load(sys.argv[2]) as held:
    images, labels = held["images"].astype(np.float32), held["labels"]
assert (how["layout"], list(images.shape[1:])) == ("NCHW", how["raw_shape"])
low, high = how["value_range"]
images = (images - low) / (high - low)
if how["resize"] is not None:
    resize = how["resize"]
    assert (resize["mode"], resize["align_corners"], resize["antialias"]) == (
        "bilinear",
        False,
        False,
    )
    images = bilinear(images, resize["size"])
images = np.repeat(images, how["repeat_channels"], axis=1)
mean, std = (np.array(how[key], np.float32)[:, None, None] for key in ("mean", "std"))
session = onnxruntime.InferenceSession(folder / "model.onnx")
(scores,) = session.run(None, {"input": ((images - mean) / std).astype(how["dtype"])})
found = scores.argmax(axis=1)
print(len(labels), int((found == labels).sum()), how["class_names"][found[0]])
