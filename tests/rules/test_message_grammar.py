"""A message agrees with its number and its ranks."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from grpo_sentinel.rules import load_rules
from grpo_sentinel.rules.message import in_general, problem_of, write
from grpo_sentinel.rules.view import Verdict

_MANY = re.compile(
    r"\{(?:value|detail)\} (?:[\w-]+ )?(?!is\b|has\b|was\b|always\b|lies\b|exceeds\b|this\b|across\b|lengths\b)[a-z]{3,}s\b"
)
_MANY_RANKS = re.compile(r"^(?:only )?\{ranks\} (?:has|is|[a-z]{3,}s)\b")


def told(rule: str, value: float, ranks: tuple[int, ...] = (0,), detail: str = "") -> str:
    verdict = Verdict(bad=True, clear=False, value=value, detail=detail)
    return write(load_rules()[rule], verdict, step=5, onset=5, ranks=ranks, subject="accuracy")


@pytest.mark.parametrize(
    ("rule", "one", "many"),
    [
        ("reward_nonfinite", "1 sample has a reward that is NaN", "3 samples have a reward that is NaN"),
        ("reward_function_failing", "raised 1 time in", "raised 3 times in"),
        ("reward_model_training_mode", "1 dropout module of reward model accuracy is", "3 dropout modules of reward "),
        ("moments_nonfinite", "1 of the optimizer's moments is not finite", "3 of the optimizer's moments are not"),
    ],
)
def test_one_is_not_many(rule: str, one: str, many: str) -> None:
    names = {known.name for known in load_rules()}
    assert rule in names, sorted(names)
    assert one in told(rule, 1.0)
    assert many in told(rule, 3.0)
    assert many.replace("3", "0") in told(rule, 0.0)


def test_several_ranks_come_late_and_one_comes_late() -> None:
    late = next(rule for rule in load_rules() if "come" in rule.message and "step vote" in rule.message)
    assert told(late.name, 2.0, (1,)).startswith("rank 1 comes late")
    assert told(late.name, 2.0, (0, 3)).startswith("ranks 0 and 3 come late")
    assert told(late.name, 2.0, ()).startswith("rank not known comes late")


def test_no_built_in_message_speaks_of_one_thing_as_of_many() -> None:
    odd = [rule.message for rule in load_rules() if _MANY.search(rule.message) or _MANY_RANKS.search(rule.message)]
    assert odd == []


def test_a_template_names_what_cannot_be_read_in_it() -> None:
    assert problem_of("{value:row has|rows have} none") == ""
    assert "cannot be read" in problem_of("{value:.3f}")
    assert "cannot be read" in problem_of("{step:row|rows}")
    assert "cannot be read" in problem_of("{value:{limit}|rows}")
    assert "no plain field" in problem_of("{value!r}")
    assert "not a message template" in problem_of("{value")


def test_documents_show_a_message_for_many() -> None:
    assert in_general("{value:row has|rows have} {{x}} on {ranks}") == "{value} rows have {x} on {ranks}"
    rule = replace(next(iter(load_rules())), message="{value:a|b} {value:is|are}")
    assert in_general(rule.message) == "{value} b are"


def test_what_a_trainer_says_is_one_line_that_no_terminal_obeys() -> None:
    said = told("trainer_exception", 1.0, detail="bad\n  answer \x1b[2J\x07 é")
    assert "bad answer ?[2J? é" in said
