"""The demo's verdict: it fails, in a sentence, whenever something that a fault must lead to was not seen."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

import expectations  # isort: skip
import report  # isort: skip
import screen  # isort: skip
from grpo_sentinel.records import Action, Finding, FindingState, Severity

PARAMETER = "model.layers.0.self_attn.v_proj.weight"
FOUND = Finding(
    finding_id="nonfinite:1:12", rule="nonfinite", layer="gradient", severity=Severity.CRITICAL, state=FindingState.FIRING,
    action=Action.CHECKPOINT_AND_HALT, run_id="r", step=14, onset_step=12, ranks=(1,), subject=PARAMETER,
    message="gradient not finite", wall_ns=1,
)  # fmt: skip
STORY = report.Story(
    run_id="r", findings=(FOUND,), skipped={0: [12, 13], 1: [12, 13]}, last_steps={0: 14, 1: 14}, halt=None
)
INJECTED = {"step": 12, "subject": PARAMETER}


def judge(*findings: Finding, fault: str = "grad_nan") -> bool:
    expected = expectations.EXPECTATIONS[fault]
    checks = report._check_findings(expected, replace(STORY, findings=findings), INJECTED)
    return all(check.good for check in checks)


def test_the_right_finding_passes():
    assert judge(FOUND)


@pytest.mark.parametrize(
    "change",
    [{"ranks": (0,)}, {"ranks": ()}, {"subject": "other.weight"}, {"layer": "reward"}, {"severity": Severity.NOTE},
     {"step": 3}],
)  # fmt: skip
def test_a_finding_with_the_wrong_rank_parameter_layer_weight_or_step_fails(change):
    assert not judge(replace(FOUND, **change))


def test_a_fault_that_nothing_found_fails():
    assert not judge()


def test_any_finding_above_a_note_fails_a_healthy_run():
    assert judge(fault="none")
    assert judge(replace(FOUND, severity=Severity.NOTE), fault="none")
    assert not judge(FOUND, fault="none")


def test_the_screen_is_plain_text_when_piped():
    pipe = io.StringIO()
    shown = screen.Screen(pipe)
    shown.title("Title")
    shown.progress("training", 0.5)
    shown.progress("training", 1.0)
    shown.fact("where", "here " * 60)
    shown.verdict("done", good=False)
    text = pipe.getvalue()
    assert "\033" not in text
    assert "\r" not in text
    assert "100%  training" in text
    assert "FAIL  done" in text
    assert max(map(len, text.splitlines())) <= screen.WIDTH


def test_the_screen_is_coloured_on_a_terminal_and_not_with_no_color(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    screen.Screen(terminal).title("Title")
    assert "\033[1;36mTitle" in terminal.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    screen.Screen(terminal).title("Title")
    assert "\033[1" not in terminal.getvalue()
