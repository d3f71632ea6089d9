"""Rules against recordings of real two-process TRL runs, healthy and broken on purpose from step 12 on (spike: 30)."""

from __future__ import annotations

import pytest
import rule_recordings

from grpo_sentinel.records import Action, Finding, FindingState, Severity
from grpo_sentinel.rules import load_rules

RULES = load_rules()


def newest(name: str) -> dict[str, Finding]:
    """Give the newest version of every finding above a note, by rule."""
    found = rule_recordings.replay(name, RULES)
    firing = [finding for finding in found if finding.severity > Severity.NOTE and finding.state is FindingState.FIRING]
    return {finding.rule: finding for finding in firing}


def test_120_real_healthy_steps_raise_nothing_above_a_note() -> None:
    assert newest("none") == {}


@pytest.mark.parametrize(
    ("run", "root", "ranks", "step", "onset"),
    [
        ("grad_nan", "grad_nonfinite", (1,), 12, 12),
        ("reward_nan", "reward_func_nonfinite", (1,), 12, 12),
        ("reward_constant", "reward_constant", (0, 1), 14, 12),
        ("mask_zero", "loss_mask_empty", (0, 1), 12, 12),
        ("lr_spike", "update_ratio_huge", (0, 1), 12, 12),
        ("weight_drift", "replicas_differ", (0, 1), 12, 12),
        ("memory_leak", "host_memory_fills_up", (1,), 24, 12),
        ("straggler", "straggler", (1,), 14, 12),
        ("oov_token", "token_out_of_vocabulary", (1,), 12, 12),
        ("grad_spike", "grad_spike", (), 30, 30),
    ],
)
def test_a_broken_run_has_one_root_in_the_right_layer_on_the_right_rank_and_step(
    run: str, root: str, ranks: tuple[int, ...], step: int, onset: int
) -> None:
    found = newest(run)
    roots = [finding for finding in found.values() if not finding.root_id]
    assert [(f.rule, f.ranks, f.step, f.onset_step) for f in roots] == [(root, ranks, step, onset)]


@pytest.mark.parametrize(
    ("run", "halts"),
    [
        ("none", []),
        ("grad_nan", ["nonfinite_updates"]),
        ("grad_spike", ["grad_spike_persists"]),
        ("memory_leak", []),
        ("reward_nan", []),
        ("lr_spike", []),
        ("straggler", []),
    ],
)
def test_a_real_run_is_halted_only_by_what_should_halt_it(run: str, halts: list[str]) -> None:
    assert [rule for rule, finding in newest(run).items() if finding.action >= Action.CHECKPOINT] == halts


def test_a_real_leak_far_from_the_limit_is_told_with_its_slope_and_the_steps_that_are_left() -> None:
    message = newest("memory_leak")["host_memory_fills_up"].message
    assert message == "resident memory of rank 1 grows by 100 MiB a step, 213 steps or 0.6 minutes to the limit"


def test_the_halt_for_a_real_nan_names_rank_and_parameter() -> None:
    finding = newest("grad_nan")["nonfinite_updates"]
    assert (finding.step, finding.onset_step, finding.ranks) == (14, 12, (1,))
    assert finding.subject == "model.layers.0.self_attn.v_proj.weight"


def test_forty_rules_could_judge_a_real_run() -> None:
    engine_rules = len(RULES) - len(_abstaining("none"))
    assert engine_rules >= 80


def _abstaining(name: str) -> dict[str, str]:
    from grpo_sentinel.rules import Engine

    recording = rule_recordings.read(name)
    engine = Engine(RULES, run_id=name)
    engine.configure(recording["context"])
    for frame in rule_recordings.frames(name, recording):
        engine.frame(frame)
    return engine.abstaining()
