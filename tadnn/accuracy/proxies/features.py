"""Looking into a forward pass: the last features, and what batch normalisation receives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import final

from torch import Tensor, nn

_BATCH_NORM = nn.modules.batchnorm._BatchNorm
_CONVOLUTIONS = nn.modules.conv._ConvNd
_POOLS = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)


@final
@dataclass
class Watch:
    """What one forward pass shows.

    Attributes:
        variances: of each call of batch normalisation, in order: its input's variance over the
            minibatch and all positions, averaged over channels.
    """

    variances: list[float] = field(default_factory=list)
    _pooled: Tensor | None = None
    _classified: Tensor | None = None

    def see(self, part: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Take down what a submodule is about to receive; a forward pre-hook."""
        if isinstance(part, _BATCH_NORM):
            channels = inputs[0].detach().double().transpose(0, 1).flatten(1)
            self.variances.append(float(channels.var(dim=1, correction=0).mean()))
        elif isinstance(part, _CONVOLUTIONS):
            self._pooled = None  # what was pooled was a gate's, as in squeeze-and-excite
        elif isinstance(part, nn.Linear):
            self._classified = inputs[0]
        else:
            self._pooled = inputs[0]

    def features(self, output: Tensor) -> Tensor:
        """Return the features that the network's classifier works on.

        They are the input of global average pooling where that came after the last convolution;
        else that of the last linear layer; else the network's output.
        """
        for found in (self._pooled, self._classified):
            if found is not None:
                return found
        return output


@contextmanager
def watched(module: nn.Module) -> Iterator[Watch]:
    """Watch the forward passes inside the context, through hooks that are removed on leaving."""
    watch = Watch()
    handles = [
        part.register_forward_pre_hook(watch.see)
        for part in module.modules()
        if isinstance(part, (_BATCH_NORM, _CONVOLUTIONS, nn.Linear)) or _pools_globally(part)
    ]
    try:
        yield watch
    finally:
        for handle in handles:
            handle.remove()


def _pools_globally(part: nn.Module) -> bool:
    if not isinstance(part, _POOLS):
        return False
    size = part.output_size
    return all(edge == 1 for edge in (size if isinstance(size, tuple) else (size,)))
