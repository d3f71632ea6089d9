"""Logs of real TRL runs with one known fault each: the right layer and step, and silence where nothing is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_sentinel.diagnosis.triage import diagnose
from grpo_sentinel.history.logs.lines import read_lines

LOGS = Path(__file__).parent / "data" / "trl-logs"

EXPECTED: dict[str, tuple[str, int | None]] = {
    # what the log can show; None: no step can be known
    "ags_reward": ("reward", 4),
    "ags_token_oov": ("data", None),
    "s_token_oov": ("data", None),
    "d_grad_nan_local_r1": ("gradient", 6),
    "old_trl0240_grad_nan_step_4": ("gradient", 4),
    "s_grad_inf_clip0": ("gradient", 6),
    "s_grad_nan_clip0": ("gradient", 6),
    "s_grad_nan_clip1": ("gradient", 6),
    "s_loss_nan": ("gradient", 6),
    "s_grad_spike50_clip0": ("gradient", 6),
    "s_huge_lr_forever": ("optimizer", 2),
    "s_huge_lr_once": ("optimizer", 7),
    "s_mask_zero_completion_grpo": ("data", 6),
    "s_reward_const_forever": ("reward", 6),
    "s_reward_one_inf_group": ("reward", 6),
    "s_reward_one_inf_none": ("reward", 6),
    "d_halt_both_rank1": ("communication", None),
    "d_halt_save_rank1": ("communication", None),
    "d_halt_stop_rank0": ("communication", None),
    "parallel_zero1": ("gradient", 3),
    "parallel_zero1_bf16": ("gradient", 3),
    "parallel_zero3_bf16": ("gradient", 3),
}

HEALTHY = (
    "base2_accelerate", "cost_small32x32", "d_base", "halt_run_1", "halt_run_3", "jit_3", "old_trl0191", "old_trl0291",
    "old_trl190", "s_base", "s_iter4_beta",
)  # fmt: skip

BLIND = ("s_leak50mb", "s_mask_zero_prompt", "s_mask_zero_row", "d_sleep20_r1", "agd_sleep")
"""Faults that leave no trace in TRL's own log: the right answer here is silence, never a wrong layer."""


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_fault_is_named_by_layer_and_step(name: str) -> None:
    layer, step = EXPECTED[name]
    verdict = diagnose(read_lines(LOGS / f"{name}.log")).verdict
    assert verdict.layer == layer, verdict.says
    assert verdict.step == step
    assert verdict.evidence
    assert verdict.evidence[0].text


@pytest.mark.parametrize("name", HEALTHY + BLIND)
def test_a_log_that_shows_nothing_wrong_gets_no_verdict(name: str) -> None:
    verdict = diagnose(read_lines(LOGS / f"{name}.log")).verdict
    assert verdict.layer == "none", verdict.says


def test_sigkill_alone_is_not_decided() -> None:
    found = diagnose(read_lines(LOGS / "d_kill_r1.log"))
    assert found.verdict.layer == "undetermined"
    assert found.verdict.rank == 1
    assert any("dmesg" in text for text in found.verdict.would_decide)


def test_the_crash_that_follows_is_the_chain_not_the_cause() -> None:
    found = diagnose(read_lines(LOGS / "s_grad_nan_clip1.log"))
    assert found.verdict.name == "nonfinite_gradient"
    assert "bad_probabilities" in [candidate.name for candidate in found.chain]


@pytest.mark.parametrize(
    ("name", "layer", "step"),
    [("exception", "tooling", None), ("loss_nan", "gradient", 4), ("mask", "data", 5), ("oov", "data", None)],
)
def test_a_fault_in_the_demonstrations_own_script_is_named(name: str, layer: str, step: int | None) -> None:
    verdict = diagnose(read_lines(LOGS.parent / "own-trl-logs" / f"{name}.log")).verdict
    assert (verdict.layer, verdict.step) == (layer, step), verdict.says
