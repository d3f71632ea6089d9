"""Every built-in rule has a case that fires and one that stays quiet, as data in tests/rules/cases/."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_sentinel.rules import load_rules
from grpo_sentinel.rules.cases import Case, read_cases, run_case

FOLDER = Path(__file__).parent / "cases"
CASES = [case for file in sorted(FOLDER.glob("*.yaml")) for case in read_cases(file.read_text(), file.name)]
RULES = load_rules()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_the_case_ends_as_its_file_says(case: Case) -> None:
    assert not run_case(case, RULES)


def test_every_rule_has_a_case_that_fires_and_one_that_is_silent() -> None:
    fired = {case.rule for case in CASES if case.fires}
    silent = {case.rule for case in CASES if not case.fires}
    assert {rule.name for rule in RULES if rule.enabled} - fired == set()
    assert {rule.name for rule in RULES} - silent == set()


def test_no_case_speaks_of_a_rule_that_does_not_exist() -> None:
    assert {case.rule for case in CASES} <= {rule.name for rule in RULES}


def test_a_case_whose_expectation_is_wrong_says_so() -> None:
    body = {"series": {"reward.nonfinite": "0x3 1"}, "expect": {"step": 3}}
    problems = run_case(Case("file: x fires", "reward_nonfinite", True, body), RULES)
    assert problems == ["file: x fires: expected step 3, got 4"]
