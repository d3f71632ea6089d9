"""What to try speaks of the run's own trainer, and of nothing that only a watched run has."""

from __future__ import annotations

import pytest
import thread_rows

from grpo_sentinel.diagnosis.advice import of_trainer
from grpo_sentinel.diagnosis.redact import redact
from grpo_sentinel.diagnosis.triage import diagnose
from grpo_sentinel.diagnosis.verdict import Candidate
from grpo_sentinel.history.logs.lines import Line


def verdict_of(lines: list[str]) -> Candidate:
    return diagnose(Line("rank0.log", number, text) for number, text in enumerate(lines, 1)).verdict


@pytest.mark.parametrize(("form", "own", "other"), [("trl", "TRL", "verl "), ("verl", "verl", "TRL")])
def test_only_options_of_the_own_trainer_are_named(form: str, own: str, other: str) -> None:
    tries = " ".join(verdict_of(list(thread_rows.rows(form, "all-cut", 1, 12, 400, 3))).tries)
    assert own in tries
    assert other not in tries
    assert "OpenRLHF" not in tries


def test_an_unwatched_run_is_not_told_to_tune_rules_or_to_ask_for_a_point_to_resume_from() -> None:
    rows = list(thread_rows.rows("trl", "grad-nan-late", 1, 40, 400, 3))
    assert "resume-point" not in " ".join(verdict_of(rows).tries)
    assert "resume-point" in " ".join(verdict_of(["grpo-sentinel: watching this run", *rows]).tries)


@pytest.mark.parametrize(
    ("remedy", "own", "kept"),
    [
        ("Raise TRL a, verl b.c, OpenRLHF --d.", "verl", "Raise verl b.c."),
        ("Raise TRL a, verl b.c, OpenRLHF --d.", "TRL", "Raise TRL a."),
        ("OpenRLHF: --d and --e.", "TRL", ""),
        ("Clip higher (TRL a, verl b), or lower the rate.", "OpenRLHF", "Clip higher, or lower the rate."),
        ("Dropout: TRL a; LoRA: verl b, OpenRLHF --c 0.", "verl", "LoRA: verl b."),
        ("Set a (TRL), b (verl) or --c (OpenRLHF) to 2.", "verl", "Set a (TRL), b (verl) or --c (OpenRLHF) to 2."),
        ("Raise TRL a (verl b, OpenRLHF --c) or set d.", "verl", "Raise TRL a (verl b, OpenRLHF --c) or set d."),
        ("Look at the batch.", "verl", "Look at the batch."),
    ],
)
def test_a_remedy_is_cut_down_to_one_trainer_or_left_whole(remedy: str, own: str, kept: str) -> None:
    assert of_trainer(remedy, own) == kept


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("user = None", "user = None"),
        ("user = bob", "user = [removed]"),
        ("in ../../home/alice/run.py", "in …/run.py"),
        ("in Users/alice/work/run.py", "in …/run.py"),
        ("at home/away games", "at home/away games"),
    ],
)
def test_names_of_people_are_taken_out_and_nothing_else(text: str, shown: str) -> None:
    assert redact(text) == shown
