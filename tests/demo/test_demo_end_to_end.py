"""The main job, whole: a real two-process TRL run under `grpo-sentinel launch`, as `make demo` shows it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import assets  # isort: skip

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]
SLOW_FAULTS = (
    "grad_inf", "grad_spike", "loss_nan", "reduced_grad_nan", "reward_nan", "reward_constant", "lr_spike", "memory_leak",
    "straggler", "oov_token", "mask_zero", "weight_nan", "weight_drift", "kill", "exception",
)  # fmt: skip


def demo(out: Path, *arguments: str, timeout_s: float = 540) -> tuple[int, str]:
    """Run the demo in its own process group; ended by pid when it takes too long."""
    environ = {name: value for name, value in os.environ.items() if name != "XDG_STATE_HOME"}
    done = subprocess.run(
        [sys.executable, str(Path(assets.__file__).with_name("run.py")), "--out", str(out), "--timeout", "240", *arguments],
        env=environ, capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_nan_on_one_rank_is_skipped_named_and_ends_in_a_finite_checkpoint_and_without_the_agent_in_a_crash(
    demo_assets, tmp_path
):
    code, text = demo(tmp_path / "demo", "--fault", "grad_nan", "--compare")
    assert code == 0, text
    assert "launch returned 83" in text
    assert "names rank 1 and model.layers.0.self_attn.v_proj.weight" in text
    assert "without grpo-sentinel the same run crashed" in text
    assert "\033" not in text


def test_a_healthy_run_is_left_alone_bit_by_bit(demo_assets, tmp_path):
    code, text = demo(tmp_path / "demo", "--fault", "none", "--compare", "--steps", "16")
    assert code == 0, text
    assert "of 16 steps and the weights are bit-identical" in text


@pytest.mark.slow
def test_a_healthy_run_of_200_steps_is_left_alone_bit_by_bit(demo_assets, tmp_path):
    code, text = demo(tmp_path / "demo", "--fault", "none", "--compare", "--steps", "200")
    assert code == 0, text
    assert "of 200 steps and the weights are bit-identical" in text


@pytest.mark.slow
@pytest.mark.parametrize("fault", SLOW_FAULTS)
def test_every_other_fault_leads_to_what_it_must(fault, demo_assets, tmp_path):
    code, text = demo(tmp_path / "demo", "--fault", fault)
    assert code == 0, text


def test_an_unknown_fault_is_refused_with_the_known_ones(tmp_path):
    code, text = demo(tmp_path / "demo", "--fault", "grad_nun")
    assert code == 2
    assert "unknown fault 'grad_nun'; known are none, grad_nan" in text
    assert "Traceback" not in text
