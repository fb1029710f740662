"""How a network is executed: what a latency depends on beside the network and the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from tadnn.errors import RequestError, near_matches
from tadnn.kernels import DTYPE_BYTES

MIXED: Final = "amp"
"""The dtype of a setting whose kernels are partly fp16, partly fp32."""
_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "dtype": ("fp32", "fp16", "bf16", "amp"),
    "math": ("ieee", "tf32"),
    "layout": ("nchw", "nhwc"),
}


@dataclass(frozen=True)
class Setting:
    """What a latency model is fitted for; two settings' latencies don't mix.

    Args:
        runtime: the name of a runtime, such as ``"torch-eager"``.
        dtype: of weights and activations; ``"amp"`` is torch's automatic mixed precision on a
            GPU, with kernels of fp16 and fp32.
        math: ``"tf32"`` lets NVIDIA tensor cores round fp32 operands, ``"ieee"`` doesn't.
        layout: of images in memory; ``"nhwc"`` is torch's channels_last.
        threads: CPU threads of one operator.
        flush_l2: whether a GPU's second-level cache is emptied before every run.

    Raises:
        RequestError: a value is not among the valid ones.
    """

    runtime: str = "torch-eager"
    dtype: str = "fp32"
    math: str = "ieee"
    layout: str = "nchw"
    threads: int = 1
    flush_l2: bool = False

    def __post_init__(self) -> None:
        # Settings are read from cards and databases, so annotations promise nothing here.
        runtime: object = self.runtime
        threads: object = self.threads
        if not isinstance(runtime, str) or not runtime:
            raise RequestError(f"a setting names its runtime; got {runtime!r}")
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                near = near_matches(str(value), choices)
                hint = f"; did you mean {near[0]!r}?" if near else "."
                raise RequestError(f"unknown {name} {value!r}{hint} Valid: {', '.join(choices)}.")
        if not isinstance(threads, int) or isinstance(threads, bool) or threads < 1:
            raise RequestError(f"threads is a whole number, at least 1; got {threads!r}")
        flush_l2: object = self.flush_l2
        if not isinstance(flush_l2, bool):
            raise RequestError(f"flush_l2 is true or false; got {flush_l2!r}")

    @property
    def dtypes(self) -> tuple[str, ...]:
        """What kernels are of."""
        return ("fp16", "fp32") if self.dtype == MIXED else (self.dtype,)

    @property
    def weight_bytes(self) -> int:
        """Bytes of a weight."""
        return DTYPE_BYTES[self.dtypes[-1]]

    def to_dict(self) -> dict[str, Any]:
        """Return the setting as JSON-able data; ``flush_l2`` only where it is on.

        What was stored before that field existed stays valid that way.
        """
        data = asdict(self)
        if not self.flush_l2:
            del data["flush_l2"]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Setting:
        """Return the setting of :meth:`to_dict`'s data; what is absent has its default.

        Raises:
            RequestError: an unknown key or value.
        """
        names = [f.name for f in fields(cls)]
        unknown = sorted(str(key) for key in data if key not in names)
        if unknown:
            raise RequestError(
                f"a setting has no {', '.join(unknown)}. Valid: {', '.join(sorted(names))}."
            )
        return cls(**data)

    @property
    def label(self) -> str:
        """The setting in words, such as ``"torch-eager fp32 ieee nchw, 2 threads"``."""
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        flushed = ", L2 flushed" if self.flush_l2 else ""
        return f"{self.runtime} {self.dtype} {self.math} {self.layout}, {threads}{flushed}"

    def differences(self, other: Setting) -> list[str]:
        """Say where another setting differs, such as ``"threads 2, not 1"`` (self's first)."""
        return [
            f"{f.name} {getattr(self, f.name)}, not {getattr(other, f.name)}"
            for f in fields(self)
            if getattr(self, f.name) != getattr(other, f.name)
        ]
