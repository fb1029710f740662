"""Fused kernels as small graphs, compiled by TorchInductor."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from tadnn.kernels import Kernel
from tadnn.runtimes.base import Run
from tadnn.runtimes.inductor_fusion import SHRINKING
from tadnn.runtimes.torch_calls import ELEMENTWISE, call_and_operands
from tadnn.runtimes.torch_operands import Operands

Part = Callable[[Tensor, Tensor | None], Tensor]


def compiled_call(kernel: Kernel, device: str, *, channels_last: bool) -> Run:
    """Return a callable of the kernel that Inductor compiles for an op and its epilogue.

    With a pooling, the epilogue works on the values that it takes; an epilogue that pools
    gives its result beside the kernel's own.
    """
    with torch.inference_mode():
        operands = Operands(kernel, device, channels_last)
        op, shapes = call_and_operands(kernel, operands)
        first = len(shapes)
        wide = shapes[0] if kernel.op in SHRINKING else tuple(_shape_of(op, shapes, operands))
        extra = [_extra_shape(part, wide) for part in kernel.epilogue]
        parts = [_part(part, wide, operands) for part in kernel.epilogue]
        tensors = operands.tensors([*shapes, *(shape for shape in extra if shape is not None)])

        def fused(*given: Tensor) -> tuple[Tensor, ...]:
            others = iter(given[first:])
            reads = [next(others) if shape is not None else None for shape in extra]
            if kernel.op in SHRINKING:
                return (op(_chain(given[0], parts, reads)[0]),)
            return _chain(op(*given[:first]), parts, reads)

        return _compiled(fused, tensors)


def _chain(
    x: Tensor, parts: Sequence[tuple[Part, bool]], reads: Sequence[Tensor | None]
) -> tuple[Tensor, ...]:
    pooled = []
    for (part, aside), read in zip(parts, reads, strict=True):
        if aside:
            pooled.append(part(x, read))
        else:
            x = part(x, read)
    return (x, *pooled)


def _shape_of(op: Callable[..., Tensor], shapes: Any, operands: Operands) -> torch.Size:
    return op(*operands.tensors(shapes)[0]).shape


def _extra_shape(part: str, wide: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape of what an epilogue reads beside the kernel's own values."""
    if part in ("add", "mul"):
        return wide
    if part == "mul_rows":
        return (*wide[:2], *(1 for _ in wide[2:])) if len(wide) > 2 else (*wide[:-1], 1)
    if part == "add_cols":
        return (1, *wide[1:])
    return None


def _part(name: str, wide: tuple[int, ...], operands: Operands) -> tuple[Part, bool]:
    """Return an epilogue as a function, and whether its result stands beside the kernel's."""
    if name in _ASIDE:
        dims = _ASIDE[name] if len(wide) == 4 else (-1,)
        return lambda x, _: x.mean(dims), True
    if name in ELEMENTWISE:
        call = ELEMENTWISE[name]
        return lambda x, _: call(x), False
    if name in ("add", "add_cols"):
        return lambda x, other: x + other, False
    if name in ("mul", "mul_rows"):
        return lambda x, other: x * other, False
    # A key of rows and columns doesn't tell the channels: the columns stand for them.
    channels = wide[1]
    if name in ("batch_norm", "group_norm"):
        mean, variance, weight, bias = (operands.fixed(channels) for _ in range(4))
        if name == "batch_norm":
            return lambda x, _: F.batch_norm(x, mean, variance, weight, bias), False
        return lambda x, _: F.group_norm(x, 1, weight, bias), False
    last = (wide[-1],)
    weight, bias = operands.fixed(*last), operands.fixed(*last)
    if name == "layer_norm":
        return lambda x, _: F.layer_norm(x, last, weight, bias), False
    return lambda x, _: F.rms_norm(x, last, weight), False


_ASIDE: Final = {"global_avg_pool": (2, 3), "token_mean": (1,)}


def _compiled(call: Callable[..., tuple[Tensor, ...]], operands: list[tuple[Tensor, ...]]) -> Run:
    """Return ``call`` compiled for the operands, which take turns."""
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner
    from torch.fx.experimental.proxy_tensor import make_fx

    traced = make_fx(call)(*operands[0])
    constants = _constants_to_inputs(traced)
    inputs = [(*tensors, *constants) for tensors in operands]
    graphs: list[Any] = []

    # Around the graph that is compiled stand wrappers which a network has once.
    def keep(*args: Any, **kwargs: Any) -> Any:
        graphs.append(compile_fx_inner(*args, **kwargs))
        return graphs[-1]

    compiled: Callable[..., Any] = compile_fx(traced, list(inputs[0]), inner_compile=keep)  # type: ignore[assignment]
    compiled(*inputs[0])
    run, draw = graphs[0].current_callable, itertools.cycle(inputs).__next__
    return lambda: run([*draw()])


def _constants_to_inputs(traced: torch.fx.GraphModule) -> list[Tensor]:
    """Make the tensors that a graph holds its last inputs, and return them."""
    graph, constants = traced.graph, []
    last = list(graph.find_nodes(op="placeholder"))[-1]
    for node in graph.find_nodes(op="get_attr"):
        constants.append(getattr(traced, str(node.target)))
        with graph.inserting_after(last):
            last = graph.placeholder(f"constant{len(constants)}")
        node.replace_all_uses_with(last)
        graph.erase_node(node)
        delattr(traced, str(node.target))
    traced.recompile()
    return constants
