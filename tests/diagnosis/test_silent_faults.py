"""Curves that went wrong are named, curves that only look wrong are not, and a log that cannot tell says so."""

from __future__ import annotations

import io
import json
import math
import random
from collections.abc import Callable

import pytest
import thread_rows

from grpo_sentinel.diagnosis.triage import diagnose
from grpo_sentinel.diagnosis.verdict import Candidate
from grpo_sentinel.history.logs.formats import read_rows
from grpo_sentinel.history.logs.lines import lines_of

Row = dict[str, float]
FINISHED = "{'train_runtime': 1290.0, 'train_samples_per_second': 0.7, 'train_loss': 0.0004, 'epoch': 1.0}"


def verdict(lines: list[str]) -> Candidate:
    return diagnose(lines_of(io.BytesIO("\n".join([*lines, ""]).encode()), "run.log")).verdict


def healthy(first: int, last: int, form: str = "trl") -> list[str]:
    return list(thread_rows.rows(form, "healthy", first, last, 100, 77))


def rows(change: Callable[[int, Row], object], form: str = "trl", count: int = 60, seed: int = 7) -> list[str]:
    """Rows of a run that learns, each changed by `change(step, row)`."""
    out: list[str] = []
    for step in range(1, count + 1):
        row = thread_rows.healthy(step, count, seed)
        change(step, row)
        out.extend(thread_rows.FORMS[form](step, count, row))
    return out


def dicts(make: Callable[[int, random.Random], dict[str, float]], count: int) -> list[str]:
    return [str(make(step, random.Random(step))) for step in range(1, count + 1)]


def noisy(step: int, middle: float, spread: float = 0.04) -> float:
    return middle + random.Random(step).gauss(0, spread)


# ---- what is read


def test_a_step_of_areal_is_read_from_its_table() -> None:
    text = (
        "(AReaL) 20260101-12:00:00.345 StatsLogger INFO: Epoch 1/10 Step 3/900 Train step 3/9000 done.\n"
        "│ ppo_actor/task_reward/avg │ 5.0000e-01 │ ppo_actor/update/entropy/avg │ 4.0000e-01 │\n"
        "├───────────────────────────┼────────────┤\n"
        "│ ppo_actor/update/grad_norm │        nan │\n"
    )
    (row,) = read_rows(lines_of(io.BytesIO(text.encode()), "a"))
    signals = row.signals()
    assert (row.step, row.total_steps, signals["reward.mean"]) == (3, 9000, 0.5)
    assert math.isnan(signals["gradient.norm_preclip"])


def test_a_line_of_an_orchestrator_with_units_is_read() -> None:
    text = (
        "02:33:26 SUCCESS Step 28 | Time: 73.77s | Reward: 0.3887 | Seq. Length: 345.6 tokens/sample | Async Level: 1\n"
    )
    (row,) = read_rows(lines_of(io.BytesIO(text.encode()), "a"))
    assert row.step == 28
    assert row.signals() == {"reward.mean": 0.3887, "data.completion_length_mean": 345.6}


def test_a_loop_that_calls_its_loss_train_loss_has_not_ended_at_its_first_row() -> None:
    lines = [f"step {step} train_loss={noisy(step, 2.0):.3f} grad_norm=nan" for step in range(1, 9)]
    assert verdict(lines).layer == "gradient"


# ---- how a log ends


@pytest.mark.parametrize(
    "line",
    [
        "slurmstepd: error: *** STEP 881204.0 ON n1 CANCELLED AT 2025-10-30T04:51:10 ***",
        "KeyboardInterrupt",
        "run.sh: line 12:  4411 Terminated                  python train.py",
        "command terminated with exit code 143",
        "Received signal SIGTERM, stopping",
        "Your session crashed for an unknown reason.",
    ],
)
def test_a_run_that_was_ended_by_someone_is_undetermined(line: str) -> None:
    found = verdict([*healthy(1, 12), line])
    assert found.layer == "undetermined"
    assert found.would_decide


@pytest.mark.parametrize(
    "line",
    ["mpirun noticed that process rank 3 exited on signal 9 (Killed).", "Traceback (most recent call last):"],
)
def test_an_end_before_time_without_a_known_reason_is_not_called_healthy(line: str) -> None:
    assert verdict([*healthy(1, 12), line]).name == "ended"
    assert verdict([*healthy(1, 12), "the knight was killed, the dragon died"]).layer == "none"
    assert verdict([*healthy(1, 4), line, *healthy(5, 12), line]).layer == "none", "it was outlived once"
    assert verdict([*healthy(1, 100), line]).layer == "none", "it had done its last step"


@pytest.mark.parametrize(
    "line",
    [
        "=>> PBS: job killed: walltime 86417 exceeded limit 86400",
        "TERM_RUNLIMIT: job killed after reaching LSF run time limit.",
        "agent: the instance i-0 is being preempted by the provider",
    ],
)
def test_a_scheduler_that_says_why_it_ended_the_job_is_believed(line: str) -> None:
    assert verdict([*healthy(1, 12), line]).layer == "tooling"


def test_what_stands_before_the_closing_summary_ended_nothing() -> None:
    lines = [*healthy(1, 30), "urllib3: Read timed out. (read timeout=60)", FINISHED]
    assert verdict(lines).layer == "none"
    assert verdict(lines[:-1]).layer != "none"


@pytest.mark.parametrize("line", ["Received SIGTERM, shutting down", "Connection reset by peer"])
def test_servers_that_go_after_the_closing_summary_are_no_fault(line: str) -> None:
    assert verdict([*healthy(1, 30), FINISHED, line]).layer == "none"
    assert verdict([*healthy(1, 30), line]).layer != "none"


def test_what_raises_after_the_closing_summary_is_a_fault() -> None:
    raised = ["Traceback (most recent call last):", '  File "/w/save.py", line 3, in save', "    write()"]
    assert (
        verdict([*healthy(1, 30), FINISHED, *raised, "OSError: [Errno 28] No space left on device"]).layer == "memory"
    )


def test_a_line_that_recurs_while_the_run_goes_on_is_a_habit() -> None:
    line = "Error in reward_fn: 'reward_extra_info'"
    assert verdict([line, *healthy(1, 8), line, *healthy(9, 20), line]).layer == "none"


@pytest.mark.parametrize(
    "line",
    [
        "wandb: Network error (ReadTimeout), entering retry loop.",
        "ImportError: cannot import name 'x' from 'flash_attn'; falling back to sdpa",
        "dataset row 1093 skipped: prompt is longer than the maximum 1024 tokens",
    ],
)
def test_a_line_that_says_how_it_was_dealt_with_is_no_cause(line: str) -> None:
    assert verdict([*healthy(1, 30), line]).layer == "none"


def test_a_destructor_that_fails_is_no_cause() -> None:
    aside = ["Exception ignored in: <function Engine.__del__ at 0x7f>", "Traceback (most recent call last):"]
    frame = [
        '  File "/opt/engine.py", line 100, in __del__',
        "    self.shutdown()",
        "TypeError: 'NoneType' object is not",
    ]
    assert verdict([*healthy(1, 30), *aside, *frame]).layer == "none"
    assert verdict([*healthy(1, 30), *aside[1:], *frame]).layer == "tooling"


# ---- whose fault a lost reward is


def _fell(step: int, row: Row) -> None:
    if step > 35:
        row.update(reward=0.02 + abs(row["loss"]))


def test_a_reward_that_falls_at_once_alone_cannot_be_blamed_on_anyone() -> None:
    found = verdict(rows(_fell, "nemo"))
    assert (found.layer, found.name) == ("undetermined", "reward_dropped")
    assert found.step == 36


def test_beside_a_failing_server_it_is_the_scorers() -> None:
    lines = rows(_fell, "nemo")
    at = next(place for place, line in enumerate(lines) if "Step 36/" in line)
    lines.insert(at, "WARNING resources_server: request failed: Cannot connect to host 10.0.4.6:10240")
    assert verdict(lines).layer == "reward"


def test_beside_an_entropy_that_multiplies_it_is_the_policys() -> None:
    found = verdict(rows(lambda step, row: (_fell(step, row), step > 30 and row.update(entropy=4.0)), "trl-no-kl"))
    assert (found.layer, found.name) == ("policy", "policy_collapsed")


def test_a_slow_decline_is_the_policys() -> None:
    fading = rows(lambda step, row: row.update(reward=0.6 * math.exp(-step / 15) + row["loss"]), "nemo", 80)
    assert verdict(fading).layer == "policy"


def test_a_reward_of_single_groups_that_jumps_about_is_noise() -> None:
    jumping = dicts(
        lambda step, draw: {
            "loss": 0.0, "grad_norm": 0.3, "learning_rate": 1e-6,
            "reward": draw.choice((0.0, 0.25, 0.5, 0.75, 1.0)), "kl": 0.001,
        },
        40,
    )  # fmt: skip
    assert verdict(jumping).layer == "none"


def test_entropy_that_ends_as_noise_is_the_policys_although_no_reward_is_shown() -> None:
    lines = dicts(
        lambda step, draw: {"loss": 0.01, "grad_norm": 0.3, "entropy": 0.4 + 0.1 * step + draw.random() / 9}, 50
    )
    assert verdict(lines).layer == "policy"


# ---- rewards that tell nothing apart


def test_a_task_that_was_solved_is_no_dead_reward() -> None:
    def climbs(step: int, row: Row) -> None:
        done = min(1.0, step / 40)
        row.update(reward=0.3 + 0.7 * done, std=0.3 * (1 - done), dead=done, grad=0.3 * (1 - done))

    assert verdict(rows(climbs)).layer == "none"
    assert verdict(rows(lambda _, row: row.update(reward=1.0, std=0.0, dead=1.0, grad=0.0))).layer == "reward"


def test_a_mean_that_stops_dead_after_it_never_repeated_is_constant() -> None:
    lines = rows(lambda step, row: row.update(reward=0.25) if step > 50 else None, "nemo")
    assert (verdict(lines).layer, verdict(lines).name) == ("reward", "constant_reward")


def test_equal_scores_of_a_policy_that_walked_off_are_the_policys() -> None:
    def walks(step: int, row: Row) -> None:
        if step > 45:
            row.update(kl=240.0 + step, reward=0.0, std=0.0, dead=1.0, loss=9.4)

    assert verdict(rows(walks)).layer == "policy"


def test_one_length_to_the_digit_is_the_limit() -> None:
    cut = rows(lambda _, row: row.update(length=1024.0, reward=0.0), "nemo", 20)
    assert (verdict(cut).layer, verdict(cut).name) == ("data", "all_truncated")


def test_a_limit_that_cuts_nearly_everything_is_the_datas_unless_rewards_rise() -> None:
    assert verdict(rows(lambda step, row: row.update(cut=0.98, reward=noisy(step, 0.1, 0.02)))).layer == "data"
    assert verdict(rows(lambda step, row: row.update(cut=0.98, reward=0.1 + 0.01 * step))).layer == "none"


def test_a_dead_gradient_without_rewards_beside_it_is_undetermined() -> None:
    lines = dicts(lambda step, draw: {"loss": 0.0, "grad_norm": 0.0, "entropy": 0.4 + draw.random() / 9}, 12)
    assert verdict(lines).layer == "undetermined"
    lines = dicts(lambda step, draw: {"loss": 2.1 + draw.random(), "grad_norm": 0.0, "learning_rate": 1e-5}, 12)
    assert verdict(lines).layer == "gradient"


def test_one_row_that_shows_groups_which_differ_tells_of_a_dead_gradient() -> None:
    row = {"loss": -0.0, "grad_norm": 0.0, "learning_rate": 2.6e-7, "reward": 0.34, "reward_std": 0.44}
    assert verdict([str(row | {"frac_reward_zero_std": 0.0})]).layer == "gradient"
    assert verdict([str(row)]).layer == "none"


# ---- terms of a sum


def _terms(step: int, correct: float | None, shape: float) -> str:
    parts = {"rewards/correct/mean": correct, "rewards/format/mean": noisy(step, shape)}
    total = sum(value for value in parts.values() if value is not None)
    return str({"loss": 0.001, "grad_norm": noisy(step, 0.3), **parts, "reward": total, "reward_std": 0.2})


def test_a_term_about_answers_that_never_pays_is_dead() -> None:
    assert verdict([_terms(step, 0.0, 0.5) for step in range(30)]).name == "dead_reward_term"
    assert verdict([_terms(step, 0.0, 0.5) for step in range(10)]).layer == "none", "a hard task needs time"
    assert verdict([_terms(step, 0.25 * (step % 9 == 5), 0.5) for step in range(30)]).layer == "none"


def test_a_term_that_falls_while_the_sum_rises_is_traded() -> None:
    lines = [_terms(step, 0.5 * (1 - step / 40), 0.2 + step / 30) for step in range(40)]
    assert verdict(lines).name == "traded_reward_term"


def test_a_term_that_gives_no_number_for_some_batches_is_of_another_task() -> None:
    assert verdict([_terms(step, None if step % 3 else 0.4, 0.5) for step in range(30)]).layer == "none"
    assert verdict([_terms(step, None, 0.5) for step in range(30)]).name == "silent_reward_term"


def test_a_reward_for_empty_answers_is_the_rewards() -> None:
    lines = rows(lambda step, row: row.update(length=400 * math.exp(-step / 10) + 6, reward=0.2 + step / 80))
    assert verdict(lines).layer == "reward"


# ---- optimizer, gradient, ratios


def test_weights_that_stay_are_told_by_kl_entropy_and_reward_together() -> None:
    def stays(step: int, row: Row) -> None:
        row.update(kl=0.0, entropy=noisy(step, 0.5, 0.01), reward=noisy(step, 0.4))

    assert verdict(rows(stays)).layer == "optimizer"
    assert verdict(rows(lambda step, row: row.update(kl=0.0))).layer == "none", "it learns"


def test_a_schedule_that_ends_long_before_the_run_is_the_optimizers() -> None:
    assert verdict(rows(lambda step, row: row.update(lr=max(0.0, 1e-6 * (1 - step / 30))))).layer == "optimizer"
    assert verdict(rows(lambda step, row: row.update(lr=1e-6 * (1 - step / 60)))).layer == "none"


def test_one_spike_that_did_no_harm_is_no_fault() -> None:
    assert verdict(rows(lambda step, row: row.update(grad=20.0) if step == 30 else None)).layer == "none"
    assert verdict(rows(lambda step, row: row.update(grad=20.0) if step == 58 else None)).layer == "gradient"


def test_iterations_that_megatron_counts_as_lost_are_the_gradients() -> None:
    line = " iteration {:8d}/ 900 | learning rate: 1.0E-06 | lm loss: 1.9E+00 | grad norm: 0.3 | number of nan iterations: {:3d} |"
    assert verdict([line.format(step, 0) for step in range(1, 20)]).layer == "none"
    assert verdict([line.format(step, max(0, step - 9)) for step in range(1, 20)]).layer == "gradient"


def test_ratios_that_are_clipped_from_the_first_row_on_are_the_policys() -> None:
    assert verdict(rows(lambda step, row: row.update(clip=0.62), "openrlhf")).layer == "policy"
    assert verdict(rows(lambda step, row: row.update(clip=0.2), "openrlhf")).layer == "none"


def test_a_reference_that_differs_is_seen_where_the_first_row_is_an_average() -> None:
    line = "step {}: {}"
    values = [{"train/loss": 0.0, "train/kl_loss": noisy(step, 0.7, 0.02), "train/grad_norm": 0.3} for step in range(9)]
    assert verdict([line.format(10 * (step + 1), row) for step, row in enumerate(values)]).layer == "policy"
    grown = [row | {"train/kl_loss": 0.01 * (step + 1)} for step, row in enumerate(values)]
    assert verdict([line.format(10 * (step + 1), row) for step, row in enumerate(grown)]).layer == "none"


def test_a_rate_that_a_loop_rounds_to_zero_is_no_fault_where_the_policy_moves() -> None:
    line = "step {} loss={:.3f} lr=0.0000 kl={:.4f} grad_norm=0.3"
    assert verdict([line.format(step, noisy(step, 0.1), 0.001 * step) for step in range(1, 20)]).layer == "none"
    assert verdict([line.format(step, noisy(step, 0.1), 0.001) for step in range(1, 20)]).layer == "optimizer"


def test_preference_rows_are_not_taken_for_terms_of_a_reward() -> None:
    lines = [
        json.dumps({"loss": 0.69 - step / 200, "grad_norm": 1.0, "rewards/chosen": step / 50, "rewards/rejected": -step / 50,
                    "rewards/accuracies": noisy(step, 0.5), "rewards/margins": step / 25})
        for step in range(30)
    ]  # fmt: skip
    assert verdict(lines).layer == "none"
