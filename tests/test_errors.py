from __future__ import annotations

import inspect

import pytest

from tadnn import errors
from tadnn.errors import RequestError, TadnnError, UnknownName, WorkFailed, near_matches

ALL = [
    item
    for _, item in inspect.getmembers(errors, inspect.isclass)
    if issubclass(item, TadnnError) and item.__module__ == errors.__name__
]


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_the_tree_in_the_docstring_lists_every_class_once(error: type[TadnnError]) -> None:
    words = (errors.__doc__ or "").replace("├──", "").replace("└──", "").split()
    assert words.count(error.__name__) == 1


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_exit_codes(error: type[TadnnError]) -> None:
    assert error.exit_code == (2 if issubclass(error, RequestError) else 1)


def test_work_failed_is_not_the_requests_fault() -> None:
    assert not issubclass(WorkFailed, RequestError)


def test_unknown_name_says_the_value_the_near_matches_and_the_choices() -> None:
    error = UnknownName("sampler", "nsga3", ["tpe", "nsga2", "random"])
    assert str(error) == (
        "unknown sampler 'nsga3'; did you mean 'nsga2'? Valid: nsga2, random, tpe."
    )
    assert (error.what, error.name, error.choices) == (
        "sampler",
        "nsga3",
        ["nsga2", "random", "tpe"],
    )


def test_unknown_name_without_a_near_match_or_any_choice() -> None:
    assert str(UnknownName("space", "zzz", [])).endswith("Valid: none.")
    assert "did you mean" not in str(UnknownName("space", "zzz", ["resnet"]))


def test_near_matches_ignore_case_keep_spelling_and_stop_at_three() -> None:
    assert near_matches("RESNET", ["ResNet", "vit"]) == ["ResNet"]
    assert len(near_matches("abcd", ["abcde", "abcdf", "abcdg", "abcdh"])) == 3
    assert near_matches("resnet", ["vit"]) == []
