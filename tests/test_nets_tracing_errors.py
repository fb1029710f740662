"""Modules that no network can be read from: what is said of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tadnn.errors import RequestError, TraceError
from tadnn.nets import trace


class Of(nn.Module):
    """A forward from a function."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.run = forward
        self.part = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


class Two(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


def decides(m: Of, x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x
    return m.part(x)  # type: ignore[no-any-return]


def counts(m: Of, x: Tensor) -> Tensor:
    return x * int(x.abs().max().item())


def batches_mix(m: Of, x: Tensor) -> Tensor:
    return x - x.mean(0)


def differs(m: Of, x: Tensor) -> Tensor:
    return x.relu() if len(x) > 2 else x


FAILING = {
    "decides": (decides, "decides by its data.*line.*|decides by its data"),
    "counts": (counts, "decides by its data"),
    "numpy": (lambda m, x: torch.from_numpy(x.numpy()), "torch.export cannot follow Of"),
    "complex": (lambda m, x: torch.fft.fft(x).real, "gives complex numbers at .*test_nets_tracing"),
    "random": (lambda m, x: x + torch.randn(4), "randn draws random numbers .*test_nets_tracing"),
    "drops": (lambda m, x: nn.functional.dropout(x), "dropout.default draws random numbers"),
    "mixes": (batches_mix, "aten.mean.dim mixes them at .*test_nets_tracing_errors.py"),
    "differs": (differs, "differs between batches of 2 and 3"),
    "two_outputs": (lambda m, x: (x, m.part(x)), "gives one tensor; Of gives 2"),
    "constant": (lambda m, x: m.part.weight + 0, "doesn't depend on the input"),
    "fails": (lambda m, x: x @ torch.zeros(7, 7), "torch.export cannot follow Of with an input of"),
    "raises": (lambda m, x: {}[0], "KeyError"),
    "turned": (lambda m, x: x.t(), "first dimension is the batch"),
}


@pytest.mark.parametrize("name", FAILING)
def test_refused(name: str) -> None:
    forward, message = FAILING[name]
    module = Of(forward).train()
    with pytest.raises(TraceError, match=message) as caught:
        trace(module, (4,))
    assert caught.value.exit_code == 2
    assert module.training, "left as it was"


@pytest.mark.parametrize("name", ["decides", "counts"])
def test_the_line_and_what_to_do_are_named(name: str) -> None:
    with pytest.raises(TraceError) as caught:
        trace(Of(FAILING[name][0]), (4,))
    text = str(caught.value)
    assert "test_nets_tracing_errors.py:" in text
    assert {"decides": "if x.sum() > 0:", "counts": "int(x.abs().max().item())"}[name] in text
    assert "make the branch static" in text


def test_several_inputs() -> None:
    with pytest.raises(TraceError, match=r"takes one tensor; Two takes several.*Wrap it"):
        trace(Two(), (4,))


def test_token_ids_as_floats() -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.table = nn.Linear(4, 4), nn.Embedding(9, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.table(x))  # type: ignore[no-any-return]

    with pytest.raises(TraceError, match=r"looks token ids up.*dtype=torch.int64"):
        trace(Late(), (5,))
    assert trace(Late(), (5,), dtype=torch.int64).net.input_dtype == "int64"


def test_whole_numbers_that_nothing_looks_up() -> None:
    with pytest.raises(TraceError, match="an embedding looks them up; Of computes with them"):
        trace(Of(lambda m, x: x + 1), (4,), dtype=torch.int64)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.bool, torch.uint8])
def test_inputs_of_other_dtypes(dtype: torch.dtype) -> None:
    with pytest.raises(TraceError, match=r"real|inputs are float"):
        trace(Of(lambda m, x: m.part(x)), (4,), dtype=dtype)


def test_complex_weights() -> None:
    module = Of(lambda m, x: x)
    module.w = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    with pytest.raises(TraceError, match="complex"):
        trace(module, (4,))


@pytest.mark.parametrize("shape", [(), (0, 3), (4.0,), (-1,)])
def test_shapes(shape: Any) -> None:
    with pytest.raises(RequestError, match="an input shape has positive whole sizes"):
        trace(nn.ReLU(), shape)


def test_an_example_of_another_shape() -> None:
    with pytest.raises(RequestError, match=r"an example is a batch of \[4\]; got \[2, 5\]"):
        trace(nn.ReLU(), (4,), example=torch.zeros(2, 5))
