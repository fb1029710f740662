"""Short, seeded training of a classifier."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from tadnn.accuracy.dataset import Dataset, Split
from tadnn.accuracy.evaluation import evaluate
from tadnn.accuracy.modules import channels_last, device_of, require_finite_weights
from tadnn.accuracy.steps import Steps
from tadnn.epochs import EPOCHS, whole_or_share
from tadnn.errors import RequestError, WorkFailed
from tadnn.progress import SILENT, Progress


@dataclass(frozen=True)
class TrainResult:
    """What a training reached.

    Args:
        accuracy: fraction of the test split, seen once, by the weights kept.
        validation_accuracy: fraction of the validation split, by the same weights. Whoever
            chooses between networks chooses by this one: choosing by the test split would turn
            it into a second validation split.
        epochs: how many were run.
        best_epoch: whose weights were kept, counted from 1.
        history: per epoch ``epoch``, ``loss`` (mean over the training batches),
            ``validation_loss``, ``validation_accuracy``, ``learning_rate`` (of its last step).
        split: what ``accuracy`` was measured on.
    """

    accuracy: float
    validation_accuracy: float
    epochs: float
    best_epoch: int
    history: tuple[Mapping[str, float], ...]
    split: str = "test"


def train(
    module: nn.Module,
    dataset: Dataset,
    *,
    epochs: float,
    seed: int,
    batch_size: int = 64,
    learning_rate: float = 0.1,
    patience: int | None = None,
    split: Literal["test", "validation"] = "test",
    progress: Progress = SILENT,
) -> TrainResult:
    """Train ``module`` in place and leave it with its best weights, in evaluation mode.

    SGD with Nesterov momentum; weight decay on weights, not on biases and normalisation; a
    learning rate that rises linearly over the first tenth of the steps and falls to zero on a
    cosine; label smoothing; shifted and, where the data allow it, mirrored images. The best
    weights are those with the highest validation accuracy, and of equals those with the lowest
    validation loss.

    The result depends on the arguments and the initial weights (the caller's to seed) alone: bit
    for bit on one machine with one thread count. Global random state is left as it was. On an
    error the module holds whatever weights it had at that moment.

    Args:
        module: the network, on any device; it maps ``[n, C, H, W]`` to ``[n, classes]``.
        dataset: its train split is learnt, its validation split chooses the weights.
        epochs: at most this many, a whole number, or a share below 1: so much of the train split
            is seen, once. An epoch leaves out the incomplete last batch.
        seed: of order, augmentation and dropout.
        batch_size: images a step; all of them where the split is smaller.
        learning_rate: the highest.
        patience: stop after so many epochs in a row without a better validation accuracy; never
            when absent.
        split: what the accuracy is measured on in the end. Who only ranks networks saves the time
            of looking at the test split.
        progress: told of every epoch.

    Raises:
        RequestError: an argument makes no sense, or the module does not fit the data set.
        WorkFailed: the weights were not finite to begin with, torch failed, or the loss stopped
            being finite; the message names the epoch.
    """
    _check(module, epochs, batch_size, learning_rate, patience)
    device = device_of(module)
    splits = {
        name: Split(found.images.to(device), found.labels.to(device))
        for name, found in dataset.splits.items()
    }
    rounds = math.ceil(epochs)
    steps = Steps(module, dataset, splits["train"], epochs, seed, batch_size, learning_rate)
    history: list[dict[str, float]] = []
    best: dict[str, float] = {}
    weights: dict[str, Tensor] = {}
    stale = 0
    with (
        _reproducible(device, seed),
        channels_last(module),
        progress.task("training", rounds) as advance,
    ):
        for epoch in range(1, rounds + 1):
            loss = steps.run_epoch(epoch)
            accuracy, validation_loss = evaluate(module, splits["validation"])
            if not math.isfinite(validation_loss):
                raise WorkFailed(
                    f"the validation loss must stay finite; it became {validation_loss} "
                    f"in epoch {epoch}"
                )
            entry = {
                "epoch": epoch,
                "loss": loss,
                "validation_loss": validation_loss,
                "validation_accuracy": accuracy,
                "learning_rate": steps.learning_rate,
            }
            history.append(entry)
            stale = 0 if not best or accuracy > best["validation_accuracy"] else stale + 1
            if not best or _rank(entry) > _rank(best):
                best = entry
                weights = {name: value.clone() for name, value in module.state_dict().items()}
            advance(1)
            if patience is not None and stale >= patience and epoch < rounds:
                progress.note(f"training stopped after epoch {epoch}: no gain for {stale} epochs")
                advance(rounds - epoch)
                break
        module.load_state_dict(weights)
        module.eval()
        accuracy = best["validation_accuracy"]
        if split == "test":
            accuracy, _ = evaluate(module, splits["test"])
    return TrainResult(
        accuracy=accuracy,
        validation_accuracy=best["validation_accuracy"],
        epochs=min(len(history), epochs),
        best_epoch=int(best["epoch"]),
        history=tuple(history),
        split=split,
    )


def _rank(entry: Mapping[str, float]) -> tuple[float, float]:
    return entry["validation_accuracy"], -entry["validation_loss"]


@contextmanager
def _reproducible(device: torch.device, seed: int) -> Iterator[None]:
    cudnn = torch.backends.cudnn
    with (
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        cudnn.flags(
            enabled=cudnn.enabled,
            benchmark=False,
            deterministic=True,
            allow_tf32=cudnn.allow_tf32,
        ),
    ):
        # Dropout draws from the global generator of its device; the other devices' stay alone.
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        else:
            torch.default_generator.manual_seed(seed)
        yield


def checked_epochs(epochs: float) -> float:
    """Return how many epochs a training has: a whole number, or a share of one.

    Raises:
        RequestError: it is neither.
    """
    found = whole_or_share(epochs)
    if found is None:
        raise RequestError(f"epochs is {EPOCHS}; received {epochs}")
    return found


def _check(
    module: nn.Module, epochs: float, batch_size: int, learning_rate: float, patience: int | None
) -> None:
    checked_epochs(epochs)
    counts = {"batch_size": batch_size}
    if patience is not None:
        counts["patience"] = patience
    for name, value in counts.items():
        if value < 1:
            raise RequestError(f"{name} must be at least 1; received {value}")
    if not (math.isfinite(learning_rate) and learning_rate > 0):
        raise RequestError(f"learning_rate must be positive and finite; received {learning_rate}")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise RequestError("a network must have parameters to train; received one without any")
    require_finite_weights(module)
