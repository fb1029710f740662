"""What is known of a latency after measuring it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

# A normal sample's standard deviation is 1.4826 times its median absolute deviation, and its
# median's standard error sqrt(pi/2) times its mean's. Rousseeuw & Croux, JASA 88 (1993), sec. 1.
_MAD_TO_STD: Final = 1.4826
_MEDIAN_TO_MEAN: Final = math.sqrt(math.pi / 2)
_LEAST_OBSERVED_US: Final = 0.25


@dataclass(frozen=True)
class Measurement:
    """A subject's time: the median of the repeats, and their robust standard deviation."""

    latency_us: float
    spread_us: float
    repeats: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Measurement:
        """Summarise samples (microseconds; at least one)."""
        middle = median(samples)
        deviation = median(abs(sample - middle) for sample in samples)
        return cls(middle, _MAD_TO_STD * deviation, len(samples))

    @property
    def error_us(self) -> float:
        """The standard error of ``latency_us``."""
        return _MEDIAN_TO_MEAN * self.spread_us / math.sqrt(self.repeats)

    @classmethod
    def of_observed(cls, samples: Sequence[float]) -> Measurement:
        """Summarise times that a profiler rounded to whole microseconds.

        The latency is the mean of the middle half, which resists outliers as a median does and
        isn't a whole number.
        """
        ordered = sorted(samples)
        cut = len(ordered) // 4
        middle = ordered[cut : len(ordered) - cut]
        # What took less than the profiler resolves took something.
        latency_us = max(sum(middle) / len(middle), _LEAST_OBSERVED_US)
        return cls(latency_us, cls.of(samples).spread_us, len(samples))

    def combined(self, other: Measurement) -> Measurement:
        """Return the measurement that both are of the same thing, weighted by repeats.

        Where they differ, that is spread as well.
        """
        repeats = self.repeats + other.repeats
        share = self.repeats / repeats
        latency_us = share * self.latency_us + (1 - share) * other.latency_us
        within = share * self.spread_us**2 + (1 - share) * other.spread_us**2
        between = share * (1 - share) * (self.latency_us - other.latency_us) ** 2
        return Measurement(latency_us, math.sqrt(within + between), repeats)
