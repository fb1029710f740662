"""Scoring many networks by every proxy, on several processes."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import active_children, get_context
from typing import TYPE_CHECKING, Any

from tadnn.errors import RequestError, WorkFailed
from tadnn.progress import SILENT, Progress
from tadnn.search.judges import arch_seed
from tadnn.spaces import Space, load_space, union

if TYPE_CHECKING:
    from tadnn.accuracy import Dataset, Proxy
    from tadnn.nets import Net

#: What stands for a value that a network has not: the last of all.
NONE = -math.inf

# A process takes seconds to start: so many networks each are worth it.
_WORTH = 8


@dataclass(frozen=True)
class Task:
    """What is scored, and how.

    Attributes:
        spaces: names or files, joined where there are several.
        overrides: narrow the space.
        input_shape: of the networks.
        classes: outputs.
        dataset: whose images proxies look at; None: noise.
        seed: of weights, images and order.
        batch_size: images that a proxy's minibatch has at most, but for those that need more to
            say anything; None: as many as in studies.
        epochs: of a short training that tells each network's accuracy; None: none.
    """

    spaces: tuple[str, ...]
    overrides: Mapping[str, Any]
    input_shape: tuple[int, ...]
    classes: int | None
    dataset: str | None = None
    seed: int = 0
    batch_size: int | None = None
    epochs: float | None = None

    def space(self) -> Space:
        """Return the space."""
        return union([load_space(name) for name in self.spaces]).narrow(self.overrides)


@dataclass(frozen=True)
class Scored:
    """What one network got.

    Attributes:
        values: by proxy; `NONE` where the network has none.
        seconds: by proxy.
        unfit: proxies that cannot look at such a network, and why.
        accuracy: on the validation split after the task's training; None without, and where
            that failed, such as by a loss that grew beyond all bounds.
    """

    values: Mapping[str, float]
    seconds: Mapping[str, float]
    unfit: Mapping[str, str] = field(default_factory=dict)
    accuracy: float | None = None

    def to_record(self) -> dict[str, Any]:
        """Return the network's results as strict JSON; `NONE` becomes null."""
        values = {name: None if v == NONE else v for name, v in self.values.items()}
        return {**asdict(self), "values": values}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Scored:
        """Return what `to_record` was made of."""
        values = {name: NONE if v is None else v for name, v in record["values"].items()}
        return cls(**{**record, "values": values})


class Scorer:
    """Scores one network after the other."""

    def __init__(self, task: Task) -> None:
        from tadnn.accuracy import PROXIES, load_dataset

        self._task, self._space = task, task.space()
        self._proxies = {name: _sized(proxy, task.batch_size) for name, proxy in PROXIES.items()}
        self._dataset: Dataset | None = None
        if task.dataset is not None:
            self._dataset = load_dataset(task.dataset, task.input_shape)

    def score(self, arch: Mapping[str, Any]) -> Scored:
        """Score one architecture by every proxy, and train it where the task says so.

        Raises:
            RequestError: it cannot be built.
        """
        from tadnn.accuracy import checked_score, noise_for, shared_passes

        task, space = self._task, self._space
        net = space.build(arch, task.input_shape, task.classes)
        seed = arch_seed(task.seed, space.key(arch))
        dataset = self._dataset if self._dataset is not None else noise_for(net, task.seed)
        values: dict[str, float] = {}
        seconds: dict[str, float] = {}
        unfit: dict[str, str] = {}
        module = net.to_module(seed)
        with shared_passes() as passes:
            for name, proxy in self._proxies.items():
                begin = time.perf_counter() + passes.saved_s  # each is told what it costs alone
                try:
                    value = checked_score(proxy, net, module, dataset, task.seed)
                except WorkFailed:
                    value = NONE
                except RequestError as error:
                    unfit[name] = str(error)
                    continue
                values[name] = value
                seconds[name] = time.perf_counter() + passes.saved_s - begin
        return Scored(values, seconds, unfit, self._trained(net, seed))

    def _trained(self, net: Net, seed: int) -> float | None:
        if self._task.epochs is None or self._dataset is None:
            return None
        from tadnn.accuracy import train

        try:
            module, epochs = net.to_module(seed), self._task.epochs
            done = train(module, self._dataset, epochs=epochs, seed=seed, split="validation")
        except WorkFailed:
            return None
        return float(done.validation_accuracy)


def score_all(
    task: Task,
    archs: Sequence[Mapping[str, Any]],
    workers: int = 1,
    progress: Progress = SILENT,
    on_result: Callable[[int, Scored], None] = lambda at, done: None,
) -> list[Scored]:
    """Score architectures in parallel; the values do not depend on the number of workers.

    Args:
        task: what is scored.
        archs: the architectures.
        workers: processes of one thread each; with 1 the work is done here.
        progress: told of every network.
        on_result: called with the position and the results of every network, in order.

    Raises:
        TadnnError: a network cannot be built, or a process died.
    """
    label = "scoring" if task.epochs is None else "scoring and training"
    with progress.task(label, len(archs)) as advance, _mapped(task, archs, workers) as results:
        done = []
        for at, result in enumerate(results):
            on_result(at, result)
            done.append(result)
            advance(1)
    return done


@contextmanager
def _mapped(
    task: Task, archs: Sequence[Mapping[str, Any]], workers: int
) -> Iterator[Iterator[Scored]]:
    workers = min(workers, len(archs) // _WORTH)
    if workers <= 1:
        with _one_thread():
            scorer = Scorer(task)
            yield (scorer.score(arch) for arch in archs)
        return
    others = set(active_children())
    # Not forked: torch's threads would not survive it.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _begin, (task,))
    try:
        yield pool.map(_score, map(dict, archs))
    except KeyboardInterrupt:
        # Nobody waits for trainings to end; what was finished is with the caller.
        for child in set(active_children()) - others:
            child.terminate()
        raise
    except BrokenProcessPool as error:
        raise WorkFailed(f"a process that scores networks died, for want of memory? {error}") from (
            error
        )
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread, as workers do: with another number sums are rounded otherwise."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_scorer: Scorer | None = None


def _begin(task: Task) -> None:
    global _scorer
    import torch

    # Ctrl-C is the parent's, which ends us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    _scorer = Scorer(task)


def _score(arch: Mapping[str, Any]) -> Scored:
    assert _scorer is not None
    return _scorer.score(arch)


def _sized(proxy: Proxy, batch_size: int | None) -> Proxy:
    """Return the proxy with smaller minibatches, and as few draws as it can do with."""
    own = getattr(proxy, "batch_size", None)
    if own is None or batch_size is None:
        return proxy
    fewer: dict[str, int] = {"batch_size": min(own, max(batch_size, proxy.least_batch))}
    if hasattr(proxy, "draws"):
        fewer["draws"] = 1
    return replace(proxy, **fewer)  # type: ignore[type-var]
