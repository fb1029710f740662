"""Who tells a network's accuracy: a zero-cost proxy, or short training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from tadnn.files import stable_hash
from tadnn.nets import Net

if TYPE_CHECKING:
    from tadnn.accuracy import Dataset


#: A trial's ``proxy`` and ``trained`` records; exactly one is not None.
Judgement = tuple[dict[str, Any] | None, dict[str, Any] | None]


class Judge(Protocol):
    """Tells a network's accuracy, or a stand-in for it; larger is better."""

    def prepare(self) -> None:
        """Load what is needed, so that what is missing shows before the first trial."""

    def judge(self, net: Net, key: str) -> Judgement:
        """Return the trial's ``proxy`` and ``trained`` records; exactly one is not None."""


class ProxyJudge:
    """A zero-cost proxy of `tadnn.accuracy`; without a data set it looks at noise."""

    def __init__(
        self, name: str, dataset: str | None, input_shape: tuple[int, ...] | None, seed: int
    ):
        self._name, self._dataset_name, self._input_shape = name, dataset, input_shape
        self._seed = seed
        self._dataset: Dataset | None = None

    def prepare(self) -> None:
        """Load the data set where the proxy looks at images."""
        from tadnn.accuracy import find_proxy, load_dataset

        self._needs = find_proxy(self._name).needs
        if "dataset" in self._needs and self._dataset_name is not None:
            self._dataset = load_dataset(self._dataset_name, self._input_shape)

    def judge(self, net: Net, key: str) -> tuple[dict[str, Any], None]:
        """Score one network; its weights are seeded by study and architecture."""
        from tadnn.accuracy import evaluate_proxy, noise_for

        module = net.to_module(arch_seed(self._seed, key)) if "module" in self._needs else None
        # One seed for all: it chooses the images, and values on other images do not compare.
        dataset = self._dataset
        if dataset is None and "dataset" in self._needs:
            dataset = noise_for(net, self._seed)
        value = evaluate_proxy(self._name, net, module, dataset, self._seed)
        return {"name": self._name, "value": float(value)}, None


class TrainingJudge:
    """Short training of `tadnn.accuracy`; ranks by the validation split, never the test split."""

    def __init__(self, epochs: float, dataset: str, input_shape: tuple[int, ...] | None, seed: int):
        self._epochs, self._dataset_name, self._input_shape = epochs, dataset, input_shape
        self._seed = seed

    def prepare(self) -> None:
        """Load the data set."""
        from tadnn.accuracy import load_dataset

        self._dataset = load_dataset(self._dataset_name, self._input_shape)

    def judge(self, net: Net, key: str) -> tuple[None, dict[str, Any]]:
        """Train one network from scratch."""
        from tadnn.accuracy import train

        seed = arch_seed(self._seed, key)
        module = net.to_module(seed)
        done = train(module, self._dataset, epochs=self._epochs, seed=seed, split="validation")
        return None, {
            "accuracy": float(done.validation_accuracy),
            "epochs": done.epochs,
            "split": done.split,
        }


def arch_seed(seed: int, key: str) -> int:
    """Return the seed of an architecture's weights: it depends on study seed and key alone."""
    return int(stable_hash([seed, key]), 16) % 2**31
