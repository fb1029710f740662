"""Writing the export's folder, whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from tadnn.errors import RequestError, Unwritable
from tadnn.export import forms
from tadnn.export.card import card_text
from tadnn.export.request import ExportRequest
from tadnn.files import atomic_folder, file_hash, read_json, write_json, write_text

SUMS = "SHA256SUMS"
FORMAT = "tadnn-architecture-1"

_RUN = '''\
"""Times model.onnx on this machine's CPU; needs onnxruntime and NumPy. Weights: {status}."""

import timeit
from pathlib import Path

import numpy as np
import onnxruntime

path = Path(__file__).with_name("model.onnx")
session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
inputs = {{"input": np.random.default_rng(0).{draw}}}
output = session.run(None, inputs)[0]
times = timeit.repeat(lambda: session.run(None, inputs), number=1, repeat=30)
print(f"output {{output.shape}}, median {{1e3 * np.median(times):.3f}} ms, batch {{len(output)}}")
'''


def export_network(folder: Path, request: ExportRequest) -> list[Path]:
    """Write a network as a folder that runs without tadnn; every form is checked first.

    A previous export at ``folder`` is replaced; the folder appears whole or not at all.

    Returns:
        The paths written, ``SHA256SUMS`` last.

    Raises:
        RequestError: the request's module is not that of its net, or ``folder`` exists and
            holds anything that an export did not write.
        WorkFailed: an exported form does not give the module's outputs.
        Unwritable: the folder cannot be written or the disk is full.
    """
    folder = Path(os.path.abspath(folder))
    check_replaceable(folder)
    with atomic_folder(folder.resolve()) as temporary:
        module = forms.own_module(request)
        inputs = forms.check_inputs(request)
        source = forms.write_source(request, module, temporary)
        checks = [*forms.check("model.py", source, module, inputs)]
        program = forms.traced(request, module)
        run, opset = forms.write_onnx(request, program, temporary)
        checks += forms.check("model.onnx", run, module, inputs)
        runnable = forms.write_program(request, program, temporary)
        checks += forms.check("model.pt2", runnable, module, inputs)
        write_json(temporary / "architecture.json", _architecture(request))
        write_json(temporary / "preprocess.json", _preprocess(request))
        write_text(temporary / "run.py", _RUN.format(status=request.status, draw=_draw(request)))
        write_text(temporary / "card.md", card_text(request, checks, opset))
        names = sorted(path.name for path in temporary.iterdir())
        sums = "".join(f"{file_hash(temporary / name)}  {name}\n" for name in names)
        write_text(temporary / SUMS, f"# Weights: {request.status}.\n{sums}")
    return [folder / name for name in (*names, SUMS)]


def check_replaceable(folder: Path) -> None:
    """Check that an export may take a folder's place: nothing, an empty one, or an export.

    Raises:
        RequestError: it is a file, or holds what no export wrote.
        Unwritable: it cannot be read.
    """
    rule = f"an export is written to a new folder or over a previous export; {folder}"
    try:
        if not os.path.lexists(folder):
            return
        if not folder.is_dir():
            raise RequestError(f"{rule} is a file")
        present = {path.name for path in folder.iterdir()} - {"__pycache__"}
        if not present:
            return
        if SUMS not in present:
            raise RequestError(f"{rule} holds other things and no {SUMS}")
        lines = (folder / SUMS).read_text("utf-8", "replace").splitlines()
        listed = {line[66:] for line in lines if not line.startswith("#")}
        foreign = sorted(present - listed - {SUMS})
    except OSError as error:
        raise Unwritable(f"cannot read {folder}: {error.strerror or error}") from error
    if foreign:
        raise RequestError(
            f"{rule} holds what no export wrote, and replacing it would lose that: "
            f"{', '.join(foreign)}"
        )


def is_exported(folder: Path, request: ExportRequest) -> bool:
    """Tell whether a folder already holds this network with these weights and facts.

    The folder is trusted to be an export when its ``SHA256SUMS`` is there: it is the last
    file written, and the folder appears whole or not at all.
    """
    if not (folder / SUMS).is_file():
        return False
    return bool(read_json(folder / "architecture.json").get("request") == request.digest)


def _draw(request: ExportRequest) -> str:
    """Return the NumPy call that draws one batch of inputs."""
    net = request.net
    shape = (request.card.batch, *net.input_shape)
    if net.input_dtype == "int64":
        return f"integers(0, {net.input_limit}, {shape})"
    return f"standard_normal({shape}, dtype=np.float32)"


def _architecture(request: ExportRequest) -> dict[str, object]:
    net = request.net
    return {
        "format": FORMAT,
        "space": request.space,
        "arch": None if request.arch is None else dict(request.arch),
        "input_shape": list(net.input_shape),
        "classes": request.classes,
        "key": net.key,
        "weights": request.status,
        "request": request.digest,
        "net": net.to_json(),
    }


def _preprocess(request: ExportRequest) -> dict[str, object]:
    """Return how a raw input becomes the network's; without a data set only what it must be."""
    if request.preprocess is not None:
        return {**request.preprocess, "weights": request.status}
    net = request.net
    tokens = net.input_dtype == "int64"
    what = f"token ids from 0 to {(net.input_limit or 1) - 1}" if tokens else "values"
    unknown = ("decode", "raw_shape", "resize", "repeat_channels", "mean", "std", "class_names")
    return {
        "dataset": None,
        "licence": None,
        "layout": {3: "NCHW", 2: "NCL", 1: "NL"}[len(net.input_shape)],
        "dtype": "int64" if tokens else "float32",
        "input_shape": list(net.input_shape),
        "value_range": [0, net.input_limit - 1] if tokens and net.input_limit else None,
        **dict.fromkeys(unknown),
        "formula": f"unknown: no data set was handed in; the network takes {what} as they are",
        "weights": request.status,
    }
