from __future__ import annotations

import dataclasses
import json
import math
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from tadnn.accuracy import Dataset, Split, evaluate, load_dataset, train, training
from tadnn.accuracy.augment import augmented
from tadnn.accuracy.modules import channels_last
from tadnn.accuracy.steps import Steps, parameter_groups, schedule
from tadnn.errors import RequestError, WorkFailed
from tadnn.progress import Progress


def small_cnn(classes: int = 10, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.1),
            nn.Linear(128, classes),
        )


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits")


@pytest.fixture(scope="module")
def few(digits: Dataset) -> Dataset:
    splits = {
        name: Split(split.images[:128], split.labels[:128]) for name, split in digits.splits.items()
    }
    return dataclasses.replace(digits, splits=splits)


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return all(torch.equal(a[name], b[name]) for name in a)


def test_it_learns(digits):
    module = small_cnn()
    result = train(module, digits, epochs=4, seed=0)
    assert result.accuracy > 0.8
    assert result.split == "test"
    assert evaluate(module, digits.splits["test"])[0] == result.accuracy
    assert evaluate(module, digits.splits["validation"])[0] == result.validation_accuracy
    assert result.validation_accuracy == max(e["validation_accuracy"] for e in result.history)
    assert not any(part.training for part in module.modules())


def test_the_history_has_one_json_able_entry_per_epoch(few):
    result = train(small_cnn(), few, epochs=3, seed=0)
    assert json.loads(json.dumps(result.history)) == list(result.history)
    assert [entry["epoch"] for entry in result.history] == [1, 2, 3]
    assert result.epochs == 3
    assert set(result.history[0]) == {
        "epoch",
        "loss",
        "validation_loss",
        "validation_accuracy",
        "learning_rate",
    }
    assert result.history[-1]["learning_rate"] < result.history[0]["learning_rate"]


def test_two_runs_are_equal_bit_for_bit(few):
    modules = [small_cnn() for _ in range(3)]
    results = [
        train(module, few, epochs=2, seed=seed)
        for module, seed in zip(modules, (5, 5, 6), strict=True)
    ]
    assert results[0] == results[1]
    assert same_weights(modules[0], modules[1])
    assert not same_weights(modules[0], modules[2])


def test_global_random_state_is_neither_used_nor_moved(few):
    before = torch.get_rng_state()
    first = train(small_cnn(), few, epochs=1, seed=0)
    assert torch.equal(torch.get_rng_state(), before)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99)
        assert train(small_cnn(), few, epochs=1, seed=0) == first


def test_the_test_split_has_no_say(few):
    wrong = Split(-few.splits["test"].images, few.splits["test"].labels.roll(1))
    other = dataclasses.replace(few, splits={**few.splits, "test": wrong})
    modules = small_cnn(), small_cnn()
    results = [train(m, d, epochs=2, seed=0) for m, d in zip(modules, (few, other), strict=True)]
    assert same_weights(*modules)
    assert results[0].history == results[1].history
    assert results[0].accuracy != results[1].accuracy


class Record(Progress):
    def __init__(self) -> None:
        self.total, self.done, self.notes = None, 0, []

    @contextmanager
    def task(self, label, total):
        self.total = total

        def advance(steps):
            self.done += steps

        yield advance

    def note(self, text):
        self.notes.append(text)


def test_patience_ends_a_hopeless_training(few):
    record = Record()
    # Nothing moves at this rate, so nothing gets better after the first epoch.
    module = small_cnn()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.momentum = 0.0
    result = train(module, few, epochs=9, seed=0, learning_rate=1e-12, patience=2, progress=record)
    assert result.epochs == len(result.history) == 3
    assert record.total == record.done == 9
    assert "after epoch 3" in record.notes[0]


def test_the_best_weights_are_kept_not_the_last(few, monkeypatch):
    # Accuracy decides, then loss: epoch 3 beats epoch 2, and 4 is worse again.
    script = [(0.2, 1.0), (0.9, 2.0), (0.9, 1.5), (0.9, 1.6), (0.5, 0.1)]
    seen = []

    def scripted(module, split):
        seen.append({name: value.clone() for name, value in module.state_dict().items()})
        return script[len(seen) - 1] if len(seen) <= len(script) else (0.7, 1.0)

    monkeypatch.setattr(training, "evaluate", scripted)
    module = small_cnn()
    result = train(module, few, epochs=5, seed=0)
    assert result.best_epoch == 3
    assert result.validation_accuracy == 0.9
    assert result.accuracy == 0.7
    assert len(seen) == 6
    for name, value in module.state_dict().items():
        assert torch.equal(value, seen[2][name])
    assert not torch.equal(module[0].weight, seen[4]["0.weight"])


def test_a_validation_loss_that_explodes_names_the_epoch(few, monkeypatch):
    monkeypatch.setattr(training, "evaluate", lambda module, split: (0.1, math.nan))
    with pytest.raises(WorkFailed, match="validation loss must stay finite; it became nan in epo"):
        train(small_cnn(), few, epochs=1, seed=0)


def test_a_loss_that_explodes_names_the_epoch(few):
    with pytest.raises(WorkFailed, match=r"loss must stay finite; it became \S+ in epoch 1"):
        train(small_cnn(), few, epochs=2, seed=0, learning_rate=1e30)


def test_weights_that_are_not_finite_are_named(few):
    module = small_cnn()
    with torch.no_grad():
        module[3].weight[0] = math.nan
    with pytest.raises(WorkFailed, match=r"'3\.weight' holds NaN"):
        train(module, few, epochs=1, seed=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epochs": math.inf}, "epochs is a whole number"),
        ({"epochs": 1.5}, "epochs is a whole number"),
        ({"epochs": 0}, "epochs is a whole number, at least 1, or a share"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"patience": 0}, "patience must be at least 1"),
        ({"learning_rate": -0.1}, "learning_rate must be positive"),
        ({"learning_rate": math.nan}, "learning_rate must be positive"),
    ],
)
def test_arguments_that_make_no_sense(few, arguments, message):
    with pytest.raises(RequestError, match=message):
        train(small_cnn(), few, **{"epochs": 1, "seed": 0, **arguments})


def test_the_number_of_classes_must_fit(few):
    with pytest.raises(RequestError, match="10 classes; the network gives 7"):
        train(small_cnn(classes=7), few, epochs=1, seed=0)


def test_nothing_to_train(few):
    module = small_cnn().requires_grad_(False)
    with pytest.raises(RequestError, match="parameters to train"):
        train(module, few, epochs=1, seed=0)


def test_a_module_for_other_images(few):
    module = nn.Sequential(nn.Flatten(), nn.Linear(100, 10))
    with pytest.raises(WorkFailed, match=r"training failed on a batch of shape \[64, 1, 8, 8\]"):
        train(module, few, epochs=1, seed=0)


def test_evaluation_by_hand():
    # Logits are the image's two pixels; the second of three images is wrong.
    images = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 1.0]]).reshape(3, 1, 1, 2)
    module = nn.Flatten().train()
    accuracy, loss = evaluate(module, Split(images, torch.tensor([0, 1, 1])), batch_size=2)
    assert accuracy == pytest.approx(2 / 3)
    losses = [math.log(1 + math.exp(-2)), math.log(1 + math.exp(2)), math.log(1 + math.exp(-1))]
    assert loss == pytest.approx(sum(losses) / 3)
    assert module.training


def test_weight_decay_spares_biases_and_normalisation():
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(2, 2))
    decayed, spared = parameter_groups(module)
    assert decayed["weight_decay"] > 0
    assert spared["weight_decay"] == 0
    assert [id(p) for p in decayed["params"]] == [id(module[0].weight), id(module[2].weight)]
    assert len(spared["params"]) == 4


def test_three_steps_by_hand():
    # Images of 4x4 are too small to be shifted and a batch holds all: nothing is random.
    dataset = load_dataset("digits", (1, 4, 4))
    split = Split(dataset.splits["train"].images[:50], dataset.splits["train"].labels[:50])
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 10))
    weight, bias = (p.detach().clone().requires_grad_() for p in module.parameters())
    steps = Steps(module, dataset, split, epochs=3, seed=0, batch_size=64, learning_rate=0.2)
    losses = [steps.run_epoch(epoch) for epoch in (1, 2, 3)]

    velocity = [torch.zeros_like(weight), torch.zeros_like(bias)]
    for rate, loss in zip((0.2, 0.2, 0.1), losses, strict=True):
        logs = torch.log_softmax(split.images.flatten(1) @ weight.T + bias, dim=1)
        # A twentieth of every label is spread over the ten classes.
        targets = 0.95 * torch.eye(10)[split.labels] + 0.005
        expected = -(targets * logs).sum(1).mean()
        assert loss == pytest.approx(float(expected.detach()), rel=1e-5)
        gradients = torch.autograd.grad(expected, (weight, bias))
        with torch.no_grad():
            for i, (value, decay) in enumerate(((weight, 5e-4), (bias, 0.0))):
                slope = gradients[i] + decay * value
                velocity[i] = 0.9 * velocity[i] + slope
                value -= rate * (slope + 0.9 * velocity[i])
    torch.testing.assert_close(module[1].weight, weight, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(module[1].bias, bias, atol=1e-5, rtol=1e-4)


def test_every_epoch_has_an_order_of_its_own():
    dataset = load_dataset("digits", (1, 4, 4))
    train_split = dataset.splits["train"]
    known = {image.numpy().tobytes(): i for i, image in enumerate(train_split.images[:40])}
    split = Split(train_split.images[:40], train_split.labels[:40])

    def orders(seed: int) -> list[list[int]]:
        seen: list[int] = []
        module = nn.Sequential(nn.Flatten(), nn.Linear(16, 10))
        module.register_forward_pre_hook(
            lambda _, inputs: seen.extend(known[i.numpy().tobytes()] for i in inputs[0])
        )
        steps = Steps(module, dataset, split, epochs=2, seed=seed, batch_size=16, learning_rate=0.1)
        steps.run_epoch(1)
        steps.run_epoch(2)
        return [seen[:32], seen[32:]]

    first, second = orders(0)
    # Two batches of 16; the incomplete third is left out.
    assert len(set(first)) == len(set(second)) == 32
    assert first != second
    assert orders(0) == [first, second]
    assert orders(1)[0] != first


def test_the_learning_rate_rises_on_a_line_and_falls_on_a_cosine():
    rates = [schedule(step, 20) for step in range(20)]
    assert rates[:3] == [0.5, 1.0, 1.0]
    assert rates[11] == pytest.approx(0.5)
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert 0 < rates[-1] < 0.01
    assert schedule(0, 1) == 1.0


@pytest.mark.parametrize("mirrors", [False, True])
def test_augmented_images_are_shifts_and_mirror_images(mirrors):
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(40, 2, 10, 20, generator=generator)
    background = torch.tensor([-1.0, -2.0])[:, None, None]
    results = augmented(images, background, mirrors, torch.Generator().manual_seed(0))
    found = set()
    for image, result in zip(images, results, strict=True):
        for key, shifted in _shifts(image, background, mirrors).items():
            if torch.equal(shifted, result):
                found.add(key)
                break
        else:
            pytest.fail("a result that is no shift of its image")
    # A tenth of 10 x 20: up to one pixel vertically and two horizontally.
    assert {key[0] for key in found} == {-1, 0, 1}
    assert {key[1] for key in found} == {-2, -1, 0, 1, 2}
    assert {key[2] for key in found} == ({False, True} if mirrors else {False})


def _shifts(image, background, mirrors):
    channels, height, width = image.shape
    shifts = {}
    for down in (-1, 0, 1):
        for right in (-2, -1, 0, 1, 2):
            for mirrored in {False, mirrors}:
                result = background.expand(channels, height, width).clone()
                source = image.flip(2) if mirrored else image
                for y in range(height):
                    for x in range(width):
                        if 0 <= y - down < height and 0 <= x - right < width:
                            result[:, y, x] = source[:, y - down, x - right]
                shifts[down, right, mirrored] = result
    return shifts


def test_images_too_small_to_shift_stay_as_they_are():
    images = torch.rand(3, 1, 4, 4)
    background = torch.zeros(1, 1, 1)
    assert torch.equal(augmented(images, background, False, torch.Generator()), images)


def test_weights_lie_as_they_did_before(few):
    module = small_cnn()
    laid = {name: value.stride() for name, value in module.state_dict().items()}
    train(module, few, epochs=1, seed=0)
    assert {name: value.stride() for name, value in module.state_dict().items()} == laid
    broken = small_cnn(classes=7)
    with pytest.raises(RequestError):
        train(broken, few, epochs=1, seed=0)
    assert all(weight.is_contiguous() for weight in broken.parameters())


def test_other_layouts_and_ranks_stay(few):
    module = small_cnn().to(memory_format=torch.channels_last)
    module.register_parameter("volume", nn.Parameter(torch.zeros(1, 2, 3, 4, 5)))
    laid = {name: value.stride() for name, value in module.state_dict().items()}
    with channels_last(module):
        assert {name: value.stride() for name, value in module.state_dict().items()} == laid
    plain = small_cnn()
    with channels_last(plain):
        weights = [weight for weight in plain.parameters() if weight.dim() == 4]
        assert all(w.is_contiguous(memory_format=torch.channels_last) for w in weights)


def test_a_share_of_an_epoch_sees_so_much_of_the_images(few, monkeypatch):
    steps = []
    run = Steps._run_step
    monkeypatch.setattr(
        Steps, "_run_step", lambda self, at: (steps.append(len(at)), run(self, at))[1]
    )
    result = train(small_cnn(), few, epochs=0.5, seed=0, batch_size=16)
    assert steps == [16] * 4
    assert (result.epochs, len(result.history)) == (0.5, 1)
    steps.clear()
    assert train(small_cnn(), few, epochs=0.01, seed=0, batch_size=16).epochs == 0.01
    assert steps == [16], "one step at least"


def test_who_ranks_does_not_look_at_the_test_split(few):
    splits = {
        **few.splits,
        "test": Split(few.splits["test"].images * float("nan"), few.splits["test"].labels),
    }
    blind = dataclasses.replace(few, splits=splits)
    result = train(small_cnn(), blind, epochs=1, seed=0, split="validation")
    assert result.split == "validation"
    assert result.accuracy == result.validation_accuracy
    assert train(small_cnn(), few, epochs=1, seed=0).validation_accuracy == result.accuracy
