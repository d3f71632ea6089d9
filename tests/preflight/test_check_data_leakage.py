"""A question of the evaluation set is found in training whatever stands around it; sound sets pass in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rows_made import chat, counts, write

from grpo_sentinel.preflight.data import DataOptions, check_data
from grpo_sentinel.preflight.report import CheckReport


def question(n: int) -> str:
    return f"Betty had {n} apples and gave away 3. How many are left?"


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def few_shot(text: str) -> list[dict[str, str]]:
    return [*user("What is 1 + 1, in words?"), {"role": "assistant", "content": "two"}, *user(text)]


FORMS: dict[str, Any] = {"plain": str, "user": user, "system and user": chat, "few shots": few_shot}


def found(folder: Path, train: list[Any], test: list[Any], jobs: int = 1) -> CheckReport:
    files = [write(folder / name, rows) for name, rows in (("train.jsonl", train), ("test.jsonl", test))]
    return check_data(files[:1], DataOptions(evaluation=(files[1],), jobs=jobs))


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("test", FORMS)
@pytest.mark.parametrize("train", FORMS)
def test_a_question_of_the_evaluation_set_is_found_in_every_form(
    train: str, test: str, jobs: int, tmp_path: Path
) -> None:
    rows = [{"prompt": FORMS[train](question(n)), "answer": str(n)} for n in range(40)]
    held = [{"prompt": FORMS[test](f" {question(n)} ".upper()), "answer": str(n)} for n in range(38, 60)]
    report = found(tmp_path, rows, held, jobs)
    assert counts(report) == {"leakage": 2}
    named = "the same question" in report.faults[0].message
    assert named is (train != test and {train, test} != {"plain", "user"})


def test_a_whole_conversation_is_found_in_the_evaluation_set(tmp_path: Path) -> None:
    rows = [{"messages": [*chat(question(n)), {"role": "assistant", "content": f"{n - 3}"}]} for n in range(20)]
    report = found(tmp_path, rows, rows[:3])
    assert counts(report) == {"leakage": 3}
    assert "same question" not in report.faults[0].message


SOUND: dict[str, tuple[list[Any], list[Any]]] = {
    "other questions under one system prompt": (
        [{"prompt": chat(question(n))} for n in range(40)], [{"prompt": chat(question(n))} for n in range(40, 60)],
    ),
    "a short last turn": (
        [{"prompt": [*few_shot(question(n)), {"role": "assistant", "content": "hm"}, *user("Go on.")]} for n in range(40)],
        [{"prompt": [*few_shot(question(n)), {"role": "assistant", "content": "hm"}, *user("Go on.")]} for n in (50, 51)],
    ),
    "one instruction about many documents": (
        [{"prompt": [{"role": "system", "content": f"Document {n}"}, *user("Summarise it.")]} for n in range(40)],
        [{"prompt": [{"role": "system", "content": f"Document {n}"}, *user("Summarise it.")]} for n in range(40, 60)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_sets_that_share_no_question_pass_in_silence(name: str, tmp_path: Path) -> None:
    assert found(tmp_path, *SOUND[name]).faults == ()
