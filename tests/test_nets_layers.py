"""Every layer of the vocabulary, walked over a table of examples with counts by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tadnn.errors import ShapeError
from tadnn.kernels import DTYPE_BYTES, MAX_SIZE, Kernel
from tadnn.nets import (
    LAYERS,
    Add,
    BatchNorm2d,
    BlockBuilder,
    Conv2d,
    Flatten,
    GlobalAvgPool,
    Layer,
    Linear,
    MaxPool2d,
    Net,
    ReLU,
    Shape,
    block_facts,
    layers,
    to_onnx,
)


@dataclass(frozen=True)
class Example:
    """A layer with the shapes it takes, and what follows by hand (batch 2)."""

    layer: Layer
    inputs: tuple[Shape, ...]
    output: Shape
    multiply_adds: int = 0
    parameters: int = 0
    buffers: int = 0
    kernels: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Name the test."""
        return f"{self.layer}"


EXAMPLES = [
    Example(
        Conv2d(8, 3),
        ((2, 4, 6, 5),),
        (2, 8, 6, 5),
        multiply_adds=2 * 8 * 30 * 36,
        parameters=8 * 36,
        kernels=("conv2d(n=2,c=4,h=6,w=5,k=8,r=3,s=3,stride=1,pad=1,dilation=1,groups=1)",),
    ),
    Example(
        Conv2d(6, 7, stride=2, padding=3, bias=True),
        ((2, 3, 9, 9),),
        (2, 6, 5, 5),
        multiply_adds=2 * 6 * 25 * 147,
        parameters=6 * 147 + 6,
        kernels=(
            "conv2d(n=2,c=3,h=9,w=9,k=6,r=7,s=7,stride=2,pad=3,dilation=1,groups=1,epilogue=bias)",
        ),
    ),
    Example(  # depthwise
        Conv2d(6, 5, groups=6),
        ((2, 6, 7, 7),),
        (2, 6, 7, 7),
        multiply_adds=2 * 6 * 49 * 25,
        parameters=6 * 25,
        kernels=("conv2d(n=2,c=6,h=7,w=7,k=6,r=5,s=5,stride=1,pad=2,dilation=1,groups=6)",),
    ),
    Example(  # grouped and dilated: the window of 3 reaches over 7
        Conv2d(4, 3, dilation=3, groups=2),
        ((2, 8, 8, 8),),
        (2, 4, 8, 8),
        multiply_adds=2 * 4 * 64 * 36,
        parameters=4 * 36,
        kernels=("conv2d(n=2,c=8,h=8,w=8,k=4,r=3,s=3,stride=1,pad=3,dilation=3,groups=2)",),
    ),
    Example(  # an even window loses a row and a column
        Conv2d(2, 4),
        ((2, 3, 8, 8),),
        (2, 2, 7, 7),
        multiply_adds=2 * 2 * 49 * 48,
        parameters=2 * 48,
        kernels=("conv2d(n=2,c=3,h=8,w=8,k=2,r=4,s=4,stride=1,pad=1,dilation=1,groups=1)",),
    ),
    Example(  # projection shortcut
        Conv2d(16, 1, stride=2, padding=0),
        ((2, 8, 5, 5),),
        (2, 16, 3, 3),
        multiply_adds=2 * 16 * 9 * 8,
        parameters=128,
        kernels=("conv2d(n=2,c=8,h=5,w=5,k=16,r=1,s=1,stride=2,pad=0,dilation=1,groups=1)",),
    ),
    Example(
        BatchNorm2d(),
        ((2, 5, 4, 3),),
        (2, 5, 4, 3),
        parameters=10,
        buffers=11,
        kernels=("batch_norm(n=2,c=5,h=4,w=3)",),
    ),
    Example(ReLU(), ((2, 5, 4, 3),), (2, 5, 4, 3), kernels=("relu(rows=10,cols=12)",)),
    Example(ReLU(), ((2, 7),), (2, 7), kernels=("relu(rows=2,cols=7)",)),
    Example(Add(), ((2, 5, 4, 3),) * 2, (2, 5, 4, 3), kernels=("add(rows=10,cols=12)",)),
    Example(Add(), ((2, 3, 7),) * 2, (2, 3, 7), kernels=("add(rows=6,cols=7)",)),
    Example(
        MaxPool2d(3, stride=2, padding=1),
        ((2, 5, 8, 7),),
        (2, 5, 4, 4),
        kernels=("max_pool2d(n=2,c=5,h=8,w=7,r=3,s=3,stride=2,pad=1)",),
    ),
    Example(
        MaxPool2d(2, 2),
        ((2, 5, 7, 7),),
        (2, 5, 3, 3),
        kernels=("max_pool2d(n=2,c=5,h=7,w=7,r=2,s=2,stride=2,pad=0)",),
    ),
    Example(
        GlobalAvgPool(),
        ((2, 5, 8, 7),),
        (2, 5, 1, 1),
        kernels=("global_avg_pool(n=2,c=5,h=8,w=7)",),
    ),
    Example(Flatten(), ((2, 5, 4, 3),), (2, 60)),
    Example(
        Linear(10),
        ((2, 7),),
        (2, 10),
        multiply_adds=2 * 70,
        parameters=80,
        kernels=("linear(m=2,n=10,k=7,epilogue=bias)",),
    ),
    Example(  # over the last dimension
        Linear(4, bias=False),
        ((2, 6, 3),),
        (2, 6, 4),
        multiply_adds=2 * 6 * 12,
        parameters=12,
        kernels=("linear(m=12,n=4,k=3)",),
    ),
]

each = pytest.mark.parametrize("example", EXAMPLES, ids=str)


def alone(example: Example) -> Net:
    """A network of one layer; where it takes two inputs, the second is ReLU of the first."""
    builder = BlockBuilder()
    inputs = [builder.input]
    inputs += [builder.add(ReLU(), builder.input) for _ in example.inputs[1:]]
    builder.add(example.layer, *inputs, name="layer")
    return Net.checked(example.inputs[0][1:], (("only", builder.build("one")),))


def randomised(module: nn.Module) -> nn.Module:
    """Give every parameter and statistic a value that would be noticed."""
    generator = torch.Generator().manual_seed(0)
    for tensor in [*module.parameters(), *module.buffers()]:
        if tensor.is_floating_point():
            tensor.data = torch.rand(tensor.shape, generator=generator) + 0.5
    return module


def batch_for(net: Net, batch: int = 2, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((batch, *net.input_shape), generator=generator)


def from_source(net: Net) -> nn.Module:
    names: dict[str, Any] = {}
    exec(compile(net.to_source(), "<source>", "exec"), names)
    model = names["Model"]()
    assert isinstance(model, nn.Module)
    return model


def test_every_layer_has_an_example() -> None:
    assert {type(example.layer) for example in EXAMPLES} == set(LAYERS.values())


def test_layers_by_name() -> None:
    assert list(LAYERS) == sorted(LAYERS)
    assert all(name == layer.__name__ for name, layer in LAYERS.items())
    assert set(layers.__all__) == {
        "LAYERS",
        "Layer",
        "Shape",
        "TorchFunction",
        "TorchModule",
        *LAYERS,
    }


@each
class TestEveryLayer:
    def test_shape(self, example: Example) -> None:
        net = alone(example)
        assert example.layer.infer(*example.inputs) == example.output
        with torch.inference_mode():
            assert net.to_module(seed=0).eval()(batch_for(net)).shape == example.output

    def test_source(self, example: Example) -> None:
        net = alone(example)
        module, written = randomised(net.to_module()).eval(), from_source(net).eval()
        written.load_state_dict(module.state_dict())
        with torch.inference_mode():
            assert torch.equal(written(batch_for(net)), module(batch_for(net)))

    def test_flops(self, example: Example) -> None:
        flops = 2 * example.multiply_adds
        assert example.layer.flops(*example.inputs) == flops
        assert alone(example).flops(batch=2) == flops
        module = alone(example).to_module(seed=0).eval()
        with FlopCounterMode(display=False) as counter, torch.inference_mode():
            module(batch_for(alone(example)))
        assert counter.get_total_flops() == flops

    def test_parameters_and_buffers(self, example: Example) -> None:
        layer, module = example.layer, alone(example).to_module()
        assert layer.parameters(*example.inputs) == example.parameters
        assert layer.buffers(*example.inputs) == example.buffers
        assert sum(p.numel() for p in module.parameters()) == example.parameters
        assert sum(b.numel() for b in module.buffers()) == example.buffers

    def test_kernels(self, example: Example) -> None:
        for dtype in DTYPE_BYTES:
            kernels = example.layer.kernels(dtype, *example.inputs)
            for kernel, key in zip(kernels, example.kernels, strict=True):
                assert kernel == Kernel.parse(key.replace(")", f",dtype={dtype})"))
                assert Kernel.parse(kernel.key) == kernel
            assert sum(kernel.flops for kernel in kernels) == 2 * example.multiply_adds

    def test_kernels_write_what_the_layer_gives(self, example: Example) -> None:
        for kernel in example.layer.kernels("fp32", *example.inputs):
            moved = 4 * (
                sum(map(math.prod, example.inputs))
                + math.prod(example.output)
                + example.parameters
                + (2 * example.inputs[0][1] if isinstance(example.layer, BatchNorm2d) else 0)
            )
            # A bias is a rounding error beside the tensors, and isn't counted.
            bias = 4 * example.output[1] if "bias" in kernel.epilogue else 0
            assert kernel.bytes_moved == moved - bias

    def test_views_launch_nothing(self, example: Example) -> None:
        assert example.layer.is_view == (not example.kernels)
        if example.layer.is_view:
            x = batch_for(alone(example))
            assert alone(example).to_module()(x).data_ptr() == x.data_ptr()

    def test_json(self, example: Example) -> None:
        net = alone(example)
        assert Net.from_json(json.loads(json.dumps(net.to_json()))) == net

    def test_plain_frozen_values(self, example: Example) -> None:
        assert example.layer == type(example.layer)(
            **{f.name: getattr(example.layer, f.name) for f in fields(example.layer)}  # type: ignore[arg-type]
        )
        with pytest.raises(FrozenInstanceError):
            example.layer.out = 1  # type: ignore[attr-defined]

    def test_arity(self, example: Example) -> None:
        assert example.layer.arity == len(example.inputs)


class Together(nn.Module):
    """All examples in one module, since an export costs seconds: one input and one output row."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(randomised(alone(e).to_module()) for e in EXAMPLES)
        self.shapes = [e.inputs[0][1:] for e in EXAMPLES]

    def forward(self, x: Tensor) -> Tensor:
        taken = x.split([math.prod(shape) for shape in self.shapes], dim=1)
        return torch.cat(
            [
                part(piece.unflatten(1, shape)).flatten(1)
                for part, piece, shape in zip(self.parts, taken, self.shapes, strict=True)
            ],
            dim=1,
        )


@dataclass(frozen=True)
class Exported:
    outputs: dict[int, np.ndarray]
    expected: dict[int, np.ndarray]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    import onnxruntime

    module = Together().eval()
    width = sum(math.prod(shape) for shape in module.shapes)
    path: Path = tmp_path_factory.mktemp("onnx") / "together.onnx"
    to_onnx(module, (width,), path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    outputs, expected = {}, {}
    for batch in (1, 2, 5):
        x = torch.randn((batch, width), generator=torch.Generator().manual_seed(batch))
        (outputs[batch],) = session.run(["output"], {"input": x.numpy()})
        with torch.inference_mode():
            expected[batch] = module(x).numpy()
    return Exported(outputs, expected)


def slices() -> Iterator[tuple[Example, slice]]:
    start = 0
    for example in EXAMPLES:
        end = start + math.prod(example.output[1:])
        yield example, slice(start, end)
        start = end


@pytest.mark.parametrize(("example", "columns"), list(slices()), ids=str)
def test_onnx(exported: Exported, example: Example, columns: slice) -> None:
    for batch, output in exported.outputs.items():
        expected = exported.expected[batch]
        assert output.shape == expected.shape
        assert output[:, columns].std() > 0
        np.testing.assert_allclose(
            output[:, columns], expected[:, columns], rtol=1e-4, atol=1e-5, err_msg=str(example)
        )


NEVER_SIZES = [-1, -(10**30), MAX_SIZE + 1, "64", 1.0, 1.5, float("nan"), True, [1], {}]


@pytest.mark.parametrize(
    ("layer", "valid", "name", "also_valid"),
    [
        (Conv2d, {"out": 4, "kernel": 3}, "out", ()),
        (Conv2d, {"out": 4, "kernel": 3}, "kernel", ()),
        (Conv2d, {"out": 4, "kernel": 3}, "stride", ()),
        (Conv2d, {"out": 4, "kernel": 3}, "padding", (0, None)),
        (Conv2d, {"out": 4, "kernel": 3}, "dilation", ()),
        (Conv2d, {"out": 4, "kernel": 3}, "groups", ()),
        (MaxPool2d, {"kernel": 3, "stride": 2}, "kernel", ()),
        (MaxPool2d, {"kernel": 3, "stride": 2}, "stride", ()),
        (MaxPool2d, {"kernel": 3, "stride": 2}, "padding", (0,)),
        (Linear, {}, "out", ()),
    ],
)
def test_fields_of_the_wrong_kind_are_refused(
    layer: type[Layer], valid: dict[str, int], name: str, also_valid: tuple[Any, ...]
) -> None:
    for value in (1, MAX_SIZE, *also_valid):
        assert getattr(layer(**{**valid, name: value}), name) == value
    for value in [*NEVER_SIZES, *({0, None} - set(also_valid))]:
        with pytest.raises(ShapeError, match=f"{name} of {layer.__name__} is a whole number"):
            layer(**{**valid, name: value})


def test_the_rule_the_value_and_the_bounds_are_said() -> None:
    with pytest.raises(ShapeError) as caught:
        Conv2d(4, 3, stride=0)
    assert str(caught.value) == ("stride of Conv2d is a whole number from 1 to 2147483647; got 0")
    with pytest.raises(
        ShapeError, match=r"padding of Conv2d is a whole number from 0 to \d+ or abs"
    ):
        Conv2d(4, 3, padding=-1)


@pytest.mark.parametrize("value", [1, 0, "yes", None])
def test_switches_are_true_or_false(value: Any) -> None:
    for layer in (lambda: Conv2d(4, 3, bias=value), lambda: Linear(4, bias=value)):
        with pytest.raises(ShapeError, match="is true or false; got"):
            layer()


def test_numpy_integers_become_python_ones() -> None:
    layer = Conv2d(np.int64(4), np.int32(3))  # type: ignore[arg-type]
    assert (type(layer.out), type(layer.kernel)) == (int, int)
    assert layer == Conv2d(4, 3)


class TestShapesThatDoNotFit:
    @pytest.mark.parametrize(
        ("layer", "shapes", "message"),
        [
            (Conv2d(4, 3), ((1, 8),), r"4 dimensions; got \[1, 8\]"),
            (Conv2d(4, 3, groups=3), ((1, 6, 8, 8),), "6 -> 4 channels in 3 groups"),
            (Conv2d(6, 3, groups=3), ((1, 4, 8, 8),), "4 -> 6 channels in 3 groups"),
            (Conv2d(4, 9, padding=0), ((1, 3, 8, 9),), "must fit the image padded by 0; got 8x9"),
            (Conv2d(4, 3, padding=0, dilation=4), ((1, 3, 9, 8),), "dilation 4"),
            (BatchNorm2d(), ((1, 8),), "4 dimensions"),
            (GlobalAvgPool(), ((1, 8, 3),), "4 dimensions"),
            (MaxPool2d(2, 2), ((1, 8, 3),), "4 dimensions"),
            (MaxPool2d(4, 2), ((1, 8, 3, 9),), r"the window \(4\) must fit the image; got 3x9"),
            (MaxPool2d(3, 2, 2), ((1, 8, 9, 9),), "at most half the window; got 2 for 3"),
            (Flatten(), ((8,),), "at least 2 dimensions"),
            (Linear(4), ((8,),), "at least 2 dimensions"),
            (Add(), ((1, 8, 4, 4), (1, 8, 4, 5)), r"got \[1, 8, 4, 4\] and \[1, 8, 4, 5\]"),
            (Add(), ((1, 8), (8,)), "one shape"),
        ],
    )
    def test_refused(self, layer: Layer, shapes: tuple[Shape, ...], message: str) -> None:
        with pytest.raises(ShapeError, match=message):
            layer.infer(*shapes)

    def test_windows_that_just_fit(self) -> None:
        assert Conv2d(4, 9, padding=0).infer((1, 3, 9, 9)) == (1, 4, 1, 1)
        assert MaxPool2d(4, 2).infer((1, 8, 4, 5)) == (1, 8, 1, 1)
        assert MaxPool2d(3, 2, 1).infer((1, 8, 1, 1)) == (1, 8, 1, 1)

    def test_a_layer_too_large_to_count_is_named(self) -> None:
        builder = BlockBuilder()
        builder.add(Flatten(), name="flat")
        builder.add(Linear(10), name="classifier")
        with pytest.raises(ShapeError, match=r"layer classifier \(Linear\): sizes are from 1"):
            block_facts(builder.build("head"), (1, 2**16, 2**16))
