"""What a study of stages does next, worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from optuna.trial import TrialState
from search_fakes import make_spec

from tadnn.errors import SpecError
from tadnn.search.entrants import Entrant, Plan, StageResult
from tadnn.search.stage_budget import Purse
from tadnn.search.stages import MOST_WAITING, Begin, End, Go, Wait, next_step, order, surplus

WAITING, RUNNING, DONE = TrialState.WAITING, TrialState.RUNNING, TrialState.COMPLETE
#: A proxy, 2 epochs, 10 epochs.
PLAN = Plan((None, 2, 10), (0.5, 0.5))
STAGES = [
    {"proxy": "naswot", "keep": 0.25},
    {"train": {"epochs": 2}, "keep": 0.5},
    {"train": {"epochs": 10}},
]


def entrant(number, *losses, state=WAITING, stage=None, seconds=(), feasible=True, flops=100):
    """A trial that ended as many stages as it has losses (latency, minus accuracy)."""
    results = {
        i: StageResult(pair, seconds[i] if i < len(seconds) else 0.0)
        for i, pair in enumerate(losses)
    }
    stage = max(0, len(losses) - 1) if stage is None else stage
    return Entrant(number, state, stage, results, feasible, flops)


def step(entrants, wanted=8, plan=PLAN, exhausted=False):
    return next_step(plan, entrants, wanted, exhausted)


def test_the_order_is_by_rank_then_by_loneliness():
    losses = np.array(
        [
            (5.0, 5.0),  # behind two of the front
            (1.0, 9.0),  # an end of the front
            (2.0, 8.0),  # crowded: (3 - 1) / 8 + (9 - 6) / 8
            (3.0, 6.0),  # (9 - 2) / 8 + (8 - 1) / 8
            (9.0, 1.0),  # the other end
            (9.0, 1.0),  # its equal stands in the same rank
            (9.0, 9.0),  # behind all
        ]
    )
    # (5, 5) is dominated by none: it lies between (3, 6) and (9, 1).
    crowding = {2: 2 / 8 + 3 / 8, 3: 3 / 8 + 3 / 8, 0: 6 / 8 + 5 / 8}
    assert crowding[0] > crowding[3] > crowding[2]
    ranked = order(losses).tolist()
    assert set(ranked[:3]) <= {1, 4, 5}
    assert ranked[-1] == 6
    assert [i for i in ranked if i in crowding] == [0, 3, 2]
    assert sorted(ranked) == list(range(7))
    assert order(np.empty((0, 2))).tolist() == []
    assert order(np.array([(math.nan, 0.0), (1.0, 1.0), (math.inf, 0.0)])).tolist() == [1, 0, 2]


def test_new_trials_begin_while_no_share_is_full():
    assert step([]) == Begin()
    one = entrant(0, (1.0, -1.0))
    assert step([one]) == Begin()  # half of one is none
    two = [one, entrant(1, (2.0, -1.0))]
    assert step(two) == Go(0, 1)  # half of two is one, the better one
    promoted = [entrant(0, (1.0, -1.0), state=RUNNING, stage=1), two[1]]
    assert step(promoted) == Begin()


def test_what_is_foreseen_takes_the_place_of_what_was_told():
    entrants = [entrant(0, (1.0, -9.0)), entrant(1, (1.0, -1.0))]
    asked = []

    def foresee(stage):
        asked.append(stage)
        return {0: (1.0, -0.1), 1: (1.0, -0.9)} if stage == 0 else None

    assert next_step(PLAN, entrants, 8, False) == Go(0, 1)
    assert next_step(PLAN, entrants, 8, False, foresee) == Go(1, 1)
    assert asked == [0]
    assert next_step(PLAN, entrants, 8, False, lambda stage: None) == Go(0, 1)


def test_the_highest_stage_is_served_first():
    entrants = [
        entrant(0, (1.0, -5.0), (1.0, -0.5)),
        entrant(1, (2.0, -6.0), (2.0, -0.6)),
        entrant(2, (3.0, -7.0)),
        entrant(3, (4.0, -8.0)),
        entrant(4, (5.0, -9.0)),
        entrant(5, (6.0, -9.5)),
    ]
    # Half of six may be trained, a third one too; half of two may be trained longer.
    assert step(entrants) == Go(0, 2)
    entrants[0] = entrant(0, (1.0, -5.0), (1.0, -0.5), (1.0, -0.7), state=DONE)
    assert step(entrants).stage == 1


def test_no_stage_passes_on_more_than_its_share_whatever_comes_later():
    entrants = [entrant(0, (9.0, -1.0), state=RUNNING, stage=1)]
    entrants += [entrant(i, (5.0 - i, -2.0 - i)) for i in (1, 2)]
    assert step(entrants) == Begin()  # half of three is one, and one was promoted


@pytest.mark.parametrize("infeasible", [False, True])
def test_the_infeasible_are_neither_promoted_nor_counted(infeasible):
    entrants = (
        [entrant(0, (1.0, -9.0), state=TrialState.PRUNED, feasible=False)] if infeasible else []
    )
    entrants += [entrant(1, (2.0, -1.0))]
    assert step(entrants) == Begin()
    entrants += [entrant(2, (1.5, -1.0))]
    assert step(entrants) == Go(2, 1)


def test_at_rest_shares_are_rounded_up_and_at_least_one_goes_on():
    entrants = [entrant(i, (float(i), -float(i))) for i in range(3)]
    assert step(entrants, wanted=3).stage == 1
    once = [
        entrant(0, (0.0, 0.0), (0.0, -0.5)),
        entrant(1, (1.0, -1.0)),
        entrant(2, (2.0, -2.0), state=RUNNING, stage=1),
    ]
    assert step(once, wanted=3) == Wait()  # what runs may turn out better
    once[2] = entrant(2, (2.0, -2.0), (2.0, -0.6))
    assert step(once, wanted=3) == Go(0, 2)
    once[0] = entrant(0, (0.0, 0.0), (0.0, -0.5), (0.0, -0.7), state=DONE)
    assert step(once, wanted=3) == End("done")
    assert surplus(PLAN, once, ended=True) == [1, 2]
    assert surplus(PLAN, once) == []


def test_an_exhausted_space_is_at_rest():
    entrants = [entrant(0, (0.0, 0.0))]
    assert step(entrants, exhausted=True) == Go(0, 1)


def test_what_was_interrupted_comes_first():
    entrants = [
        entrant(0, (0.0, 0.0)),
        entrant(1, (1.0, -1.0), stage=1),
        entrant(2, (2.0, -2.0)),
        entrant(3),
    ]
    assert step(entrants) == Go(1, 1)
    entrants[1] = entrant(1, (1.0, -1.0), (1.0, -0.5))
    assert step(entrants) == Go(3, 0)
    assert step(entrants, wanted=3).stage == 1  # one that waits since the beginning isn't wanted


def test_a_trial_that_died_with_its_last_result_written_is_taken_up_to_be_told():
    entrants = [entrant(0, (0.0, 0.0), (0.0, -0.5), (0.0, -0.7))]
    assert step(entrants) == Go(0, 2)


def test_the_hopeless_are_stopped_early():
    entrants = [entrant(i, (float(i), float(i))) for i in range(MOST_WAITING + 3)]
    assert surplus(PLAN, entrants) == [MOST_WAITING, MOST_WAITING + 1, MOST_WAITING + 2]


def purse(entrants, minutes=1.0, plan=PLAN):
    return Purse(Plan(plan.epochs, plan.keep, 60.0 * minutes), entrants)


def test_a_training_is_reckoned_by_the_nearest_that_was_done():
    done = [
        entrant(0, (1.0, -1.0), (1.0, -0.5), seconds=(0, 4.0), flops=100),
        entrant(1, (1.0, -1.0), (1.0, -0.5), seconds=(0, 12.0), flops=10_000),
    ]
    known = purse(done)
    assert known.spent_s == 16.0
    assert known.left_s == 44.0
    assert known.cost_s(100, 0) == 0.0
    assert known.cost_s(100, 1) == 4.0
    assert known.cost_s(100, 2) == pytest.approx(20.0)
    assert known.cost_s(400, 1) == pytest.approx(4.0 * math.sqrt(4))
    assert known.cost_s(2500, 1) == pytest.approx(12.0 / math.sqrt(4))
    assert known.cost_s(0, 1) == pytest.approx(2 * (2.0 + 6.0) / 2)
    assert known.whole_cost_s(100, 1) == pytest.approx(24.0)
    assert purse([]).cost_s(100, 1) is None
    assert purse([]).whole_cost_s(100, 0) is None


def test_what_runs_is_committed_and_what_failed_was_paid_for():
    failed = Entrant(2, TrialState.FAIL, 1, {1: StageResult(None, 3.0)})
    entrants = [
        entrant(0, (1.0, -1.0), (1.0, -0.5), seconds=(0, 4.0)),
        entrant(1, (1.0, -1.0), state=RUNNING, stage=2),
        failed,
    ]
    known = purse(entrants)
    assert known.spent_s == 7.0
    assert known.left_s == pytest.approx(60 - 7 - 20)


def test_the_rest_of_the_way_is_kept_back_until_one_has_finished():
    first = entrant(0, (1.0, -1.0), (1.0, -0.5), seconds=(0, 4.0))
    tight = purse([first], minutes=20 / 60)
    assert not tight.affords(100, 1)  # 4 now and 20 later do not fit into 16
    assert not tight.affords(100, 2)
    assert purse([first], minutes=24 / 60).affords(100, 2)
    assert not purse([first], minutes=24 / 60).affords(100, 1)
    finished = entrant(0, (1.0, -1.0), (1.0, -0.5), (1.0, -0.6), seconds=(0, 4.0, 20.0))
    assert purse([finished], minutes=28 / 60).affords(100, 1)
    assert purse([finished], minutes=24 / 60).affords(100, 0)  # a proxy is free
    assert not purse([finished], minutes=24 / 60).affords(100, 1)
    assert purse([], minutes=1e-9).affords(100, 1)  # nobody knows yet


def test_a_budget_ends_the_search_and_passes_over_what_it_has_no_room_for():
    plan = Plan(PLAN.epochs, PLAN.keep, 34.0)
    entrants = [
        entrant(0, (1.0, -9.0), (1.0, -0.5), (1.0, -0.6), seconds=(0, 4.0, 20.0), state=DONE),
        entrant(1, (0.5, -20.0), flops=10_000),
        entrant(2, (9.0, -1.0), flops=100),
        entrant(3, (9.5, -1.0), flops=100),
    ]
    # 10 seconds are left; the best takes 40, the next one 4.
    assert step(entrants, plan=plan) == Go(2, 1)
    entrants[2] = entrant(2, (9.0, -1.0), (9.0, -0.2), seconds=(0, 8.0))
    assert step(entrants, plan=plan) == Begin()  # half of four were promoted, and more may come
    entrants.append(entrant(4, (0.4, -30.0), flops=10_000))
    entrants.append(entrant(5, (0.3, -40.0), flops=10_000))
    assert step(entrants, plan=plan) == End("budget")


def test_an_empty_front_is_reason_to_look_for_something_smaller():
    plan = Plan(PLAN.epochs, PLAN.keep, 30.0)
    entrants = [
        entrant(0, (1.0, -9.0), (1.0, -0.5), seconds=(0, 8.0)),
        entrant(1, (2.0, -9.5), (2.0, -0.6), seconds=(0, 8.0)),
        *(entrant(i, (float(i), -9.0 - i)) for i in (2, 3)),
    ]
    assert step(entrants, plan=plan) == Begin()  # 14 are left, a longer one takes 40
    assert step(entrants, plan=plan, wanted=4) == End("budget")
    small = [*entrants, *(entrant(i, (0.1, -9.0), flops=1) for i in (4, 5))]
    assert step(small, plan=plan) == Go(4, 1)  # 48 s at 100 FLOPs, a tenth of them at 1


def test_one_stage_with_a_budget():
    plan = Plan((2,), (), 10.0)
    assert step([], plan=plan) == Begin()
    done = entrant(0, (1.0, -0.5), seconds=(6.0,), state=DONE)
    assert step([done], plan=plan) == End("budget")
    assert step([done], plan=Plan((2,), (), 20.0)) == Begin()
    assert step([done], wanted=1, plan=Plan((2,), (), 20.0)) == End("done")


def spec_of(tmp_path, **changes):
    return make_spec(
        tmp_path, **{"accuracy": None, "sampler": "frontier", "stages": STAGES, **changes}
    )


def test_the_plan_of_a_study(tmp_path):
    spec = spec_of(tmp_path, budget={"train_minutes": 1.5})
    assert Plan.of(spec) == Plan((None, 2, 10), (0.25, 0.5), 90.0)
    assert spec.proxy == "naswot"
    assert spec.trains
    assert Plan.of(make_spec(tmp_path)) is None
    trained = {"accuracy": {"train": {"epochs": 3}}}
    assert Plan.of(make_spec(tmp_path, **trained)) is None
    budget = make_spec(tmp_path, **trained, budget={"train_minutes": 2})
    assert Plan.of(budget) == Plan((3,), (), 120.0)
    assert "stages" not in make_spec(tmp_path).canonical()
    assert spec.frozen()["stages"][0] == {"proxy": "naswot", "keep": 0.25}
    assert "budget" not in spec.frozen()


def trains(*epochs, keep=0.5):
    last = len(epochs) - 1
    return [
        {"train": {"epochs": e}, **({} if i == last else {"keep": keep})}
        for i, e in enumerate(epochs)
    ]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"stages": []}, "stages are two or more; one alone is the key 'accuracy'; received 0"),
        ({"stages": trains(2)}, "stages are two or more.*received 1"),
        ({"stages": trains(5, 2)}, r"more epochs than the one before; received \[5, 2\]"),
        ({"stages": trains(2, 2)}, r"more epochs than the one before; received \[2, 2\]"),
        ({"stages": [STAGES[1], {"proxy": "zen"}]}, "only the first of the stages may be a proxy"),
        ({"stages": [{"proxy": "zen"}, STAGES[2]]}, "which share goes on: 'keep'"),
        ({"stages": [*STAGES[:2], {**STAGES[2], "keep": 0.5}]}, "has no 'keep'; received 0.5"),
        ({"stages": trains(1, 2, keep=0)}, r"stages.0.keep must be greater than 0; received 0"),
        ({"stages": trains(1, 2, keep=1.5)}, "must be less than or equal to 1; received 1.5"),
        ({"stages": trains(1, 2, keep=math.nan)}, "stages.0.keep must be finite; received nan"),
        ({"stages": trains(math.inf, 2)}, "stages.0.train.epochs must be"),
        ({"stages": trains(1.5, 2)}, "stages.0.train.epochs must be a whole number"),
        ({"stages": trains(0, 2)}, "stages.0.train.epochs must be a whole number, at least 1"),
        ({"stages": [{"keep": 0.5}, STAGES[2]]}, "stages.0 takes exactly one of proxy and train"),
        ({"stages": [{"proxi": "zen"}, STAGES[2]]}, "stages.0.proxi; did you mean 'proxy'"),
        ({"budget": {"train_minutes": 0}}, "train_minutes must be greater than 0; received 0"),
        ({"budget": {"train_minutes": -3}}, "must be greater than 0; received -3"),
        ({"budget": {"train_minutes": math.nan}}, "train_minutes must be finite; received nan"),
        ({"budget": {"train_minutes": math.inf}}, "train_minutes must be finite; received inf"),
        ({"budget": {"train_minutes": "half an hour"}}, "must be a number"),
        ({"budget": {"minutes": 3}}, "unknown key budget.minutes"),
        ({"budget": {}}, "the key 'budget.train_minutes' is required"),
        ({"accuracy": {"proxy": "zen"}}, "leave out the key 'accuracy'"),
        ({"sampler": "nsga2"}, "frontier or random; received 'nsga2'"),
        ({"objectives": ["latency", "flops"]}, "stages need the objective accuracy"),
        ({"dataset": None}, "accuracy by training needs the key 'dataset'"),
        (
            {"stages": None, "accuracy": {"proxy": "zen"}, "budget": {"train_minutes": 3}},
            "a budget of training needs 'stages', or accuracy by training",
        ),
    ],
)  # fmt: skip
def test_stages_that_make_no_sense_are_refused(tmp_path, changes, says):
    with pytest.raises(SpecError, match=says):
        spec_of(tmp_path, **changes)


def test_an_unknown_proxy_of_a_stage_is_refused(tmp_path):
    from tadnn.search.names import require_names

    stages = [{"proxy": "zicco", "keep": 0.5}, *STAGES[1:]]
    with pytest.raises(SpecError, match=r"stages\.0\.proxy: .*'zicco'; did you mean 'zico'"):
        require_names(spec_of(tmp_path, stages=stages))
