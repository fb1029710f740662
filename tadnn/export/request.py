"""What an export is made of: the network, its weights, and what is known about it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tadnn.errors import RequestError
from tadnn.export.facts import CardFacts
from tadnn.files import stable_hash

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tadnn.nets import Net


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
