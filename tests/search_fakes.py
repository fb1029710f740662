"""A search that costs nothing: small spaces of real networks, formulas for what is measured."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from tadnn.errors import DataError
from tadnn.nets import Conv2d, Flatten, GlobalAvgPool, Linear, NetBuilder, ReLU, block
from tadnn.search import Evaluator
from tadnn.search.load import parse_spec
from tadnn.spaces import Categorical, Int, Space


@block
def conv(b, width, kernel):
    b.add(Conv2d(width, kernel), b.input, name="conv")
    b.add(ReLU(), name="relu")


@block
def head(b, classes):
    b.add(GlobalAvgPool(), b.input, name="pool")
    b.add(Flatten(), name="flatten")
    b.add(Linear(classes), name="classifier")


def build(arch, input_shape, classes):
    net = NetBuilder(input_shape)
    for i in range(1, arch.get("depth", 3) + 1):
        net.add(f"conv{i}", conv(arch[f"width{i}"], arch.get("kernel", 3)))
    net.add("head", head(classes))
    return net.build()


def small_space():
    """4 x 4 x 4 = 64 architectures."""
    return Space(
        "small",
        {f"width{i}": Int(2, 8, step=2) for i in (1, 2, 3)},
        build,
        default_input=(1, 8, 8),
        default_classes=10,
    )


def deep_space():
    """2 x (6 + 36 + 216) = 516 architectures, some of whose choices have no effect."""
    choices = {"kernel": Categorical(1, 3), "depth": Int(1, 3)}
    for i in (1, 2, 3):
        choices[f"width{i}"] = Int(2, 12, step=2, when={"depth": tuple(range(i, 4))})
    return Space("deep", choices, build, default_input=(1, 8, 8), default_classes=10)


SPACES = {"small": small_space, "deep": deep_space}


@dataclass(frozen=True)
class Prediction:
    latency_ms: float
    std_ms: float = 0.01
    in_range: bool = True
    unprofiled_share: float = 0.0


class FormulaPredictor:
    """A staircase over the parameters."""

    def predict_net(self, net, batch=1):
        return Prediction(0.1 + 0.05 * -(-net.parameters // 64))


class FormulaJudge:
    """Grows with depth and width, ripples with the architecture; may take its time."""

    def __init__(self, pause_s=0.0, faults=None):
        self.pause_s, self.faults = pause_s, faults or {}
        self.seen = []

    def prepare(self):
        pass

    def judge(self, net, key):
        time.sleep(self.pause_s)
        self.seen.append(key)
        fault = self.faults.get(len(self.seen))
        if isinstance(fault, BaseException):
            raise fault
        value = net.parameters**0.5 + int(key[:4], 16) / 2**16
        return {"name": "formula", "value": value if fault is None else fault}, None


class FakeTime:
    """A clock that only trainings move; stands in for ``tadnn.search.runner.monotonic``."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class FormulaTraining:
    """What the proxy says, less what few epochs cost; may take its time, per epoch."""

    def __init__(self, epochs, pause_s=0.0, faults=None, clock=None):
        self.epochs, self.pause_s, self.faults = epochs, pause_s, faults or {}
        self.seen, self.clock = [], clock

    def prepare(self):
        pass

    def judge(self, net, key):
        if self.clock is None:
            time.sleep(self.pause_s * self.epochs)
        else:
            self.clock.now += self.pause_s * self.epochs
        self.seen.append(key)
        log = os.environ.get("TADNN_TEST_LOG")
        if log is not None:
            with open(log, "a") as file:
                file.write(f"{key} {self.epochs}\n")
        fault = self.faults.get(len(self.seen))
        if fault is not None:
            raise fault
        accuracy = 1 - 1 / (1 + net.parameters**0.5 / 10) - 0.1 / self.epochs
        return None, {"accuracy": accuracy, "epochs": self.epochs, "split": "validation"}


def make_spec(folder, **changes):
    record = {
        "name": "study",
        "space": "resnet",
        "dataset": "digits",
        "latency_model": "auto",
        "objectives": ["latency", "accuracy"],
        "accuracy": {"proxy": "naswot"},
        "sampler": "random",
        "trials": 20,
        **changes,
    }
    record = {key: value for key, value in record.items() if value is not None}
    return parse_spec(record).at(folder / "study.yaml")


def make_evaluator(spec, space="deep", pause_s=0.0, faults=None, later_faults=None, clock=None):
    pause_of_proxy_s = pause_s if clock is None else 0.0
    judge = FormulaJudge(pause_of_proxy_s, faults) if "accuracy" in spec.objectives else None
    stages = [stage.train for stage in spec.stages or () if stage.train]
    if spec.accuracy is not None and spec.accuracy.train is not None:
        judge = FormulaTraining(spec.accuracy.train.epochs, pause_s, faults, clock)
    later = [FormulaTraining(train.epochs, pause_s, later_faults, clock) for train in stages]
    return Evaluator(spec, SPACES[space](), FormulaPredictor(), judge, later=later)


def worker_evaluator(spec, latency_model):
    """What a worker process calls; see `tadnn.search.workers.Job.setup`."""
    pause = float(os.environ.get("TADNN_TEST_PAUSE", "0.005"))
    return make_evaluator(spec, os.environ.get("TADNN_TEST_SPACE", "deep"), pause)


FACTS = {
    "name": "formula",
    "hash": "0123456789abcdef",
    "device": "cpu-test",
    "setting": {"runtime": "torch-eager", "dtype": "fp32", "threads": 1},
}


def failing_evaluator(spec, latency_model):
    raise DataError("no such disc")
