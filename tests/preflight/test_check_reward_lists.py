"""A reward that pays for a list of answers is told; graders that take one answer are left alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpo_sentinel.preflight.report import CheckReport
from grpo_sentinel.preflight.reward import RewardOptions, check_reward
from grpo_sentinel.preflight.reward_enumeration import listings
from grpo_sentinel.preflight.reward_target import Sample

GRADERS = r"""
import difflib, re

def boxes(text):
    return re.findall(r"\\boxed\{([^}]*)\}", text)

def final(answer):
    return answer.split("####")[-1].strip()

def each(grade):
    def reward(completions, answer, **kw):
        return [float(grade(c, final(a))) for c, a in zip(completions, answer)]
    return reward

contains = each(lambda c, a: a in c)
any_box = each(lambda c, a: a in boxes(c))
in_the_box = each(lambda c, a: any(a in one for one in boxes(c)))
any_number = each(lambda c, a: a in re.findall(r"\d+", c))
contains_with_bonus = each(lambda c, a: 0.9 * (a in c) + 0.1 * (len(c) < 60))
any_option = each(lambda c, a: a in re.findall(r"\b[A-E]\b", c))

first_box = each(lambda c, a: boxes(c)[:1] == [a])
last_box = each(lambda c, a: boxes(c)[-1:] == [a])
one_box = each(lambda c, a: boxes(c) == [a])
partial = each(lambda c, a: 0.1 * bool(boxes(c)) + 0.9 * (boxes(c)[-1:] == [a]))
last_number = each(lambda c, a: re.findall(r"\d+", c)[-1:] == [a])
first_number = each(lambda c, a: re.findall(r"\d+", c)[:1] == [a])
last_option = each(lambda c, a: re.findall(r"\b[A-E]\b", c)[-1:] == [a])
first_option = each(lambda c, a: re.findall(r"\b[A-E]\b", c)[:1] == [a])
exact = each(lambda c, a: c.strip() == a)
alike = each(lambda c, a: difflib.SequenceMatcher(None, c, a).ratio())
yes_or_no = each(lambda c, a: c.lower().split()[-1:] == [a])
"""


@pytest.fixture
def graders(tmp_path: Path) -> str:
    path = tmp_path / "graders.py"
    path.write_text(GRADERS)
    return str(path)


def write(path: Path, answers: list[str]) -> str:
    rows = ({"prompt": f"Question {n}, please?", "answer": answer} for n, answer in enumerate(answers))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


NUMBERS = [str(37 * n % 190 + 5) for n in range(20)]
OPTIONS = [*"BCADECBADDEABCDACBEE"]
CITIES = ["Paris", "Rome", "Bonn", "Oslo", "Lima", "Kyiv", "Bern", "Riga", "Doha", "Baku"] * 2
SOLUTIONS = [f"She had {n} and got {2 * n + 1}.\nTogether {3 * n + 1}\n#### {3 * n + 1}" for n in range(11, 31)]
BOX = r"The answer is \boxed{{answer}}."


def told(report: CheckReport) -> list[tuple[str, str]]:
    return [(fault.code, fault.subject) for fault in report.faults]


@pytest.mark.parametrize(("name", "answers", "template"), [
    ("contains", NUMBERS, "{answer}"), ("contains", CITIES, "It is {answer}, I think."), ("contains", OPTIONS, "{answer}"),
    ("any_box", NUMBERS, BOX), ("in_the_box", CITIES, BOX), ("any_number", NUMBERS, "<answer>{answer}</answer>"),
    ("contains_with_bonus", NUMBERS, "{answer}"), ("any_option", OPTIONS, "Option {answer}"),
])  # fmt: skip
def test_a_reward_that_a_list_of_answers_satisfies_is_told(
    graders: str, tmp_path: Path, name: str, answers: list[str], template: str
) -> None:
    report = check_reward(f"{graders}:{name}", [write(tmp_path / "a.jsonl", answers)], RewardOptions(template=template))
    assert ("canary-wins", "many answers") in told(report)
    fault = next(one for one in report.faults if one.subject == "many answers")
    assert "last" in fault.remedy
    assert fault.count == 20


def test_of_a_field_with_whole_solutions_the_list_holds_the_final_answers(graders: str, tmp_path: Path) -> None:
    data = write(tmp_path / "a.jsonl", SOLUTIONS)
    assert ("canary-wins", "many answers") in told(check_reward(f"{graders}:contains", [data]))
    assert told(check_reward(f"{graders}:last_number", [data])) == []


@pytest.mark.parametrize(("name", "answers", "template"), [
    ("first_box", NUMBERS, BOX), ("last_box", NUMBERS, BOX), ("one_box", CITIES, BOX), ("partial", NUMBERS, BOX),
    ("last_number", NUMBERS, "<answer>{answer}</answer>"), ("first_number", NUMBERS, "{answer}"),
    ("last_option", OPTIONS, "Option {answer}"), ("first_option", OPTIONS, "{answer}"), ("exact", CITIES, "{answer}"),
    ("yes_or_no", ["yes", "no"] * 10, "{answer}"),
])  # fmt: skip
def test_a_grader_that_takes_one_answer_is_left_alone(
    graders: str, tmp_path: Path, name: str, answers: list[str], template: str
) -> None:
    report = check_reward(f"{graders}:{name}", [write(tmp_path / "a.jsonl", answers)], RewardOptions(template=template))
    assert told(report) == []


def test_a_grader_by_likeness_pays_little_for_a_list(graders: str, tmp_path: Path) -> None:
    report = check_reward(f"{graders}:alike", [write(tmp_path / "a.jsonl", CITIES)])
    assert "many answers" not in {subject for _, subject in told(report)}


def test_lists_keep_the_form_of_gold_and_put_the_answer_in_the_middle() -> None:
    gold = Sample(prompt=[], completion=r"So 7 it is: \boxed{7}. Done", answer="7")
    texts = listings(gold, ["7", "12", "15", "20"])
    assert len(texts) == 4
    for text in texts:
        assert text.endswith(". Done")
        assert "7" in text
        assert text.startswith("So 12 it is: ")  # the answer stands in the list alone
        assert r"\boxed{7}. Done" not in text
    assert r"So 12 it is: \boxed{12} \boxed{7} \boxed{15} \boxed{20}. Done" in texts
    assert r"So 12 it is: \boxed{12, 7, 15, 20}. Done" in texts


@pytest.mark.parametrize("answer", ["", "assert f(1) == 2\nassert f(2) == 3", "x" * 61, "nowhere"])
def test_what_cannot_stand_in_a_list_makes_none(answer: str) -> None:
    assert listings(Sample(prompt=[], completion="text", answer=answer), ["1", "2", "3"]) == []
