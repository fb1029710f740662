"""Searching for the front: surrogates for what is dear, exact values for what is cheap."""

from tadnn.search.frontier.candidates import Candidate, SpaceCandidates
from tadnn.search.frontier.judging import History
from tadnn.search.frontier.proposing import STARTUP, Measure, Proposer
from tadnn.search.frontier.sampler import Exhausted, FrontierSampler, history_of, signed, signs_of

__all__ = [
    "STARTUP",
    "Candidate",
    "Exhausted",
    "FrontierSampler",
    "History",
    "Measure",
    "Proposer",
    "SpaceCandidates",
    "history_of",
    "signed",
    "signs_of",
]
