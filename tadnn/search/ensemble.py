"""An ensemble of proxies in a study: one network at a time, ranked among a fixed sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tadnn.errors import TadnnError, WorkFailed
from tadnn.search.judges import Judge, ProxyJudge
from tadnn.search.proxy_choice import chosen_proxy
from tadnn.search.proxy_scores import NONE
from tadnn.search.spec import StudySpec

if TYPE_CHECKING:
    from tadnn.nets import Net
    from tadnn.spaces import Space

#: Networks that a study's are ranked among.
REFERENCE = 64


class EnsembleJudge:
    """Ranks a network among a sample of its space that the study's seed draws.

    A score thus depends on the network and the study's seed alone, not on the trials before it.
    Networks beyond the best of the sample in every proxy are equal.

    Args:
        name: of the ensemble.
        space: the study's space.
        input_shape: of the study's networks.
        classes: outputs.
        dataset: whose images proxies look at; None: noise.
        seed: the study's.
    """

    def __init__(
        self,
        name: str,
        space: Space,
        input_shape: tuple[int, ...],
        classes: int | None,
        dataset: str | None,
        seed: int,
    ) -> None:
        from tadnn.accuracy import ENSEMBLES

        self._name, self._space, self._seed = name, space, seed
        self._input_shape, self._classes = input_shape, classes
        self._judges = {
            part: ProxyJudge(part, dataset, input_shape, seed) for part in ENSEMBLES[name]
        }

    def prepare(self) -> None:
        """Score the sample.

        Raises:
            RequestError: a proxy cannot look at such networks.
            WorkFailed: no network of the sample can be built.
        """
        for judge in self._judges.values():
            judge.prepare()
        nets = []
        for arch in self._space.sample(REFERENCE, self._seed):
            try:
                net = self._space.build(arch, self._input_shape, self._classes)
            except TadnnError:
                continue  # the search passes over it, too
            nets.append((net, self._space.key(arch)))
        if not nets:
            raise WorkFailed(f"{self._name} ranks among a sample of the space; none can be built")
        self._reference = {
            part: [self._value(part, net, key) for net, key in nets] for part in self._judges
        }

    def judge(self, net: Net, key: str) -> tuple[dict[str, Any], None]:
        """Score one network: the sum over proxies of ``ln(rank / n)``."""
        from tadnn.accuracy import rank_among

        score = sum(
            rank_among(self._value(part, net, key), self._reference[part]) for part in self._judges
        )
        return {"name": self._name, "value": score}, None

    def _value(self, part: str, net: Net, key: str) -> float:
        try:
            return float(self._judges[part].judge(net, key)[0]["value"])
        except WorkFailed:
            return NONE


def proxy_judge(
    spec: StudySpec, space: Space, input_shape: tuple[int, ...], classes: int | None
) -> Judge:
    """Return the judge by the proxy, or the ensemble, of a study's accuracy.

    Args:
        spec: the study; what ``auto`` stands for is known by now.
        space: its space, narrowed.
        input_shape: of its networks.
        classes: their outputs.
    """
    from tadnn.accuracy import ENSEMBLES

    name = chosen_proxy(spec)
    if name in ENSEMBLES:
        return EnsembleJudge(name, space, input_shape, classes, spec.dataset, spec.seed)
    return ProxyJudge(name, spec.dataset, spec.input_shape, spec.seed)
