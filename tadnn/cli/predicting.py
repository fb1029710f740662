"""``tadnn latency``."""

from __future__ import annotations

from typing import Annotated

import typer

from tadnn.cli.app import app
from tadnn.cli.options import Batch, Input, On, input_shape
from tadnn.cli.output import Json, print_json, print_table

_PHYSICS_ALONE = "physics alone, a factor of two"


@app.command()
def latency(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="file.py:callable, package.module:callable, a Net or architecture JSON, "
            "or STUDY#TRIAL.",
        ),
    ],
    on: On,
    batch: Batch = 1,
    input: Input = None,
    phase: Annotated[
        str | None,
        typer.Option(help="A phase of the architecture, such as decode; itself when absent."),
    ] = None,
    json: Json = False,
) -> None:
    """Predict a network's latency and where it goes."""
    from tadnn.latency import load_latency_model, to_json
    from tadnn.search import resolve_target

    model = load_latency_model(on)
    found = resolve_target(target, input_shape(input), phase)
    prediction = to_json(model.predict_net(found.net, batch), model)
    if json:
        print_json(prediction)
        return
    from tadnn.report import kernel_text, share_text

    print_table(
        ["kernel", "times", "us each", "± us", "share %", "waves", "used"],
        [
            (
                ("" if k["in_range"] else "? ") + kernel_text(k["kernel"]),
                k["count"],
                k["latency_us"],
                k["std_us"],
                k["count"] * k["latency_us"] / prediction["latency_ms"] / 10,
                k["waves"],
                k["utilisation"],
            )
            for k in prediction["kernels"]
        ],
    )
    for opaque in prediction["opaque"]:
        print(f"not understood, roughly priced: {opaque['op']}, {opaque['count']} times")
    if not prediction["in_range"]:
        print("?: outside of the profiled range")
    if prediction["unprofiled_share"]:
        share = share_text(prediction["unprofiled_share"])
        how = "physics, calibrated by whole networks" if model.calibrated else _PHYSICS_ALONE
        print(f"{share} of it is of kinds that nobody measured: {how}")
    print(
        f"{found.name} at {'x'.join(map(str, found.net.input_shape))} on {model.name}, "
        f"batch {batch}: {prediction['latency_ms']:.3f} ± {prediction['std_ms']:.3f} ms"
    )
