"""Size as a proxy: the baseline that a cleverer proxy has to beat."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from tadnn.accuracy.proxies.base import Proxy, required
from tadnn.nets import Embedding, Linear, PositionEmbedding

if TYPE_CHECKING:
    from torch import nn

    from tadnn.accuracy.dataset import Dataset
    from tadnn.nets import Net


@final
class Parameters(Proxy):
    """The number of parameters: bigger networks tend to be better ones."""

    name = "parameters"
    description = "number of parameters"
    needs = frozenset({"net"})

    def score(
        self, net: Net | None, module: nn.Module | None, dataset: Dataset | None, seed: int
    ) -> float:
        """Return the number of parameters."""
        return float(required(self, "net", net).parameters)


@final
class DecoderParameters(Proxy):
    """The number of parameters between a language model's embedding and its output layer.

    Among decoders with one vocabulary it ranks perplexities nearly as training does; the
    embedding's parameters, of which small models mostly consist, only blur it.

    Source: Javaheripi et al., "LiteTransformerSearch: Training-free Neural Architecture Search
    for Efficient Language Models", NeurIPS 2022, section 3.
    """

    name = "decoder_parameters"
    description = "parameters without embeddings and output layer"
    needs = frozenset({"net"})

    def score(
        self, net: Net | None, module: nn.Module | None, dataset: Dataset | None, seed: int
    ) -> float:
        """Return the parameters of all layers but embeddings and what gives a token's scores."""
        placed = list(required(self, "net", net).layers())
        vocabularies = {p.layer.count for p in placed if isinstance(p.layer, Embedding)}
        counted = [
            p
            for p in placed
            if not isinstance(p.layer, Embedding | PositionEmbedding)
            and not (isinstance(p.layer, Linear) and p.output[-1] in vocabularies)
        ]
        return float(sum(p.layer.parameters(*p.inputs) for p in counted))


@final
class Flops(Proxy):
    """The FLOPs of one image (2 per multiply-add)."""

    name = "flops"
    description = "floating-point operations per image"
    needs = frozenset({"net"})

    def score(
        self, net: Net | None, module: nn.Module | None, dataset: Dataset | None, seed: int
    ) -> float:
        """Return the FLOPs of a batch of one."""
        return float(required(self, "net", net).flops(batch=1))
