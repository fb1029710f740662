"""Loads exports where tadnn is not installed and says how far each form is from the module.

Run by tests as ``python -I export_checker.py FOLDER...``; prints JSON, one entry per folder. Beside
every folder ``NAME`` lies ``NAME.npz`` with ``inputs`` and the module's ``outputs``.
"""

import hashlib
import importlib.util
import io
import json
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from safetensors import safe_open
from safetensors.torch import load_file

sys.modules["tadnn"] = None  # an installed one must not be found either


def forms(folder, inputs):
    """Yield the outputs of every exported form."""
    spec = importlib.util.spec_from_file_location("model", folder / "model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.Model()
    assert isinstance(model, torch.nn.Module)
    model.load_state_dict(load_file(folder / "weights.safetensors"))
    tensor = torch.from_numpy(inputs)
    with torch.inference_mode():
        yield "model.py", model.eval()(tensor).numpy()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(folder / "model.onnx", options)
    yield "model.onnx", session.run(None, {"input": inputs})[0]
    alone = [session.run(None, {"input": one[None]})[0] for one in inputs]
    yield "model.onnx, one at a time", np.concatenate(alone)
    with torch.no_grad():
        yield "model.pt2", torch.export.load(folder / "model.pt2").module()(tensor).numpy()


def sums_are_right(folder):
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    listed = dict(reversed(line.split("  ")) for line in lines if not line.startswith("#"))
    files = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}
    del files["SHA256SUMS"]
    return listed == files


def says_untrained(path):
    """Tell whether a file says that its weights are random."""
    if path.suffix == ".onnx":
        properties = onnx.load(path, load_external_data=False).metadata_props
        text = {p.key: p.value for p in properties}["weights"]
    elif path.suffix == ".pt2":
        extra = {"weights": ""}
        torch.export.load(path, extra_files=extra)
        text = extra["weights"]
    elif path.suffix == ".safetensors":
        with safe_open(path, "np") as file:
            text = file.metadata()["weights"]
    else:
        text = path.read_text()
    return "UNTRAINED: the weights are random" in text


def opset(path):
    imports = onnx.load(path, load_external_data=False).opset_import
    return [one.version for one in imports if one.domain == ""]


def check(folder):
    with np.load(folder.with_suffix(".npz")) as held:
        inputs, expected = held["inputs"], held["outputs"]
    scale = max(1.0, float(np.abs(expected).max()))
    said = io.StringIO()
    with redirect_stdout(said):
        runpy.run_path(str(folder / "run.py"))
    names = ("architecture.json", "preprocess.json")
    records = [json.loads((folder / name).read_text()) for name in names]
    return {
        "differences": {
            name: float(np.abs(outputs - expected).max()) / scale
            for name, outputs in forms(folder, inputs)
        },
        "largest": float(np.abs(expected).max()),
        "sums": sums_are_right(folder),
        "untrained": {path.name: says_untrained(path) for path in folder.iterdir()},
        "json": [record["weights"] for record in records],
        "run": said.getvalue(),
        "opset": opset(folder / "model.onnx"),
    }


torch.set_num_threads(1)
try:
    import tadnn  # noqa: F401
except ImportError:
    print(json.dumps([check(Path(name)) for name in sys.argv[1:]]))
else:
    sys.exit("tadnn is there")
