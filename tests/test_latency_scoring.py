from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from latency_fakes import INPUT, small_space, space_model

from tadnn.errors import ArchitectureError, ShapeError
from tadnn.kernels import Kernel
from tadnn.latency import BlockScorer, LatencyModel, score
from tadnn.latency.nets import NetCalibration
from tadnn.nets import Add, BlockBuilder, Conv2d, Net, ReLU, block
from tadnn.spaces import load_space


@pytest.fixture
def model() -> LatencyModel:
    """A fresh one, which has seen nothing, calibrated so that every term counts."""
    shared = space_model()
    nets = NetCalibration(base_us=10.0, scale=1.1, gap_us=0.7, weights_us=300.0)
    return LatencyModel(shared.card, shared.ops, nets, shared.device)


def one_by_one(model: LatencyModel, nets: Sequence[Net], batch: int = 1) -> list[float]:
    return [model.predict_net(net, batch).latency_ms for net in nets]


def test_scores_are_what_is_predicted_net_by_net(model: LatencyModel) -> None:
    space = load_space("resnet")
    archs = space.sample(50, 3)
    scores = score(space, archs, model, input_shape=(3, 32, 32))
    nets = [space.build(arch, (3, 32, 32)) for arch in archs]
    np.testing.assert_allclose(scores, one_by_one(model, nets), rtol=1e-9)
    assert scores.shape == (50,)
    assert len(set(scores)) == 50


def test_the_spaces_own_input_is_the_default(model: LatencyModel) -> None:
    space = small_space()
    archs = space.sample(3, 0)
    large = [space.build(arch, (3, 224, 224)) for arch in archs]
    np.testing.assert_allclose(score(space, archs, model), one_by_one(model, large), rtol=1e-9)


def test_batches_and_inputs_are_kept_apart(model: LatencyModel) -> None:
    space = small_space()
    archs = space.sample(6, 0)
    for batch in (1, 4, 1):
        for shape in ((1, 16, 16), (1, 8, 24)):
            nets = [space.build(arch, shape) for arch in archs]
            got = score(space, archs, model, batch, shape)
            np.testing.assert_allclose(got, one_by_one(model, nets, batch), rtol=1e-9)
    assert set(model.scorers) == {1, 4}


def test_nothing_to_score(model: LatencyModel) -> None:
    assert score(small_space(), [], model).shape == (0,)
    assert BlockScorer(model).latency_ms([]).shape == (0,)


def test_known_blocks_are_not_predicted_again(
    model: LatencyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Kernel] = []
    predict = model.predict_us

    def recorded(kernels: Sequence[Kernel]) -> np.ndarray:
        asked.extend(kernels)
        return predict(kernels)

    monkeypatch.setattr(model, "predict_us", recorded)
    space = small_space()
    archs = space.sample(200, 1)
    first = score(space, archs, model, input_shape=INPUT)
    assert len(asked) == len(set(asked)) > 50
    count = len(asked)
    assert (score(space, archs[::-1], model, input_shape=INPUT)[::-1] == first).all()
    # Other architectures of blocks that were all seen: the stage depths and kernels cross over.
    assert len(asked) == count


@pytest.mark.parametrize(("blocks", "kernels"), [(3, 50_000), (50_000, 3), (1, 1), (40, 60)])
def test_forgetting_changes_nothing_but_what_is_kept(
    model: LatencyModel, blocks: int, kernels: int
) -> None:
    space = small_space()
    archs = space.sample(400, 2)
    expected = score(space, archs, model, input_shape=INPUT)
    fresh = model.on(model.device)
    fresh.scorers[1] = scorer = BlockScorer(fresh)
    scorer._blocks.most, fresh._costs.most = blocks, kernels
    most_blocks = most_kernels = 0
    for start in (0, 100, 0, 200, 300, 100):
        part = archs[start : start + 20]
        got = score(space, part, fresh, input_shape=INPUT)
        assert (got == expected[start : start + 20]).all()
        most_blocks = max(most_blocks, len(scorer._blocks))
        most_kernels = max(most_kernels, len(fresh._costs))
    # Two generations, each at most one request of 20 networks over its limit.
    per_net = max(len(space.build(arch, INPUT).blocks) for arch in archs)
    assert most_blocks <= 2 * (blocks + 20 * per_net)
    assert most_kernels <= 2 * (kernels + 20 * per_net * 9)
    distinct = len({(b, s) for a in archs for _, b, s, _ in space.build(a, INPUT).chain(1)})
    if blocks == 3:
        assert most_blocks < distinct, "some were forgotten"


def test_predicting_networks_survives_a_small_memory(model: LatencyModel) -> None:
    space = small_space()
    nets = [space.build(arch, INPUT) for arch in space.sample(30, 5)]
    expected = [model.predict_net(net) for net in nets]
    small = model.on(model.device)
    small._remembered.most = 2
    assert [small.predict_net(net) for net in nets] == expected
    assert len(small._remembered) < 200


@block
def steady(b: BlockBuilder, width: int) -> None:
    conv = b.add(Conv2d(width, 3), b.input, name="conv")
    b.add(Add(), conv, b.input, name="add")


@block
def shrinking(b: BlockBuilder) -> None:
    b.add(ReLU(), b.input, name="relu")
    b.add(Conv2d(8, 9, padding=0), name="wide")


@pytest.mark.parametrize("batch", [1, 2])
def test_shapes_that_do_not_fit_name_block_and_layer(model: LatencyModel, batch: int) -> None:
    good = Net((8, 12, 12), (("first", shrinking()),))
    bad = Net((8, 12, 12), (("first", shrinking()), ("second", shrinking())))
    scorer = BlockScorer(model, batch)
    expected = scorer.latency_ms([good])
    with pytest.raises(ShapeError, match=r"block second, layer wide \(Conv2d\).*window"):
        scorer.latency_ms([good, bad])
    assert scorer.latency_ms([good]) == expected, "the scorer is as good as before"


def test_channels_that_do_not_fit_name_block_and_layer(model: LatencyModel) -> None:
    net = Net((8, 4, 4), (("same", steady(8)), ("other", steady(16))))
    with pytest.raises(ShapeError, match=r"block other, layer add \(Add\)"):
        BlockScorer(model).latency_ms([net])


def test_what_is_no_architecture_is_refused(model: LatencyModel) -> None:
    space = small_space()
    archs = [*space.sample(2, 0), {"block": "basic", "widht1": 8}]
    with pytest.raises(ArchitectureError, match="depth1"):
        score(space, archs, model)
