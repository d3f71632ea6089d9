"""What a score owes to its batch is told once, by its own name, with a remedy that fits a function."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpo_sentinel.preflight.look import Level
from grpo_sentinel.preflight.report import CheckReport
from grpo_sentinel.preflight.reward import check_reward

REWARDS = """
def good(completions, answer, **kw):
    return [float(c == a) for c, a in zip(completions, answer)]

def minus_mean(completions, answer, **kw):
    scores = good(completions, answer)
    return [one - sum(scores) / len(scores) for one in scores]

def by_rank(completions, answer, **kw):
    scores = good(completions, answer)
    return [float(sum(one >= other for other in scores)) for one in scores]

def by_place(completions, answer, **kw):
    return [one + 0.01 * place for place, one in enumerate(good(completions, answer))]

def by_size(completions, answer, **kw):
    return [one / len(completions) for one in good(completions, answer)]

def missing(completions, solution, **kw):
    return [1.0] * len(completions)

def by_key(completions, **kw):
    return [float(c == a) for c, a in zip(completions, kw["solution"])]

def defaulted(completions, answer, solution=None):
    return good(completions, answer)

def one_less(completions, answer, **kw):
    return good(completions, answer)[:-1]

def scalar(completions, answer, **kw):
    return 1.0

def nothing(completions, answer, **kw):
    good(completions, answer)

def table(completions, answer, **kw):
    return {"rewards": good(completions, answer)}

def verl_table(data_source, solution_str, ground_truth, extra_info=None):
    return {"reward": 1.0}

def other_order(completion, answer):
    return float(completion == answer)
"""


@pytest.fixture
def check(tmp_path: Path) -> object:
    (tmp_path / "batches.py").write_text(REWARDS)
    rows = ({"prompt": f"{n} + {n}?", "answer": str(2 * n), "level": 1, "data_source": "sums"} for n in range(2, 40))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return lambda name: check_reward(f"{tmp_path / 'batches.py'}:{name}", [str(tmp_path / "a.jsonl")])


def only(report: CheckReport, but: str = "") -> object:
    (fault,) = [one for one in report.faults if one.code != but]
    return fault


@pytest.mark.parametrize(("name", "code", "level"), [
    ("minus_mean", "company", Level.DOUBTFUL), ("by_rank", "company", Level.DOUBTFUL),
    ("by_place", "order", Level.BROKEN), ("by_size", "batch-size", Level.BROKEN),
])  # fmt: skip
def test_what_a_score_owes_to_its_batch_is_told_once_and_of_a_function_nothing_is_said_about_padding(
    check: object, name: str, code: str, level: Level
) -> None:
    report = check(name)  # type: ignore[operator]
    fault = only(report)
    assert (fault.code, fault.level) == (code, level)  # type: ignore[attr-defined]
    assert "by itself" in fault.remedy  # type: ignore[attr-defined]
    assert not any(word in fault.remedy for word in ("dropout", "padding", "attention"))  # type: ignore[attr-defined]
    assert any("by itself" in note for note in report.notes)


def test_where_nothing_is_left_to_compare_the_rest_is_not_said_to_have_been_looked_at(check: object) -> None:
    report = check("minus_mean")  # type: ignore[operator]
    assert any("canaries" in line and "by itself" in line for line in report.not_seen)
    assert not any("canaries" in line for line in report.looked_at)
    assert any("canaries" in line for line in check("by_place").looked_at)  # type: ignore[operator]


@pytest.mark.parametrize(("name", "code", "words", "remedy"), [
    ("missing", "missing-column", "it needs solution, and the data has no such column (it has answer, data_source, level, prompt)", "by name"),
    ("by_key", "raises", "raise", "no column solution (it has answer, data_source, level, prompt)"),
    ("one_less", "wrong-length", "1 reward for 2 completions", "leave none out"),
    ("scalar", "no-list", "one float", "a number for each completion"),
    ("nothing", "no-list", "it returned None", "no return"),
    ("table", "no-list", "a mapping", "the list itself"),
    ("verl_table", "no-list", "without score (it has reward)", "under score"),
])  # fmt: skip
def test_what_does_not_fit_has_a_remedy_that_does(check: object, name: str, code: str, words: str, remedy: str) -> None:
    fault = only(check(name), but="no-score")  # type: ignore[operator]
    assert fault.code == code  # type: ignore[attr-defined]
    assert words in fault.message  # type: ignore[attr-defined]
    assert remedy in fault.remedy  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["good", "defaulted", "other_order"])
def test_arguments_with_a_default_and_in_another_order_are_fine(check: object, name: str) -> None:
    assert check(name).faults == ()  # type: ignore[operator]
