"""What costs nothing to know of an architecture: sizes, latencies, those of further phases too."""

from __future__ import annotations

import numpy as np
from latency_fakes import INPUT, small_nets, space_model

from tadnn.search.free import FreeMeasures, free_objectives
from tadnn.spaces import Int, Space


def two_phases() -> Space:
    """Return a space whose networks are two of the small ones, one per phase."""
    nets = small_nets(8)
    return Space(
        "twofold",
        {"which": Int(0, 3)},
        lambda arch, shape, classes: nets[arch["which"]],
        default_input=INPUT,
        phases={"decode": lambda arch, shape, classes: nets[7 - arch["which"]]},
    )


def test_latencies_of_phases_are_free() -> None:
    model, nets = space_model(), small_nets(8)
    free = FreeMeasures(two_phases(), model, batch=2)
    archs = [{"which": i} for i in (2, 0)]
    names = ["latency", "decode_latency", "accuracy"]
    known, constraints = free_objectives(free, names, {"decode_latency_ms": 0.5})
    assert sorted(known) == [0, 1], "an accuracy isn't free"
    of_nets = [[model.predict_net(nets[i], 2).latency_ms for i in at] for at in ([2, 0], [5, 7])]
    for index, expected in enumerate(of_nets):
        np.testing.assert_allclose(known[index](archs), expected, rtol=1e-6)
    (excess,) = constraints
    np.testing.assert_allclose(excess(archs), np.array(of_nets[1]) / 0.5 - 1, rtol=1e-5)
