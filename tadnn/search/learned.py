"""``latency_model: auto``: learning this machine for one study."""

from __future__ import annotations

from tadnn.errors import SettingMismatch
from tadnn.files import AUTO_PREFIX, LATENCY_MODELS, ensure_writable, stable_hash
from tadnn.latency import Budget, LatencyModel, extend, learn, load_latency_model, models_for
from tadnn.nets import Net, Shape
from tadnn.profiling import Clock, ProfileDatabase, open_clock
from tadnn.progress import SILENT, Progress
from tadnn.runtimes import Setting
from tadnn.search.spec import AUTO, StudySpec, thread_count
from tadnn.spaces import Space

#: Networks sampled to see which kernels a space launches.
SAMPLED_NETS = 400
PROFILES = "profiles.db"


def study_setting(spec: StudySpec) -> Setting:
    """Return the setting that a study's latencies are for."""
    return Setting(runtime=spec.runtime, dtype=spec.dtype, threads=thread_count(spec))


def auto_name(spec: StudySpec) -> str:
    """Return the name of the latency model that ``auto`` learns for a study."""
    return f"{AUTO_PREFIX}{spec.name}"


def study_latency_model(
    spec: StudySpec,
    space: Space,
    input_shape: Shape,
    classes: int | None,
    *,
    device: str = "auto",
    budget: Budget | None = None,
    fresh: bool = False,
    progress: Progress = SILENT,
) -> LatencyModel | None:
    """Return the latency model that a study searches on; None where it needs none.

    A model that ``auto`` learned for the same networks in the same setting is taken again;
    a new one needs only measurements that aren't in the profile database yet.

    Args:
        spec: the study.
        space: its space, narrowed.
        input_shape: (C, H, W).
        classes: outputs.
        device: the device to learn where the model is ``auto``; see ``open_clock``.
        budget: how much to measure.
        fresh: whether ``auto`` measures again what is known already.
        progress: told about measuring and fitting.

    Raises:
        SettingMismatch: the named model is fitted for another setting.
        UnknownName: there is no such model.
    """
    if spec.latency_model is None:
        return None
    setting = study_setting(spec)
    if spec.latency_model != AUTO:
        model = load_latency_model(spec.latency_model)
        model.require(setting, None, models_for(setting))
        return model
    purpose = stable_hash([space.hash, list(input_shape), classes, spec.batch, *spec.phases])
    clock = open_clock(device, setting)
    known = None if fresh else _known(spec, clock, purpose)
    return known or learn_space(
        auto_name(spec),
        [
            space.build(arch, input_shape, classes, phase)
            for arch in space.sample(SAMPLED_NETS, spec.seed)
            for phase in (None, *spec.phases)
        ],
        spec.batch,
        clock,
        budget=budget,
        seed=spec.seed,
        purpose=purpose,
        fresh=fresh,
        progress=progress,
    )


def learn_space(
    name: str,
    nets: list[Net],
    batch: int,
    clock: Clock,
    *,
    budget: Budget | None = None,
    seed: int = 0,
    purpose: str = "",
    fresh: bool = False,
    progress: Progress = SILENT,
) -> LatencyModel:
    """Learn the kernels of some networks and keep the model as ``latency_models/NAME``.

    All measurements of a working directory are kept in one database, so a kernel is
    measured once per device and setting, whatever it is measured for.
    """
    folder = LATENCY_MODELS.local
    ensure_writable(folder)
    database = ProfileDatabase(folder / PROFILES)
    return learn(
        name,
        nets,
        batch,
        clock,
        database,
        folder / name,
        budget=budget,
        seed=seed,
        purpose=purpose,
        fresh=fresh,
        progress=progress,
    )


def extend_space(
    model: LatencyModel,
    nets: list[Net],
    batch: int,
    clock: Clock,
    *,
    seed: int = 0,
    progress: Progress = SILENT,
) -> LatencyModel:
    """Measure some networks and their kernels, and fit what :func:`learn_space` gave again."""
    folder = LATENCY_MODELS.local
    ensure_writable(folder)
    database = ProfileDatabase(folder / PROFILES)
    at = folder / model.card.name
    return extend(model, nets, batch, clock, database, at, seed=seed, progress=progress)


def _known(spec: StudySpec, clock: Clock, purpose: str) -> LatencyModel | None:
    name = auto_name(spec)
    if name not in LATENCY_MODELS.entries():
        return None
    model = load_latency_model(name)
    if model.card.data.get("purpose") != purpose:
        return None
    try:
        model.require(clock.setting, clock.device, [])
    except SettingMismatch:
        return None  # learned on another machine or with other threads: learn this one
    return model
