"""Prompts alone: a reward that reads no answer is tried on completions made for it, and what needs gold is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_sentinel.cli import main
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.apart import reward_apart
from grpo_sentinel.preflight.data_shapes import Fields
from grpo_sentinel.preflight.everything import AllOptions, AllReport, check_everything
from grpo_sentinel.preflight.report import CheckReport
from grpo_sentinel.preflight.reward import RewardOptions, check_reward
from grpo_sentinel.preflight.reward_made import canaries_for, made_for
from grpo_sentinel.preflight.reward_target import Sample

REWARDS = """
import math, os, random, re

def vowels(completions, **kw):
    return [sum(c in "aeiou" for c in x) / max(1, len(x)) for x in completions]

def near(completions, want, **kw):
    return [-abs(len(c) - 3 * w) / 30 for c, w in zip(completions, want)]

def letters(completions, **kw):
    return [float(len(set(c))) for c in completions]

def about_20(completions, **kw):
    return [-abs(20.0 - len(c)) for c in completions]

def capped(completions, **kw):
    return [min(len(c), 200) / 200 for c in completions]

def tagged(completions, **kw):
    return [float(bool(re.fullmatch("<think>.*</think>\\\\s*<answer>.*</answer>", c, re.S))) for c in completions]

def unheard_of(completions, **kw):
    return [float(c.startswith("<zz>")) for c in completions]

def new_words(completions, **kw):
    return [len(set(c.split())) / max(1, len(c.split())) for c in completions]

def openrlhf(queries, prompts, labels):
    return [float(q.endswith(".")) for q in queries]

def verl(data_source, solution_str, ground_truth, extra_info=None):
    return float(solution_str.endswith("."))

def longer(completions, **kw):
    return [float(len(c)) for c in completions]

def shorter(completions, **kw):
    return [-float(len(c)) for c in completions]

def drawn(completions, **kw):
    return [random.random() for c in completions]

def nan_for_empty(completions, **kw):
    return [v if c else math.nan for c, v in zip(completions, vowels(completions))]

def divides(completions, **kw):
    return [1 / len(c) for c in completions]

def minus_mean(completions, **kw):
    found = vowels(completions)
    return [one - sum(found) / len(found) for one in found]

def empty_wins(completions, **kw):
    return [v if c.strip() else 1.0 for c, v in zip(completions, vowels(completions))]

def the_wins(completions, **kw):
    return [c.split().count("the") / max(1, len(c.split())) for c in completions]

def ends(completions, **kw):
    return vowels(completions) if all(completions) else os._exit(3)

def one(completions, **kw):
    return [1.0]

def lacking(completions, level, **kw):
    return [1.0] * len(completions)

def own(prompt, completion, answer):
    return float(int(answer) == len(completion))
"""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rewards, and 30 prompts with a column whose name nobody knows."""
    (tmp_path / "rewards.py").write_text(REWARDS)
    rows = ({"prompt": f"Write about cloud number {n}:", "want": 5 + n % 7} for n in range(30))
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def checked(name: str, **options: Any) -> CheckReport:
    return check_reward(f"rewards.py:{name}", ["train.jsonl"], RewardOptions(**options))


@pytest.mark.parametrize(
    "name", ["vowels", "near", "letters", "about_20", "capped", "tagged", "unheard_of", "new_words", "openrlhf", "verl"]
)  # fmt: skip
def test_a_sane_reward_that_needs_no_answer_passes_on_prompts_alone(world: Path, name: str) -> None:
    report = checked(name)
    assert report.faults == ()
    assert any("canaries: empty, repeated token" in one for one in report.looked_at)


@pytest.mark.parametrize(
    ("name", "code", "about"),
    [
        ("longer", "length", ""),
        ("shorter", "canary-wins", "empty"),
        ("drawn", "nondeterministic", ""),
        ("nan_for_empty", "not-finite", ""),
        ("divides", "raises", ""),
        ("minus_mean", "company", ""),
        ("empty_wins", "canary-wins", "empty"),
        ("the_wins", "canary-wins", "repeated token"),
        ("one", "wrong-length", ""),
        ("lacking", "missing-column", ""),
    ],
)
def test_what_needs_no_gold_is_still_found(world: Path, name: str, code: str, about: str) -> None:
    assert (code, about) in {(one.code, one.subject) for one in checked(name).faults}


def test_a_reward_that_ends_the_process_at_an_empty_completion_is_told_with_that_input(world: Path) -> None:
    report = reward_apart("rewards.py:ends", ["train.jsonl"], RewardOptions())
    assert [one.code for one in report.faults] == ["ends-process"]
    assert "train.jsonl:1, empty" in report.faults[0].message


def test_what_gold_would_show_is_one_line_that_names_the_column_which_may_hold_it(world: Path, capsys: Any) -> None:
    assert main(["check", "reward", "rewards.py:near", "--data", "train.jsonl"]) == 0
    lines = [one for one in capsys.readouterr().out.splitlines() if "not seen" in one]
    assert len(lines) == 1
    assert "typos" in lines[0]
    assert "want may be it (check reward --answer want)" in lines[0]


def test_a_function_that_takes_an_answer_is_told_that_there_is_none(world: Path) -> None:
    fault = next(one for one in checked("own").faults if one.code == "raises")
    assert "takes an answer (answer), and the data has none; want may be it" in fault.remedy


def test_scores_that_are_all_the_same_are_not_seen_apart_and_no_fault(world: Path) -> None:
    assert any("tell completions apart" in one for one in checked("unheard_of").not_seen)


def test_a_named_field_that_is_empty_in_every_row_is_still_refused(world: Path) -> None:
    (world / "train.jsonl").write_text('{"prompt": "a", "want": ""}\n{"prompt": "b", "want": ""}\n')
    with pytest.raises(SentinelError, match="0 samples with a prompt and a response or answer"):
        check_reward("rewards.py:vowels", ["train.jsonl"], RewardOptions(fields=Fields(answer="want")))


def test_check_all_on_prompts_alone_finds_nothing_in_the_reward(world: Path) -> None:
    report = check_everything(AllOptions(data=("train.jsonl",), reward="rewards.py:near"))
    assert report.reports["reward"].faults == ()


def test_check_all_tells_what_it_could_not_check_from_what_is_wrong(world: Path) -> None:
    report = check_everything(AllOptions(data=("train.jsonl",), reward="rewards.py:absent"))
    alone = AllReport(reports={"reward": report.reports["reward"]})  # whatever this node lacks
    assert [one.code for one in alone.reports["reward"].faults] == ["not-checked"]
    assert alone.exit_code == 2


def test_completions_are_in_the_language_of_the_prompt_and_no_text_stands_twice() -> None:
    english, chinese = (
        Sample(prompt=[("user", text)], completion="") for text in ("Tell me of Rome.", "介绍一下北京。")
    )
    for one, texts in zip((english, chinese), made_for([english, chinese]), strict=True):
        told = [text.completion for text in texts]
        assert len(set(told)) == len(told) >= 8
        assert ("Yes." in told, "是。" in told) == (one is english, one is chinese)
        assert max(map(len, told)) > len(canaries_for(one)["repeated token"].completion)
