"""Options that several commands share, and how their texts are read."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from tadnn.errors import RequestError

On = Annotated[str, typer.Option("--on", metavar="MODEL[@DEVICE]", help="The latency model.")]
Batch = Annotated[int, typer.Option(min=1, help="Inputs per run.")]
Input = Annotated[
    str | None,
    typer.Option(
        "--input", metavar="C,H,W", help="Input shape, such as 3,224,224; of a sequence 512."
    ),
]
Device = Annotated[
    str,
    typer.Option(
        help="auto (first GPU, else CPU), cpu, cuda:N, or fake, fake:SLUG (no real device)."
    ),
]
Measure = Annotated[
    bool,
    typer.Option(
        "--measure/--no-measure",
        help="Measure exported networks again, where the device of the study's model is here.",
    ),
]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Measure again what was measured: the machine was busy.")
]
Study = Annotated[str, typer.Argument(metavar="STUDY", help="A study's name or its YAML file.")]

_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def input_shape(text: str | None) -> tuple[int, ...] | None:
    """Return ``C,H,W`` as a shape; ``C,L`` for sequences of vectors, ``L`` for tokens.

    Raises:
        RequestError: it isn't one to three positive whole numbers.
    """
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > 3 or not all(p.isascii() and p.isdigit() and int(p) > 0 for p in parts):
        raise RequestError(
            f"--input is one to three positive whole numbers, such as 3,224,224; got {text!r}"
        )
    return tuple(int(part) for part in parts)


def model_name(text: str) -> str:
    """Return the name of a latency model to be written: it becomes a folder's.

    Raises:
        RequestError: no folder of ``latency_models`` would be found by it.
    """
    if not _FOLDER.fullmatch(text):
        raise RequestError(
            "--name becomes a folder of latency_models: letters, digits, '.', '_' and '-', a "
            f"letter or digit first; got {text!r}"
        )
    return text
