"""``tadnn sweep``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tadnn.cli.app import app
from tadnn.cli.options import Device, On
from tadnn.cli.output import Bars, Json, path_text, print_json, print_table, say

if TYPE_CHECKING:
    from tadnn.latency import LatencyModel
    from tadnn.tail import Sweep

_SHOWN = 40


@app.command()
def sweep(
    kernel: Annotated[
        str, typer.Argument(metavar="KERNEL", help='Such as "linear(m=1,n=10,k=64)".')
    ],
    over: Annotated[
        str, typer.Option(metavar="SIZE=LOW:HIGH[:STEP]", help="Such as k=16:512 or k=16:512:16.")
    ],
    on: On,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure every width on this machine, too.")
    ] = False,
    device: Device = "auto",
    out: Annotated[
        Path | None,
        typer.Option("-o", metavar="DIR", help="Write a picture and a CSV there."),
    ] = None,
    json: Json = False,
) -> None:
    """Show latency against one size of a kernel: the staircase."""
    from tadnn.kernels import Kernel
    from tadnn.latency import load_latency_model
    from tadnn.profiling import open_clock
    from tadnn.tail import sweep_kernel, sweep_values

    parsed = Kernel.parse(kernel)
    size, values = sweep_values(parsed, over)
    model = load_latency_model(on)
    clock = None
    if measure:
        clock = open_clock(device, model.setting)
        model.require(clock.setting, clock.device, [])
    found = sweep_kernel(model, parsed, size, values, clock, Bars())
    if out is not None:
        found.write_csv(out / "stairs.csv")
        _draw_sweep(found, model, out / "stairs.png")
    if json:
        print_json(found.to_json())
        return
    rows = [row for row in found.rows() if row[4]] if len(values) > _SHOWN else found.rows()
    print_table(
        [*found.columns],
        [tuple(("no", "yes")[v] if isinstance(v, bool) else v for v in row) for row in rows],
        f"{parsed.key} on {model.name}" + (": efficient values" if len(rows) < len(values) else ""),
    )
    if out is not None:
        say(f"wrote {path_text(out)}")


def _draw_sweep(found: Sweep, model: LatencyModel, path: Path) -> None:
    from tadnn.report import StairView, save_figure, stairs_figure

    view = StairView(
        title=f"{found.kernel.op} on {model.name}: latency against {found.size}",
        subtitle=found.kernel.key,
        axis=f"size {found.size}",
        widths=found.values,
        latency_us=found.latency_us,
        std_us=found.std_us,
        measured_us=found.measured_us,
        efficient=found.efficient_values,
    )
    save_figure(stairs_figure(view), path)
