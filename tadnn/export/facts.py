"""What is known about an exported network; every fact is handed in, nothing is computed here.

``Predicted``, ``Measured``, ``Trained`` and ``ProxyScore`` have the fields that members of
``front.json`` have, so that ``Predicted(**member["predicted"])`` works.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
    """What training reached: ``accuracy`` is a fraction of the ``split`` and its ``images``."""

    accuracy: float
    epochs: float
    split: str
    images: int | None = None


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
        measured: on the device; when, ``measuring`` says.
        measuring: when and how it was measured, readable.
        unmeasured: why it was not measured for this export, readable.
        against_itself: how far apart two measurements of this network were, at most, 0-100.
        drift: by how many percent networks that this machine was learned on took longer than then,
            while this one was measured.
        in_search: what the search measured, where ``measured`` is newer.
        phases: the same for what the architecture runs as besides.
        search: how the network was searched for, readable.
        trained: of the weights that are exported; None = they are untrained.
        trained_in_search: what training in the search reached, where those weights are gone.
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
    measuring: str | None = None
    unmeasured: str | None = None
    against_itself: float | None = None
    drift: float | None = None
    in_search: Measured | None = None
    phases: tuple[PhaseLatency, ...] = ()
    search: str | None = None
    trained: Trained | None = None
    trained_in_search: Trained | None = None
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
            f"{_gap(*pair)}, more than two standard deviations of the prediction "
            f"({2 * pair[1].std_ms:.3g} ms)"
            for pair in self._pairs()
            if not _within_deviations(*pair)
        ]
        return "; ".join(words) or None

    def remark(self) -> str | None:
        """Say how they differ by more than the model's mean error, two deviations allowing it.

        Two networks in five do: it is worth reading, and no alarm. None as well where the
        measurement's own spread covers the difference.
        """
        error = self.latency_model_error
        words = [
            f"{_gap(*pair)}, more than the latency model's error of {error:.1f} % on average, "
            "within two standard deviations of the prediction"
            for pair in self._pairs()
            if error is not None
            and _within_deviations(*pair)
            and abs(_percent(*pair)) > error
            and abs(pair[1].latency_ms - pair[2].latency_ms) > pair[2].spread_ms
        ]
        return "; ".join(words) or None

    def agreement(self) -> tuple[str, ...]:
        """Say of every prediction that was measured how far it is off."""
        return tuple(_gap(*pair) for pair in self._pairs())

    def _pairs(self) -> list[tuple[str, Predicted, Measured]]:
        every = (
            ("the prediction", self.predicted, self.measured),
            *((f"the prediction of {p.name}", p.predicted, p.measured) for p in self.phases),
        )
        return [(what, p, m) for what, p, m in every if p is not None and m is not None]


def _percent(what: str, predicted: Predicted, measured: Measured) -> float:
    return 100 * (predicted.latency_ms / measured.latency_ms - 1)


def _within_deviations(what: str, predicted: Predicted, measured: Measured) -> bool:
    return abs(predicted.latency_ms - measured.latency_ms) <= 2 * predicted.std_ms


def _gap(what: str, predicted: Predicted, measured: Measured) -> str:
    difference = predicted.latency_ms - measured.latency_ms
    return (
        f"{what} is {abs(_percent(what, predicted, measured)):.1f} % ({abs(difference):.3g} ms) "
        f"{'above' if difference > 0 else 'below'} the measurement"
    )
