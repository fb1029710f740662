"""The forms a network is exported in, each checked against its module as it is written."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tadnn.errors import RequestError, WorkFailed
from tadnn.export.card import Check
from tadnn.export.request import ExportRequest
from tadnn.files import atomic_open, write_text
from tadnn.nets import exported_program, load_weights, program_to_onnx, save_weights
from tadnn.nets.onnx import quiet_export

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.export import ExportedProgram

TOLERANCE = 1e-4
"""Largest difference allowed, relative to the largest output where that is above 1."""

Inputs = list[tuple[str, "Tensor"]]


def own_module(request: ExportRequest) -> nn.Module:
    """Return the network to export as a module of our own on the CPU, in evaluation mode.

    Raises:
        RequestError: the request's module is not that of its net.
    """
    module = request.net.to_module(request.weights_seed)
    if request.module is not None:
        try:
            module.load_state_dict(request.module.state_dict())
        except RuntimeError as error:
            raise RequestError(
                f"the module to export has the parameters of net.to_module(); got others: {error}"
            ) from error
    return module.eval().requires_grad_(False)


def check_inputs(request: ExportRequest) -> Inputs:
    """Return named batches of two sizes, and the sample where there is one."""
    batches = [
        (
            f"{n} random input{'s' if n > 1 else ''}",
            request.net.example(n, request.weights_seed),
        )
        for n in (1, 3)
    ]
    if request.sample is not None:
        n = len(request.sample)
        real = request.sample.detach().to("cpu", batches[0][1].dtype)
        batches.append((f"{n} real input{'s' if n > 1 else ''}", real))
    return batches


def write_source(request: ExportRequest, module: nn.Module, folder: Path) -> Callable[..., Any]:
    """Write ``model.py`` and ``weights.safetensors``; return the model that the two give."""
    path = folder / "model.py"
    source = f"# Weights: {request.status}.\n{request.net.to_source()}"
    write_text(path, source)
    save_weights(module, folder / "weights.safetensors", {"weights": request.status})
    # The source is ours, made from data a moment ago.
    namespace: dict[str, Any] = {"__name__": "model"}
    exec(compile(source, str(path), "exec"), namespace)
    model: nn.Module = namespace["Model"]()
    load_weights(model, folder / "weights.safetensors")
    return model.eval()


def traced(request: ExportRequest, module: nn.Module) -> ExportedProgram:
    """Return the module as a ``torch.export`` program with a free batch."""
    return exported_program(module, request.net.example(2, request.weights_seed))


def write_program(
    request: ExportRequest, program: ExportedProgram, folder: Path
) -> Callable[..., Any]:
    """Write ``model.pt2``; return it runnable."""
    import torch

    # torch reports a full disk as a RuntimeError; writing the bytes ourselves keeps one error.
    buffer = io.BytesIO()
    with quiet_export():
        torch.export.save(program, buffer, extra_files={"weights": request.status})
        runnable: nn.Module = program.module()
    with atomic_open(folder / "model.pt2", "wb") as file:
        file.write(buffer.getbuffer())
    return runnable


def write_onnx(
    request: ExportRequest, program: ExportedProgram, folder: Path
) -> tuple[Callable[..., Any], int]:
    """Write ``model.onnx``; return it runnable on one CPU thread, and its opset."""
    import onnx
    import onnxruntime
    import torch

    path = folder / "model.onnx"
    program_to_onnx(program, path, {"weights": request.status})
    opset = next(o.version for o in onnx.load(path).opset_import if o.domain in ("", "ai.onnx"))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def run(inputs: Tensor) -> Tensor:
        (output,) = session.run(None, {name: inputs.numpy()})
        return torch.from_numpy(output)

    return run, opset


def check(what: str, run: Callable[..., Any], module: nn.Module, inputs: Inputs) -> Iterator[Check]:
    """Compare a written form with the module on every batch.

    Raises:
        WorkFailed: an output is not finite, has another shape, or differs too much.
    """
    import torch

    with torch.no_grad():
        for name, batch in inputs:
            expected, got = module(batch), run(batch)
            if not bool(torch.isfinite(expected).all()):
                raise WorkFailed(f"outputs must be finite; the module's on {name} are not")
            if got.shape != expected.shape:
                raise WorkFailed(
                    f"{what} must give the module's outputs; on {name} it gives shape "
                    f"{list(got.shape)} instead of {list(expected.shape)}"
                )
            difference = float((got - expected).abs().max())
            allowed = TOLERANCE * max(1.0, float(expected.abs().max()))
            if not difference <= allowed:  # not >: a NaN must fail too
                raise WorkFailed(
                    f"{what} must give the module's outputs to within {allowed:.2g}; on {name} "
                    f"they differ by {difference:.2g}"
                )
            yield Check(what, name, difference)
