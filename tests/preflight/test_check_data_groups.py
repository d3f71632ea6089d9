"""Groups without spread are found in lists and over rows; a good reward's groups pass in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rows_made import counts, write

from grpo_sentinel.preflight.data import DataOptions, check_data
from grpo_sentinel.preflight.look import Level
from grpo_sentinel.preflight.report import CheckReport


def in_lists(rewards: list[list[float]]) -> list[Any]:
    return [
        {"prompt": f"What is {n}?", "responses": [f"{n}.{k}" for k in range(len(of))], "rewards": of}
        for n, of in enumerate(rewards)
    ]


def in_rows(rewards: list[list[float]]) -> list[Any]:
    return [
        {"prompt": f"What is {n}?", "completion": f"{n}.{k}", "reward": one}
        for n, of in enumerate(rewards)
        for k, one in enumerate(of)
    ]


def report_of(folder: Path, rows: list[Any], jobs: int = 1) -> CheckReport:
    return check_data([write(folder / "a.jsonl", rows)], DataOptions(jobs=jobs))


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("shape", [in_lists, in_rows])
def test_groups_whose_rewards_are_all_equal_are_a_fault_though_rewards_differ(
    shape: Any, jobs: int, tmp_path: Path
) -> None:
    report = report_of(tmp_path, shape([[float(n % 2)] * 4 for n in range(50)]), jobs)
    assert counts(report) == {"flat-groups": 1}
    assert report.faults[0].level is Level.BROKEN
    assert "50 of 50 groups" in report.faults[0].message
    assert report.facts["groups"] == {"count": 50, "all_equal": 50}


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("shape", [in_lists, in_rows])
def test_a_high_share_of_groups_without_spread_is_a_note_with_the_figure(shape: Any, jobs: int, tmp_path: Path) -> None:
    report = report_of(tmp_path, shape([[1.0] * 4] * 40 + [[0.0, 1.0]] * 10), jobs)
    assert report.faults == ()
    assert [note for note in report.notes if "40 of 50 groups (80%)" in note]


@pytest.mark.parametrize("shape", [in_lists, in_rows])
def test_groups_with_spread_and_a_few_without_pass_in_silence(shape: Any, tmp_path: Path) -> None:
    report = report_of(tmp_path, shape([[0.0, 1.0, 1.0, 0.0]] * 45 + [[0.0] * 4] * 5))
    assert (report.faults, report.notes) == ((), ())


GOOD: dict[str, list[Any]] = {
    "one reward a prompt": in_rows([[float(n % 2)] for n in range(60)]),
    "a few prompts that come twice": in_rows([[1.0, 1.0]] * 9 + [[float(n % 2)] for n in range(400)]),
    "two reward functions of one completion": [
        {"prompt": f"{n}?", "completion": [{"role": "assistant", "content": f"{n}"}], "rewards": [n % 3, n % 3]}
        for n in range(60)
    ],
    "a score of the prompt, drawn again": [{"prompt": f"{n % 20}?", "score": n % 20} for n in range(60)],
}


@pytest.mark.parametrize("name", GOOD)
def test_rewards_that_are_not_those_of_groups_are_not_taken_for_them(name: str, tmp_path: Path) -> None:
    report = report_of(tmp_path, GOOD[name])
    assert "flat-groups" not in counts(report)


def test_rows_that_repeat_a_completion_are_no_group(tmp_path: Path) -> None:
    rows = in_rows([[float(n % 2)] for n in range(30)]) * 2
    assert counts(report_of(tmp_path, rows)) == {"duplicate": 30}


def test_what_is_said_of_all_rows_gives_how_often_and_not_a_count_that_reads_as_the_value(tmp_path: Path) -> None:
    report = report_of(tmp_path, in_rows([[0.5]] * 40))
    assert report.faults[0].message == "rewards are all the same: 40 times 0.5"
