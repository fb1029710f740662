"""Checking the names in a study file that only spaces and torch know."""

from __future__ import annotations

from tadnn.errors import SpecError, UnknownName
from tadnn.search.load import require_known, spec_source
from tadnn.search.spec import AUTO, CONSTRAINTS, OBJECTIVES, StudySpec
from tadnn.search.spec_parts import LATENCY, LATENCY_MS
from tadnn.spaces import Space


def require_names(spec: StudySpec) -> None:
    """Check the names in a spec that `load_spec` leaves open, since they need torch.

    Raises:
        SpecError: with near matches.
    """
    from tadnn.runtimes import RUNTIMES

    source = spec_source(spec)
    require_known(source, "runtime", "runtime", spec.runtime, RUNTIMES)
    if spec.dataset is not None:
        from tadnn.accuracy import require_dataset

        try:
            require_dataset(spec.dataset)
        except UnknownName as error:
            raise SpecError(f"{source}: dataset: {error}") from None
    if spec.proxy is not None:
        from tadnn.accuracy import ENSEMBLES, PROXIES

        valid = (*PROXIES, *ENSEMBLES, AUTO)
        key = "accuracy.proxy" if spec.stages is None else "stages.0.proxy"
        require_known(source, key, "proxy", spec.proxy, valid)


def require_phases(spec: StudySpec, space: Space) -> None:
    """Check that a space has the phases on whose latencies a spec has objectives and constraints.

    Raises:
        SpecError: with near matches.
    """
    for key, names, known, suffix in (
        ("objectives", spec.objectives, OBJECTIVES, LATENCY),
        ("constraints", tuple(spec.constraints.bounds()), CONSTRAINTS, LATENCY_MS),
    ):
        valid = (*known, *(phase + suffix for phase in space.phases))
        for name in names:
            require_known(spec_source(spec), key, key.removesuffix("s"), name, valid)
