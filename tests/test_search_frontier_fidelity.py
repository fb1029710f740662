"""Learning a dear objective from its cheaper versions."""

from __future__ import annotations

import numpy as np
import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState

from tadnn.search.entrants import Entrant, Plan, StageResult
from tadnn.search.frontier import STARTUP, Candidate, History, Proposer
from tadnn.search.frontier.fidelity import Layered, learned
from tadnn.search.frontier.parameters import ParameterCandidates
from tadnn.search.frontier.surrogate import Surrogate
from tadnn.search.stage_history import foreseen_losses, stage_history

SPACE = ParameterCandidates({f"x{i}": FloatDistribution(0.0, 1.0) for i in range(4)})


def points(n, seed):
    return SPACE.draw(np.random.default_rng(seed), n)


def dear(chosen):
    x = np.array([list(c.point.values()) for c in chosen])
    return (np.sin(3 * x[:, 0]) + x[:, 1] ** 2 + np.abs(x[:, 2] - 0.5))[:, None]


def cheap(chosen):
    """Another scale, and a little of another function."""
    x = np.array([list(c.point.values()) for c in chosen])
    return 50.0 - 20.0 * dear(chosen) + x[:, [3]]


def error(model, unseen):
    return float(np.abs(model.predict(SPACE.encode(unseen))[0] - dear(unseen)).mean())


def test_few_dear_values_are_foretold_by_many_cheap_ones():
    many, few, unseen = points(80, 0), points(10, 1), points(200, 2)
    below = Surrogate(SPACE.encode(many), cheap(many))
    alone = Surrogate(SPACE.encode(few), dear(few))
    model = learned(below, SPACE.encode(few), dear(few))
    assert isinstance(model, Layered)
    assert model.helps.tolist() == [True]
    assert error(model, unseen) < 0.5 * error(alone, unseen)
    mean, deviation = model.predict(SPACE.encode(unseen))
    z = np.abs(mean - dear(unseen)) / deviation
    assert (z < 2).mean() > 0.6  # it knows about how wrong it is


def test_three_levels():
    most, many, few, unseen = points(120, 0), points(30, 1), points(10, 2), points(200, 3)
    lowest = learned(None, SPACE.encode(most), np.exp(cheap(most) / 20))
    middle = learned(lowest, SPACE.encode(many), cheap(many))
    top = learned(middle, SPACE.encode(few), dear(few))
    alone = Surrogate(SPACE.encode(few), dear(few))
    assert error(top, unseen) < 0.5 * error(alone, unseen)


@pytest.mark.parametrize("seed", range(4))
def test_a_cheap_version_that_tells_nothing_does_no_harm(seed):
    many, few, unseen = points(80, seed), points(25, seed + 50), points(200, seed + 99)
    noise = np.random.default_rng(seed).normal(size=(80, 1))
    below = Surrogate(SPACE.encode(many), noise)
    alone = Surrogate(SPACE.encode(few), dear(few))
    model = learned(below, SPACE.encode(few), dear(few))
    assert error(model, unseen) <= 1.1 * error(alone, unseen)


def test_too_few_values_for_a_line_are_learned_alone():
    many, few = points(20, 0), points(3, 1)
    below = Surrogate(SPACE.encode(many), cheap(many))
    assert isinstance(learned(below, SPACE.encode(few), dear(few)), Surrogate)


def test_a_constant_cheap_version_is_of_no_use():
    few = points(10, 1)

    class Constant:
        def predict(self, points, roughly=False):
            return np.ones((len(points), 1)), np.zeros((len(points), 1))

    encoded = SPACE.encode(few)
    model = Layered(Constant(), encoded, dear(few), Surrogate(encoded, dear(few)))
    assert model.helps.tolist() == [False]


def latency(chosen):
    return [point["x0"] + point["x1"] for point in chosen]


def history(many, few):
    """All of ``many`` were seen by the cheap version, ``few`` of them by the dear one."""

    def values(chosen, function):
        known = np.array(latency([c.point for c in chosen]))[:, None]
        return np.hstack([known, function(chosen)])

    rest = [c for c in many if c not in few]
    return History(
        points=few,
        values=values(few, dear),
        feasible=np.ones(len(few), dtype=bool),
        lower=[(many, values(many, lambda c: -cheap(c)))],
        stopped=rest,
    )


def test_proposals_learn_from_what_was_stopped_early_and_take_nothing_twice():
    many = points(40, 5)
    known = history(many, many[:9])
    proposed = []
    for number in range(40, 43):
        proposer = Proposer(SPACE, 2, 0, {0: latency})
        proposed.append(proposer.propose(known, number))
        assert proposed[-1] == Proposer(SPACE, 2, 0, {0: latency}).propose(known, number)
    assert not {Candidate.of(p).key for p in proposed} & {c.key for c in many}
    blind = History(known.points, known.values, known.feasible, passed=known.stopped)
    other = Proposer(SPACE, 2, 0, {0: latency}).propose(blind, 40)
    assert other != proposed[0]


def test_what_trials_are_expected_to_reach():
    """The proxy misleads: it tells the opposite; where eight were trained, that is noticed."""
    plan = Plan((None, 2), (0.5,))
    chosen = points(40, 7)
    told = dear(chosen)[:, 0].tolist()
    x = latency([c.point for c in chosen])

    def known(trained):
        return [
            (
                Entrant(
                    i,
                    TrialState.WAITING,
                    int(i < trained),
                    {
                        0: StageResult((x[i], -told[i]), 0.0),
                        **({1: StageResult((x[i], told[i]), 1.0)} if i < trained else {}),
                    },
                ),
                candidate,
            )
            for i, candidate in enumerate(chosen)
        ]

    proposer = Proposer(SPACE, 2, 0, {0: latency})
    assert foreseen_losses(known(STARTUP - 1), plan, 0, proposer) is None
    assert foreseen_losses(known(12), plan, 1, proposer) is None
    foreseen = foreseen_losses(known(12), plan, 0, proposer)
    assert foreseen is not None
    assert set(foreseen) == set(range(40))
    for i in range(12):
        assert foreseen[i] == (x[i], told[i])  # what was trained is known
    others = range(12, 40)
    assert [foreseen[i][0] for i in others] == pytest.approx([x[i] for i in others])
    assert np.corrcoef([foreseen[i][1] for i in others], [told[i] for i in others])[0, 1] > 0.95


PLAN = Plan((None, 2, 10), (0.5, 0.5))


def entrants(counts):
    """``counts[i]`` trials that ended stage i at last; then one that runs and one that failed."""
    found = []
    for last, count in enumerate(counts):
        for _ in range(count):
            number = len(found)
            results = {
                s: StageResult((float(number), -s - number / 100), 0.0) for s in range(last + 1)
            }
            found.append(Entrant(number, TrialState.WAITING, last, results))
    found.append(Entrant(len(found), TrialState.RUNNING, 0, {}))
    found.append(Entrant(len(found), TrialState.FAIL, 0, {}))
    return found


@pytest.mark.parametrize(
    ("counts", "level"),
    [((20, 0, 0), 0), ((20, STARTUP - 1, 0), 0), ((20, STARTUP - 2, 2), 1), ((20, 9, STARTUP), 2)],
)
def test_the_search_is_for_the_dearest_stage_that_enough_have_ended(counts, level):
    known = [(e, Candidate.of({"x": e.number})) for e in entrants(counts)]
    told = stage_history(known, PLAN, 2)
    there = sum(counts[level:])
    assert told.values.shape == (there, 2)
    assert (np.floor(-told.values[:, 1]) == level).all()
    assert [len(values) for _, values in told.lower] == [sum(counts[s:]) for s in range(level)]
    assert len(told.stopped) == sum(counts[:level])
    assert [c.point["x"] for c in told.pending] == [sum(counts)]
    assert [c.point["x"] for c in told.failed] == [sum(counts) + 1]
    assert len(told.taken) == len(known)
