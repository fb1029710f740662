"""Searching: study files, samplers, workers, fronts."""

from optuna import Study

from tadnn.search.choosing import best_within, knee_trial
from tadnn.search.finalists import prediction_check, trained_module
from tadnn.search.front import front_csv, front_record, infeasible_warning
from tadnn.search.frontier import Exhausted, FrontierSampler
from tadnn.search.gather import export_request
from tadnn.search.learned import SAMPLED_NETS, extend_space, learn_space, study_latency_model
from tadnn.search.load import load_spec, parse_spec
from tadnn.search.objective import Evaluator, Outcome, build_evaluator, pack_net, unpack_net
from tadnn.search.proxy_choice import proxy_records, proxy_values, recommend, sample_agreement
from tadnn.search.proxy_list import ArchList, read_archs
from tadnn.search.proxy_scores import Scored, Task, score_all
from tadnn.search.reading import finalist_facts, has_results, read_study, study_progress
from tadnn.search.run import SearchResult, run_search, search, study_space, write_front
from tadnn.search.runner import Worker
from tadnn.search.sampler import DistinctSampler
from tadnn.search.screening import Screened, screen
from tadnn.search.spec import StudySpec, physical_cores, study_folder, study_storage
from tadnn.search.storage import find_study, frozen_model
from tadnn.search.taking import Ended
from tadnn.search.target import Target, resolve_target, resolve_trial
from tadnn.search.trials import evaluated_trial, trial_records

__all__ = [
    "SAMPLED_NETS",
    "ArchList",
    "DistinctSampler",
    "Ended",
    "Evaluator",
    "Exhausted",
    "FrontierSampler",
    "Outcome",
    "Scored",
    "Screened",
    "SearchResult",
    "Study",
    "StudySpec",
    "Target",
    "Task",
    "Worker",
    "best_within",
    "build_evaluator",
    "evaluated_trial",
    "export_request",
    "extend_space",
    "finalist_facts",
    "find_study",
    "front_csv",
    "front_record",
    "frozen_model",
    "has_results",
    "infeasible_warning",
    "knee_trial",
    "learn_space",
    "load_spec",
    "pack_net",
    "parse_spec",
    "physical_cores",
    "prediction_check",
    "proxy_records",
    "proxy_values",
    "read_archs",
    "read_study",
    "recommend",
    "resolve_target",
    "resolve_trial",
    "run_search",
    "sample_agreement",
    "score_all",
    "screen",
    "search",
    "study_folder",
    "study_latency_model",
    "study_progress",
    "study_space",
    "study_storage",
    "trained_module",
    "trial_records",
    "unpack_net",
    "write_front",
]
