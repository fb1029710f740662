"""Measuring a network again when it is exported, as finalists are measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tadnn.errors import RequestError, WorkFailed
from tadnn.export import CardFacts, Measured
from tadnn.files import environment
from tadnn.hardware import detect_devices
from tadnn.profiling import Clock, clock_device, open_clock
from tadnn.progress import SILENT, Progress
from tadnn.runtimes import Setting
from tadnn.search.objective import NET_ATTR, PHASE_NET_ATTR, unpack_net
from tadnn.search.reading import is_searched_here
from tadnn.search.side_by_side import measure_nets
from tadnn.search.spec import AUTO
from tadnn.search.storage import MODEL_ATTR
from tadnn.search.trials import evaluated_trial

if TYPE_CHECKING:
    from optuna import Study


class _NotMeasured(Exception):
    """Why there is no measurement; ends up on the card."""


def remeasured(
    card: CardFacts, study: Study, device: str = AUTO, progress: Progress = SILENT
) -> CardFacts:
    """Return a card with its network measured again, or with the reason why it was not.

    The clock, the clean process and the protocol are those that finalists are measured by: the
    network (and its phases) side by side, each twice. A network that cannot be measured here is
    exported all the same; ``CardFacts.unmeasured`` says why it wasn't.

    Args:
        card: of an evaluated trial of the study.
        study: the study, opened to be read.
        device: ``auto`` looks for the latency model's device on this machine; else see
            ``open_clock``.
        progress: told of every measurement.

    Raises:
        RequestError: a device other than ``auto`` is not here, or not the latency model's.
    """
    assert card.trial is not None
    stored = evaluated_trial(study, card.trial).user_attrs
    phases = [phase.name for phase in card.phases]
    attributes = [NET_ATTR, *(PHASE_NET_ATTR + phase for phase in phases)]
    nets = [unpack_net(stored[attribute]) for attribute in attributes]
    try:
        if is_searched_here(study):
            raise _NotMeasured("a search of this study runs on this machine, and both would suffer")
        clock = _clock(study.user_attrs.get(MODEL_ATTR), device)
        done = measure_nets(clock, nets, card.batch, f"re-measuring trial {card.trial}", progress)
    except (_NotMeasured, WorkFailed) as error:
        return replace(card, unmeasured=str(error))
    again = dict(zip(phases, done.records[1:], strict=True))
    return replace(
        card,
        measured=Measured(**done.records[0]),
        unmeasured=None,
        in_search=card.measured,
        phases=tuple(replace(p, measured=Measured(**again[p.name])) for p in card.phases),
        measuring=f"for this export, on {clock.device.name}, as finalists are measured",
        against_itself=done.against_itself,
        drift=done.drift,
        environment={**environment(), **clock.environment()},
    )


def _clock(model: Mapping[str, Any] | None, device: str) -> Clock:
    """Return the clock of the device that a study's latency model is for."""
    if model is None:
        raise _NotMeasured("the study has no latency model, so no device is meant")
    setting, slug = Setting.from_dict(model["setting"]), model["device"]
    if device != AUTO:
        named = clock_device(device, setting).slug
        if named != slug:
            raise RequestError(
                f"a network is measured on the device that its latency was predicted for, {slug}; "
                f"--device {device} is {named}"
            )
        return open_clock(device, setting)
    here = {spec.slug for spec in detect_devices().values()}
    if slug not in here:
        raise _NotMeasured(f"the device {slug} isn't here; this machine has {', '.join(here)}")
    try:
        return open_clock(slug, setting)
    except RequestError as error:  # such as a runtime that isn't installed here
        raise _NotMeasured(str(error)) from error
