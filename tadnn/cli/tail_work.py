"""The work behind ``tadnn tail``: this network's own stairs, and the rewritten network's folder."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tadnn.cli.output import Bars

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import nn

    from tadnn.accuracy import Dataset
    from tadnn.export import Trained
    from tadnn.latency import LatencyModel
    from tadnn.nets import Net
    from tadnn.search import Target
    from tadnn.tail import Decision, Goal, Refined, Rewrite, Rewriter

_RATE, _FINE_RATE = 0.1, 0.02
_SAMPLE = 16


def channel_importance(found: Target, capacity: str) -> Any:
    """Return the importance of every channel where that is the capacity and there are weights."""
    if capacity != "importance" or found.traced is None:
        return None
    from tadnn.tail import follow, importance

    return importance(follow(found.net), found.traced.weights)


def own_model(
    found: Target, model: LatencyModel, batch: int, minutes: float, device: str, seed: int
) -> LatencyModel:
    """Learn this network's own stairs in the setting of a latency model."""
    from tadnn.latency import Budget
    from tadnn.profiling import open_clock
    from tadnn.search import learn_space
    from tadnn.tail import follow, variants

    clock = open_clock(device, model.setting)
    model.require(clock.setting, clock.device, [])
    nets = variants(follow(found.net), seed=seed)
    name = f"auto-tail-{found.net.key}-{batch}"
    limit = Budget(kernels=1_000_000, minutes=minutes)
    return learn_space(name, nets, batch, clock, budget=limit, seed=seed, progress=Bars())


def refined(rewriter: Rewriter, goal: Goal, device: str, seed: int) -> Refined:
    """Propose, measure and learn in rounds, on a model that :func:`own_model` gave."""
    from tadnn.profiling import open_clock
    from tadnn.search import extend_space
    from tadnn.tail import refine

    clock, model = open_clock(device, rewriter.model.setting), rewriter.model

    def relearn(nets: Sequence[Net]) -> LatencyModel:
        nonlocal model
        batch = rewriter.batch
        model = extend_space(model, [*nets], batch, clock, seed=seed, progress=Bars())
        return model

    return refine(rewriter, [goal], clock, relearn, progress=Bars())


def write_rewrite(
    folder: Path,
    found: Target,
    rewriter: Rewriter,
    rewrite: Rewrite,
    decision: Decision | None,
    seed: int,
    tuning: tuple[str | None, int],
) -> None:
    """Export a rewritten network, weights carried over and fine-tuned where data are named."""
    from tadnn.accuracy import load_dataset
    from tadnn.export import CardFacts, ExportRequest, Measured, Predicted, export_network
    from tadnn.tail import carry_over

    model = rewriter.model
    prediction = model.predict_net(rewrite.net, rewriter.batch)
    measured = decision.measured if decision is not None else None
    card = CardFacts(
        device=model.device.name,
        setting=model.setting.label,
        batch=rewriter.batch,
        origin=found.name
        + (", its weights carried over" if found.traced is not None else ", which has no weights"),
        latency_model=model.name,
        latency_model_error=model.nets.held_out.get("mape"),
        predicted=Predicted(prediction.latency_ms, prediction.std_ms, prediction.in_range),
        measured=None
        if measured is None
        else Measured(measured.latency_us / 1e3, measured.spread_us / 1e3, measured.repeats),
    )
    data, epochs = tuning
    dataset = load_dataset(data, rewrite.net.input_shape) if data is not None else None
    module = None
    if found.traced is not None or dataset is not None:
        module = rewrite.net.to_module(seed)
    if found.traced is not None and module is not None:
        weights = carry_over(rewriter.flow, found.traced.weights, rewrite.changed, seed)
        module.load_state_dict(weights)
        module.eval()
    preprocess = sample = None
    if dataset is not None and module is not None:
        # Weights that were carried over are near where they should be; others are not.
        rate = _FINE_RATE if found.traced is not None else _RATE
        card = replace(card, trained=_tuned(module, dataset, epochs, seed, rate))
        preprocess, sample = dataset.preprocess(), dataset.splits["test"].images[:_SAMPLE]
    request = ExportRequest(
        rewrite.net, card, module=module, weights_seed=seed, preprocess=preprocess, sample=sample
    )
    export_network(folder, request)


def _tuned(module: nn.Module, dataset: Dataset, epochs: int, seed: int, rate: float) -> Trained:
    """Fine-tune a rewritten network; return what it reached on the test split."""
    from tadnn.accuracy import train
    from tadnn.export import Trained

    done = train(module, dataset, epochs=epochs, seed=seed, learning_rate=rate, progress=Bars())
    images = len(dataset.splits[done.split])
    return Trained(done.accuracy, done.epochs, done.split, images=images)
