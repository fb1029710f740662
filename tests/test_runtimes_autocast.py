"""Automatic mixed precision: what runs in fp16, what in fp32, and what is copied between."""

from __future__ import annotations

import numpy as np
import pytest
from latency_fakes import INPUT, small_nets, small_space

from tadnn.errors import RequestError
from tadnn.hardware import find_device
from tadnn.kernels import Kernel
from tadnn.latency import evaluate_nets, load_latency_model, score
from tadnn.latency.fitting import NetTiming
from tadnn.nets import (
    Add,
    Attention,
    BatchNorm2d,
    Binary,
    Concat,
    Conv2d,
    LayerNorm,
    Linear,
    Net,
    NetBuilder,
    Pointwise,
    PositionEmbedding,
    ReLU,
    Stored,
    block,
)
from tadnn.runtimes import MIXED, Setting, find_runtime, lower_blocks, lower_net

EAGER = find_runtime("torch-eager")
PHYSICS = "physics-torch-eager-amp@rtx3090"


@block
def images(b):
    x = b.add(Conv2d(8, 3, bias=False), b.input)
    x = b.add(BatchNorm2d(), x)
    x = b.add(ReLU(), x)
    y = b.add(Conv2d(8, 1, bias=False), x)
    b.add(Add(), x, y)


@block
def tokens(b):
    x = b.add(PositionEmbedding(), b.input)
    y = b.add(Attention(2), b.add(LayerNorm(), x))
    b.add(Add(), x, y)


def keys(net: Net, batch: int = 1) -> list[str]:
    return [kernel.key for kernel in lower_net(net, batch, MIXED, EAGER)]


def net_of(shape: tuple[int, ...], *blocks: object) -> Net:
    builder = NetBuilder(shape)
    for i, each in enumerate(blocks):
        builder.add(f"b{i}", each)  # type: ignore[arg-type]
    return builder.build()


def test_a_convolutional_network_is_half_precision_but_for_its_input() -> None:
    conv = "conv2d(n=1,c={},h=4,w=4,k=8,r={},s={},stride=1,pad={},dilation=1,groups=1,dtype=fp16)"
    assert keys(net_of((3, 4, 4), images())) == [
        "cast(rows=1,cols=216,dtype=fp16)",  # 8 x 3 x 3 x 3 weights
        "cast(rows=3,cols=16,dtype=fp16)",  # the image
        conv.format(3, 3, 3, 1),
        "batch_norm(n=1,c=8,h=4,w=4,dtype=fp16)",
        "relu(rows=8,cols=16,dtype=fp16)",
        "cast(rows=1,cols=64,dtype=fp16)",
        conv.format(8, 1, 1, 0),
        "add(rows=8,cols=16,dtype=fp16)",
    ]


def test_a_residual_stream_that_was_single_once_stays_so() -> None:
    kernels = keys(net_of((5, 8), tokens()), 2)
    assert kernels == [
        "add_cols(rows=2,cols=40,dtype=fp32)",  # positions are weights: fp32
        "layer_norm(rows=10,cols=8,dtype=fp32)",
        "cast(rows=1,cols=288,dtype=fp16)",  # 8 x 24 + 24 + 8 x 8 + 8 weights
        "cast(rows=10,cols=8,dtype=fp16)",
        "linear(m=10,n=24,k=8,dtype=fp16,epilogue=bias)",
        "attention(b=4,t=5,s=5,d=4,e=4,dtype=fp16)",  # scores, softmax and sum in one
        "linear(m=10,n=8,k=8,dtype=fp16,epilogue=bias)",
        "add(rows=10,cols=8,dtype=fp32)",
    ]


@block
def two_norms(b):
    y = b.add(Linear(8), b.input)
    b.add(LayerNorm(), y)


@block
def joined(b):
    y = b.add(Linear(8, bias=False), b.input)
    b.add(Concat(1), b.input, y)


@block
def scaled(b):
    y = b.add(Linear(8, bias=False), b.input)
    one = b.add(Stored((1,)), b.input)
    y = b.add(Binary("mul"), y, one)
    many = b.add(Stored((8,)), b.input)
    b.add(Binary("mul"), y, many)


@block
def powered(b):
    y = b.add(Linear(8, bias=False), b.input)
    b.add(Pointwise("pow", 2.0), y)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (two_norms, ["linear fp16", "cast fp16", "layer_norm fp32"]),
        (joined, ["linear fp16", "cast fp16", "concat fp32"]),  # joins in the widest
        (scaled, ["linear fp16", "scalar fp16", "add_cols fp32"]),  # one number widens nothing
        (powered, ["linear fp16", "cast fp16", "pointwise fp32"]),
    ],
)
def test_what_promotes_and_what_copies(made: object, expected: list[str]) -> None:
    kernels = lower_net(net_of((5, 8), made()), 1, MIXED, EAGER)  # type: ignore[operator]
    # The weights' copy, the input's, and what is to be seen.
    assert [f"{k.op} {k.dtype}" for k in kernels[2:]] == expected


def test_blocks_know_what_stands_before_them() -> None:
    net = net_of((5, 8), two_norms(), two_norms())
    first, second = lower_blocks(net, 1, MIXED, EAGER)
    assert first == second, "both get fp32: the input, and a norm's output"
    halves = net_of((3, 4, 4), images(), images())
    first, second = lower_blocks(halves, 1, MIXED, EAGER)
    assert [k.op for k in first].count("cast") == 3
    assert [k.op for k in second].count("cast") == 2, "its input is fp16 already"
    assert lower_net(halves, 1, MIXED, EAGER) == [*first, *second]


def test_it_is_predicted_and_scored_but_never_run() -> None:
    model = load_latency_model(PHYSICS)
    assert model.setting == Setting("torch-eager", MIXED)
    assert model.device == find_device("rtx3090")
    nets = small_nets(5, 3)
    summed = [
        sum(model.predict([k]).latency_us[0] for k in lower_net(net, 4, MIXED, EAGER)) / 1e3
        for net in nets
    ]
    predicted = [model.predict_net(net, 4).latency_ms for net in nets]
    np.testing.assert_allclose(predicted, summed, rtol=1e-5)
    archs = small_space().sample(5, 3)
    np.testing.assert_allclose(score(small_space(), archs, model, 4, INPUT, classes=10), predicted)
    timings = [NetTiming(net, 4, ms) for net, ms in zip(nets, predicted, strict=True)]
    assert evaluate_nets(model, timings)["overall"]["mape"] < 1e-3
    with pytest.raises(RequestError, match="predicted from timings of others"):
        EAGER.prepare_kernel(Kernel("relu", (1, 1), "fp16"), model.setting)
    with pytest.raises(RequestError, match="onnxruntime runs on cpu devices"):
        lower_net(nets[0], 1, MIXED, find_runtime("onnxruntime"))


def test_costs_of_both_dtypes() -> None:
    """Two bytes or four a value, at the 3090's bandwidth; each with the core's factor of three."""
    model = load_latency_model(PHYSICS)
    half, single = (Kernel("relu", (1024, 1024), dtype) for dtype in ("fp16", "fp32"))
    us = model.predict_us([half, single])
    mb = 2 * 1024 * 1024 * np.array([2, 4]) / 1e6
    np.testing.assert_allclose(us, 5 + 3 * mb / 936e3 * 1e6, rtol=1e-5)
