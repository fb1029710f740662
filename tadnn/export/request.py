"""What an export is made of; every fact is handed in, nothing is computed here.

``Predicted``, ``Measured``, ``Trained`` and ``ProxyScore`` have the fields that members of
``front.json`` have, so that ``Predicted(**member["predicted"])`` works.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from tadnn.errors import RequestError
from tadnn.files import stable_hash

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tadnn.nets import Net


@dataclass(frozen=True)
class Predicted:
    """A latency model's word: milliseconds per batch, their standard deviation.

    ``unprofiled_share``, 0 to 1, is of kinds of kernels that nobody measured.
    """

    latency_ms: float
    std_ms: float
    in_range: bool
    unprofiled_share: float = 0.0


@dataclass(frozen=True)
class Measured:
    """A clock's word: milliseconds per batch (median of the repeats) and their spread."""

    latency_ms: float
    spread_ms: float
    repeats: int


@dataclass(frozen=True)
class PhaseLatency:
    """The latency of a further network of the same architecture, such as a decoder's next token."""

    name: str
    predicted: Predicted | None = None
    measured: Measured | None = None


@dataclass(frozen=True)
class Trained:
    """What training reached: ``accuracy`` is a fraction of the ``split``."""

    accuracy: float
    epochs: int
    split: str


@dataclass(frozen=True)
class ProxyScore:
    """A zero-cost proxy's value; larger is better."""

    name: str
    value: float


@dataclass(frozen=True)
class CardFacts:
    """What is known about the network; whatever is None is said to be unknown.

    Args:
        study: the name of the study that found it.
        trial: its trial number there.
        study_seed: the seed of the study.
        device: where the latencies hold, readable.
        setting: how it is executed there, readable, such as a ``Setting``'s label.
        batch: of the latencies and of the FLOPs and memory on the card.
        latency_model: its name, ``NAME`` or ``NAME@DEVICE``.
        latency_model_error: its mean absolute percentage error on networks or kernels that it
            was not fitted on, 0-100.
        predicted: by that model.
        measured: on the device, after the search.
        phases: the same for what the architecture runs as besides.
        trained: of the weights that are exported; None = they are untrained.
        proxy: what the search looked at instead of an accuracy.
        environment: names and versions that decide a measurement.
        origin: what the network was rewritten from, and what became of its weights.
    """

    study: str | None = None
    trial: int | None = None
    study_seed: int | None = None
    device: str | None = None
    setting: str | None = None
    batch: int = 1
    latency_model: str | None = None
    latency_model_error: float | None = None
    predicted: Predicted | None = None
    measured: Measured | None = None
    phases: tuple[PhaseLatency, ...] = ()
    trained: Trained | None = None
    proxy: ProxyScore | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    origin: str | None = None

    def disagreement(self) -> str | None:
        """Say how prediction and measurement differ by more than the model's own error.

        That is: by more than two standard deviations of the prediction, which are as wide as
        the model's errors on networks that it was not fitted on. None where they agree or one
        of them is missing.
        """
        words = [
            _disagreement(f"the prediction{of}", predicted, measured)
            for of, predicted, measured in (
                ("", self.predicted, self.measured),
                *((f" of {p.name}", p.predicted, p.measured) for p in self.phases),
            )
            if predicted is not None and measured is not None
        ]
        return "; ".join(word for word in words if word) or None


def _disagreement(what: str, predicted: Predicted, measured: Measured) -> str | None:
    difference = predicted.latency_ms - measured.latency_ms
    percent = 100 * difference / measured.latency_ms
    if abs(difference) <= 2 * predicted.std_ms:
        return None
    return (
        f"{what} is {abs(percent):.1f} % ({abs(difference):.3g} ms) "
        f"{'above' if difference > 0 else 'below'} the measurement, more than two standard "
        f"deviations of the prediction ({2 * predicted.std_ms:.3g} ms)"
    )


@dataclass(frozen=True, eq=False)
class ExportRequest:
    """A network to export.

    Args:
        net: the network.
        card: what is known about it.
        arch: the architecture that it was built from; None where it came from elsewhere.
        space: the name of that architecture's space.
        module: the trained module, with the parameter names of ``net.to_module()``; left alone.
            None = untrained, weights drawn from ``weights_seed``.
        weights_seed: of the untrained weights, and of the random inputs that everything is
            checked on.
        preprocess: how a raw input becomes the network's, as plain JSON-able data with
            ``class_names``; None where it is unknown.
        sample: a batch of real, preprocessed inputs ``[n, *net.input_shape]`` to check on too.

    Raises:
        RequestError: an accuracy without the weights that reached it, class names that do not
            fit the outputs, or a sample of another shape.
    """

    net: Net
    card: CardFacts
    arch: Mapping[str, Any] | None = None
    space: str | None = None
    module: nn.Module | None = None
    weights_seed: int = 0
    preprocess: Mapping[str, Any] | None = None
    sample: Tensor | None = None

    def __post_init__(self) -> None:
        if self.card.trained is not None and self.module is None:
            raise RequestError(
                "an accuracy belongs to the weights that reached it; got an accuracy of "
                f"{self.card.trained.accuracy} and no module"
            )
        if self.card.batch < 1:
            raise RequestError(f"a batch has at least one input; got {self.card.batch}")
        names = None if self.preprocess is None else self.preprocess.get("class_names")
        if names is not None and len(names) != self.classes:
            raise RequestError(
                f"there is one class name per output, {self.classes}; got {len(names)}"
            )
        if self.sample is not None:
            shape = tuple(self.sample.shape)
            if len(shape) < 2 or shape[0] < 1 or shape[1:] != self.net.input_shape:
                raise RequestError(
                    f"the sample has shape [n, {', '.join(map(str, self.net.input_shape))}]; "
                    f"got {list(shape)}"
                )

    @property
    def classes(self) -> int:
        """The number of outputs per input."""
        return math.prod(self.net.output_shape()[1:])

    @property
    def digest(self) -> str:
        """A hash of everything that decides what is written: network, weights, facts."""
        weights = hashlib.sha256()
        if self.module is not None:
            for name, tensor in sorted(self.module.state_dict().items()):
                weights.update(name.encode())
                weights.update(tensor.detach().cpu().numpy().tobytes())
        facts = {
            "card": asdict(self.card),
            "arch": None if self.arch is None else dict(self.arch),
            "preprocess": None if self.preprocess is None else dict(self.preprocess),
        }
        return stable_hash([self.net.key, weights.hexdigest(), self.weights_seed, facts])

    @property
    def status(self) -> str:
        """What the weights are, in one line for every text file of the export."""
        trained = self.card.trained
        if trained is not None:
            epochs = f"{trained.epochs} epoch{'' if trained.epochs == 1 else 's'}"
            accuracy = f"accuracy {trained.accuracy:.4f} on the {trained.split} split"
            return f"trained for {epochs}, {accuracy}"
        if self.module is None:
            return f"UNTRAINED: the weights are random, drawn with seed {self.weights_seed}"
        return "UNTRAINED: no training of these weights is on record"
