"""The steps of a training: optimiser, learning rate, one epoch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tadnn.accuracy.augment import augmented
from tadnn.accuracy.dataset import Dataset, Split
from tadnn.accuracy.modules import as_logits, failures_named
from tadnn.errors import RequestError, WorkFailed

MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4
LABEL_SMOOTHING = 0.05
WARM_UP_SHARE = 0.1


class Steps:
    """The training steps of one call of `train`; the arguments are that function's.

    Attributes:
        learning_rate: of the latest step.
    """

    def __init__(
        self,
        module: nn.Module,
        dataset: Dataset,
        split: Split,
        epochs: float,
        seed: int,
        batch_size: int,
        learning_rate: float,
    ) -> None:
        self._module, self._dataset, self._split = module, dataset, split
        self._batch = min(batch_size, len(split))
        self._steps_per_epoch = max(1, int(min(epochs, 1) * len(split)) // self._batch)
        self._steps = math.ceil(epochs) * self._steps_per_epoch
        self._highest = learning_rate
        self._step = 0
        self._generator = torch.Generator().manual_seed(seed)
        self._background = dataset.preprocessing.black().to(split.images.device)
        self._optimiser = torch.optim.SGD(
            parameter_groups(module), lr=learning_rate, momentum=MOMENTUM, nesterov=True
        )
        self.learning_rate = learning_rate

    def run_epoch(self, epoch: int) -> float:
        """Go through the train split once, or its share; return the mean loss of its batches.

        Raises:
            RequestError: the module does not return one logit per class.
            WorkFailed: torch failed, or the loss is not finite.
        """
        self._module.train()
        total = 0.0
        order = torch.randperm(len(self._split), generator=self._generator)
        for indices in torch.split(order, self._batch)[: self._steps_per_epoch]:
            loss = self._run_step(indices.to(self._split.labels.device))
            if not math.isfinite(loss):
                raise WorkFailed(
                    f"the training loss must stay finite; it became {loss} in epoch {epoch} at a "
                    f"learning rate of {self.learning_rate:.3g} (a lower one may help)"
                )
            total += loss
        return total / self._steps_per_epoch

    def _run_step(self, indices: Tensor) -> float:
        self.learning_rate = self._highest * schedule(self._step, self._steps)
        self._step += 1
        for group in self._optimiser.param_groups:
            group["lr"] = self.learning_rate
        images = augmented(
            self._split.images[indices], self._background, self._dataset.mirrors, self._generator
        )
        self._optimiser.zero_grad(set_to_none=True)
        with failures_named("training", images):
            logits = as_logits(self._module(images))
            if logits.shape[1] != self._dataset.classes:
                raise RequestError(
                    f"data set {self._dataset.name!r} has {self._dataset.classes} classes; "
                    f"the network gives {logits.shape[1]}"
                )
            loss = F.cross_entropy(
                logits, self._split.labels[indices], label_smoothing=LABEL_SMOOTHING
            )
            torch.autograd.backward(loss)
        self._optimiser.step()
        return float(loss.detach())


def schedule(step: int, steps: int) -> float:
    """Return the share of the highest learning rate at a step, counted from 0.

    A line from ``1 / warm-up`` to 1 over the first tenth of the steps, then half a cosine that
    would reach 0 one step after the last.
    """
    warm_up = math.ceil(WARM_UP_SHARE * steps)
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))


def parameter_groups(module: nn.Module) -> list[dict[str, object]]:
    """Return the optimiser's parameters, with weight decay on weights only."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    # One dimension: biases, and the scales and shifts of normalisation.
    return [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
