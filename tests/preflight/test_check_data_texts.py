"""Roles, pairs, answers, unseen characters and text in place of numbers: what is wrong is told, what only looks so is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rows_made import chat, counts, good, write

from grpo_sentinel.preflight.data import DataOptions, check_data
from grpo_sentinel.preflight.data_faults import KINDS


def with_one(prompt: Any) -> list[Any]:
    return [*good(), {"prompt": prompt, "answer": "1", "reward": 1.0}]


ODD: dict[str, tuple[str, list[Any]]] = {
    "a role that is misspelled": ("odd-role", with_one([{"role": "usr", "content": "What is 4?"}])),
    "a role in capitals": ("odd-role", with_one([{"role": "User", "content": "What is 4?"}])),
    "a system message alone": ("no-question", with_one([{"role": "system", "content": "What is 4?"}])),
    "zero-width space": ("invisible", with_one("What is\u200b 4?")),
    "byte order mark": ("invisible", with_one("\ufeffWhat is 4?")),
    "override of direction": ("invisible", with_one(chat("What is \u202e4?"))),
    "override in Hebrew": ("invisible", with_one("\u05e9\u05dc\u05d5\u05dd \u202eabc")),
    "isolate in English": ("invisible", with_one("What is \u20664\u2069?")),
    "joiner within a Latin word": ("invisible", with_one("pass\u200dword")),
    "hidden tags": ("invisible", with_one("hi\U000e0068\U000e0069")),
    "in Chinese": ("invisible", with_one("小明\u200b有4个苹果")),
}


@pytest.mark.parametrize("name", ODD)
def test_one_odd_row_among_good_ones_is_found_and_its_line_is_named(name: str, tmp_path: Path) -> None:
    code, rows = ODD[name]
    report = check_data([path := write(tmp_path / "a.jsonl", rows)])
    assert counts(report) == {code: 1}
    assert report.faults[0].examples[0].startswith(f"{path}:41")
    assert report.faults[0].remedy == KINDS[code].remedy


RIGHT: dict[str, Any] = {
    "family emoji": "\U0001f468\u200d\U0001f469\u200d\U0001f467 and \u2764\ufe0f\u200d\U0001f525",
    "flag of Scotland": "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
    "Persian": "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
    "Hindi": "\u0915\u094d\u200d\u0937 \u0915\u094d\u200c\u0937",
    "Thai": "\u0e20\u0e32\u0e29\u0e32\u200b\u0e44\u0e17\u0e22",
    "Khmer": "\u1797\u17b6\u179f\u17b6\u200b\u1781\u17d2\u1798\u17c2\u179a",
    "Arabic with isolates": "\u0645\u0631\u062d\u0628\u0627 \u2067abc\u2069 \u200f!",
    "Chinese": "小明有36个苹果，\n请问？\u3000",
    "French": "C\u2019est \u00ab\u202fbon\u202f\u00bb\u00a0!",
    "a call of a tool": [
        *chat("time?"), {"role": "assistant", "content": ""}, {"role": "tool", "content": "12"},
        {"role": "developer", "content": "short"}, {"role": "user", "content": "so?"},
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_characters_and_roles_in_their_right_use_pass_in_silence(name: str, tmp_path: Path) -> None:
    assert check_data([write(tmp_path / "a.jsonl", with_one(RIGHT[name]))]).faults == ()


def pairs(same: Any) -> list[Any]:
    rows: list[Any] = [{"prompt": f"{n}?", "chosen": f"{n}", "rejected": f"not {n}"} for n in range(20)]
    return [*rows, {"prompt": "x?", "chosen": same, "rejected": same}]


@pytest.mark.parametrize("same", ["yes", [{"role": "assistant", "content": "yes"}]])
def test_a_pair_that_prefers_nothing_is_found(same: Any, tmp_path: Path) -> None:
    report = check_data([write(tmp_path / "a.jsonl", pairs(same))])
    assert counts(report) == {"same-pair": 1}
    assert ":21" in report.faults[0].examples[0]


@pytest.mark.parametrize("jobs", [1, 2])
def test_one_answer_in_all_rows_is_told_with_the_answer(jobs: int, tmp_path: Path) -> None:
    rows = [{"prompt": chat(f"What is {n} + 1?"), "answer": "42"} for n in range(40)]
    report = check_data([write(tmp_path / "a.jsonl", rows)], DataOptions(jobs=jobs))
    assert counts(report) == {"constant-answer": 1}
    assert "40 times '42'" in report.faults[0].message


ANSWERS: dict[str, list[Any]] = {
    "one other answer": [{"prompt": f"{n}?", "answer": "a" if n else "b"} for n in range(60)],
    "completions of a few prompts": [
        {"prompt": f"{n % 4}?", "completion": f"{n}", "answer": "42"} for n in range(60)
    ],
    "too few to tell": [{"prompt": f"{n}?", "answer": "42"} for n in range(20)],
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_that_differ_or_belong_to_few_prompts_pass_in_silence(name: str, tmp_path: Path) -> None:
    assert check_data([write(tmp_path / "a.jsonl", ANSWERS[name])]).faults == ()


def test_rewards_written_as_text_are_no_numbers_where_the_format_has_numbers(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}?", "completion": f"{n}", "reward": f"{n % 2}.0"} for n in range(40)]
    assert counts(check_data([write(tmp_path / "a.jsonl", rows)])) == {"reward-not-a-number": 40}
    (tmp_path / "a.json").write_text(json.dumps(rows))
    assert counts(check_data([str(tmp_path / "a.json")])) == {"reward-not-a-number": 40}
    table = "prompt,completion,reward\n" + "".join(f"{n}?,{n},{n % 2}.0\n" for n in range(40))
    (tmp_path / "a.csv").write_text(table)
    assert check_data([str(tmp_path / "a.csv")]).faults == ()


def test_a_field_that_trl_does_not_read_is_a_note(tmp_path: Path) -> None:
    rows = [{"question": f"{n}?", "answer": f"{n}"} for n in range(40)]
    report = check_data([write(tmp_path / "a.jsonl", rows)])
    assert report.faults == ()
    assert [note for note in report.notes if "question" in note and "TRL" in note]
    assert check_data([write(tmp_path / "b.jsonl", good())]).notes == ()
