"""Studies whose accuracy is a proxy that looks at gradients or draws weights."""

from __future__ import annotations

import pytest
from studies_examples import run, trial_facts, write_study

from tadnn.accuracy import evaluate_proxy, load_dataset
from tadnn.search import find_study
from tadnn.search.judges import arch_seed
from tadnn.search.target import resolve_trial


def test_a_study_with_zico_from_yaml_to_front(in_tmp_path):
    write_study(in_tmp_path, accuracy={"proxy": "zico"}, trials=3, finalists=None)
    spec, result = run()
    trials = find_study(spec).trials
    scores = [trial.user_attrs["tadnn:result"]["proxy"] for trial in trials]
    assert [score["name"] for score in scores] == ["zico"] * 3
    assert len({score["value"] for score in scores}) == 3
    assert [trial.values[1] for trial in trials] == [score["value"] for score in scores]
    best = max(score["value"] for score in scores)
    assert max(member["proxy"]["value"] for member in result.record["members"]) == best
    before = trial_facts(spec)
    _, again = run()
    assert trial_facts(spec) == before
    assert again.record == result.record


@pytest.mark.parametrize("proxy", ["snip", "grad_norm", "zen", "zico"])
def test_a_trials_score_can_be_computed_again(in_tmp_path, proxy):
    changes = {"latency_model": None, "objectives": ["parameters", "accuracy"]}
    write_study(in_tmp_path, **changes, accuracy={"proxy": proxy}, trials=2, finalists=None)
    spec, _ = run()
    digits = load_dataset("digits", (1, 16, 16))
    for trial in find_study(spec).trials:
        found = trial.user_attrs["tadnn:result"]
        net = resolve_trial(spec, trial.number).net
        module = net.to_module(arch_seed(spec.seed, found["key"]))
        value = evaluate_proxy(proxy, None, module, digits, spec.seed)
        assert found["proxy"] == {"name": proxy, "value": pytest.approx(value, rel=1e-6)}
