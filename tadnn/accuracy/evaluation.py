"""How often a network is right."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tadnn.accuracy.dataset import Split
from tadnn.accuracy.modules import as_logits, device_of, failures_named, modes_kept


def evaluate(module: nn.Module, split: Split, batch_size: int = 256) -> tuple[float, float]:
    """Return accuracy (a fraction) and mean cross-entropy on a split; the module is unchanged.

    Raises:
        RequestError: the module does not return ``[n, classes]``.
        WorkFailed: torch failed.
    """
    right, loss = 0, 0.0
    with torch.no_grad(), modes_kept(module):
        module.eval()
        for images, labels in zip(
            torch.split(split.images, batch_size),
            torch.split(split.labels, batch_size),
            strict=True,
        ):
            with failures_named("evaluation", images):
                logits = as_logits(module(images.to(device_of(module))))
            labels = labels.to(logits.device)
            right += int((logits.argmax(1) == labels).sum())
            loss += float(F.cross_entropy(logits, labels, reduction="sum"))
    return right / len(split), loss / len(split)
