"""What can be measured."""

from __future__ import annotations

from dataclasses import dataclass

from tadnn.kernels import Kernel
from tadnn.nets import Net


@dataclass(frozen=True)
class NetRun:
    """A whole network on one batch."""

    net: Net
    batch: int = 1

    @property
    def key(self) -> str:
        """A stable, readable name."""
        return f"net({self.net.key},batch={self.batch})"


Subject = Kernel | NetRun
