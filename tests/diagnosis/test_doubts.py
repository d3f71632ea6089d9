"""When nothing is certain: what is no verdict, what is not called healthy, and what is healthy although it looks otherwise."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Callable

import pytest
import thread_rows

from grpo_sentinel.diagnosis.redact import redact
from grpo_sentinel.diagnosis.triage import diagnose
from grpo_sentinel.diagnosis.verdict import Candidate
from grpo_sentinel.history.logs.lines import lines_of

Row = dict[str, float]
FORMS = ("trl", "swift", "verl", "openrlhf", "slime")


def verdict(lines: list[str]) -> Candidate:
    return diagnose(lines_of(io.BytesIO("\n".join([*lines, ""]).encode()), "run.log")).verdict


def rows(change: Callable[[int, Row], object], form: str = "trl", count: int = 40) -> list[str]:
    out: list[str] = []
    for step in range(1, count + 1):
        row = thread_rows.healthy(step, 100, 7)
        change(step, row)
        out.extend(thread_rows.FORMS[form](step, 100, row))
    return out


def sound(_step: int, _row: Row) -> None:
    """Leave it as it is."""


# ---- how a log ends


@pytest.mark.parametrize(
    "line",
    [
        "Training Progress:  40%|████      | 40/100 [1:00:33<1:21:44, 40.37s/it]",
        " 43%|████▎     | 43/100 [1:00:33<1:21:44, 40.37s/it]",
        "Generating:  12%|█▏        | 3/25 [00:33<04:44, 10.37s/it]",
        "Saving model checkpoint to /out/checkpoint-40",
        "INFO waiting for the rollout workers",
    ],
)
def test_a_log_that_stops_in_the_middle_of_something_is_not_called_healthy(line: str) -> None:
    found = verdict([*rows(sound), line])
    assert (found.layer, found.name) == ("undetermined", "stopped")
    assert found.would_decide


def test_a_row_as_the_last_line_is_how_a_living_log_ends() -> None:
    assert verdict(rows(sound)).layer == "none"


def test_a_bar_that_came_to_its_end_is_an_end() -> None:
    bar = "Training Progress: 100%|██████████| 100/100 [1:00:33<00:00, 40.37s/it]"
    assert verdict([*rows(sound, count=100), bar]).layer == "none"


def test_a_time_limit_after_hours_without_a_word_does_not_tell_what_was_waited_for() -> None:
    limit = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-03-04T14:10:02 DUE TO TIME LIMIT ***"
    before = "INFO 2026-03-04 {} trainer.py:4 sync of the weights"
    found = verdict([before.format("02:10:11"), limit])
    assert (found.layer, found.name) == ("undetermined", "time_limit")
    assert "12.0 hours" in found.says
    assert verdict([before.format("14:09:58"), limit]).layer == "tooling"
    assert verdict([limit]).layer == "tooling"
    assert verdict(["INFO 03-04 02:10:11 trainer.py:4 sync", limit]).layer == "undetermined", "a date without its year"
    assert verdict(["INFO 99-99 02:10:11 trainer.py:4 sync", limit]).layer == "tooling", "no date"


# ---- what is not certain


def test_a_flat_reward_beside_an_entropy_that_goes_is_doubted() -> None:
    def changed(step: int, row: Row) -> None:
        row.update(entropy=0.6 * math.exp(-step / 12), reward=0.3 + random.Random(step).gauss(0, 0.03))

    for form in FORMS:
        found = verdict(rows(changed, form))
        assert (found.layer, found.name) == ("undetermined", "doubtful"), form
        assert "entropy" in found.says


def test_the_same_beside_a_reward_that_rises_is_learning() -> None:
    def changed(step: int, row: Row) -> None:
        row.update(entropy=0.6 * math.exp(-step / 12), reward=0.3 + step / 100)

    for form in FORMS:
        assert verdict(rows(changed, form)).layer == "none", form


def test_a_failure_of_scoring_in_a_traceback_is_judged_by_its_frames() -> None:
    frame = 'Traceback (most recent call last):\n  File "{}", line 3, in {}\n    code()\n{}'
    peft = frame.format("/x/peft/tuners/tuners_utils.py", "inject_adapter", "KeyError: 'reward'")
    data = frame.format(
        "/x/llmtuner/data/preprocess.py", "preprocess", "ValueError: use ranked data for reward modeling"
    )
    assert verdict(peft.split("\n")).layer == "tooling"
    assert verdict(data.split("\n")).layer == "data"


# ---- silent faults


@pytest.mark.parametrize(
    "name", ["rewards/format_reward/mean", "rewards/Format/mean", "rewards/format", "format_reward"]
)
def test_a_format_that_never_pays_is_named_whatever_it_is_called(name: str) -> None:
    def lines(of_term: Callable[[int], float], called: str) -> list[str]:
        noise = [random.Random(step).gauss(0.4, 0.05) for step in range(24)]
        return [
            str(
                {"loss": 0.01, "grad_norm": 0.3, "rewards/accuracy/mean": value, called: of_term(step), "reward": value}
            )
            for step, value in enumerate(noise)
        ]

    assert verdict(lines(lambda _step: 0.0, name)).name == "dead_reward_term"
    assert verdict(lines(lambda step: 0.1 * (step % 7 == 3), name)).layer == "none"
    assert verdict(lines(lambda _step: 0.0, "rewards/overlong_penalty/mean")).layer == "none", "none was too long"


@pytest.mark.parametrize("form", FORMS)
def test_ratios_that_are_clipped_before_any_update_are_the_policys(form: str) -> None:
    assert verdict(rows(lambda _step, row: row.update(clip=0.43 + row["loss"]), form)).layer == "policy"


@pytest.mark.parametrize("form", FORMS)
def test_a_policy_thrown_away_by_ten_times_the_usual_rate_is_the_optimizers(form: str) -> None:
    def changed(step: int, row: Row, rate: float) -> None:
        late = step / 40
        row.update(lr=rate, kl=0.01 * math.exp(7 * late), grad=0.3 * (1 + 40 * late), reward=max(0.0, 0.5 - 0.5 * late))

    if form != "verl":  # its column of rates is rounded to nothing here
        assert verdict(rows(lambda step, row: changed(step, row, 5e-5), form)).layer == "optimizer"
    assert verdict(rows(lambda step, row: changed(step, row, 1e-6), form)).layer == "policy"
    lora = ["trainable params: 9,232,384 || all params: 7,624,848,896 || trainable%: 0.12"]
    assert verdict([*lora, *rows(lambda step, row: changed(step, row, 5e-5), form)]).layer == "policy"


def test_a_word_again_and_again_beside_a_reward_that_rises_is_what_the_reward_pays_for() -> None:
    said = "[sample] Human: how are you? Assistant: " + "thanks " * 20
    up = rows(lambda step, row: row.update(reward=0.2 + step / 50))
    assert verdict([*up[:-20], said, *up[-20:]]).layer == "reward"
    assert verdict([*up[:-20], "[sample] Assistant: yes yes yes, thanks", *up[-20:]]).layer == "none"


def test_advantages_that_are_nil_although_scores_differ_are_of_groups_of_one() -> None:
    assert verdict(rows(lambda _step, row: row.update(adv=0.0), "verl")).name == "group_of_one"


def test_completions_of_one_length_to_the_digit_are_all_cut() -> None:
    for form in ("nemo", "openrlhf"):
        lines = rows(lambda _step, row: row.update(length=1024.0, cut=1.0, reward=0.05 + abs(row["loss"])), form)
        assert verdict(lines).layer == "data", form


# ---- what is healthy although it looks otherwise


def test_a_search_for_the_loss_scale_that_came_to_its_end_is_normal() -> None:
    lines = []
    for step in range(1, 30):
        if step <= 5:
            lines.append(
                f"[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {65536 >> step}, reducing to 0"
            )
        lines.append(str({"loss": 2.9 - step / 90, "learning_rate": 0.0 if step <= 5 else step * 1e-7}))
    assert verdict(lines).layer == "none"
    assert verdict(lines[:12]).layer != "none", "no row yet shows that it is over"


def test_one_loss_without_a_number_in_a_run_that_goes_on_is_a_note() -> None:
    lines = [str({"loss": math.nan if step == 2 else 0.2, "reward": step / 9}) for step in range(1, 30)]
    found = diagnose(lines_of(io.BytesIO("\n".join(lines).encode()), "run.log"))
    assert found.verdict.layer == "none"
    assert any("one loss that is no number" in note for note in found.notes)


def test_one_row_that_is_alive_does_not_move_the_onset_of_dead_rewards() -> None:
    def dead(step: int, row: Row) -> None:
        if step != 27:
            row.update(reward=0.0, std=0.0, dead=1.0, loss=0.0, grad=0.0)

    found = verdict(rows(dead))
    assert (found.layer, found.step) == ("reward", 1)


def test_one_gradient_that_is_no_number_among_many_is_a_note() -> None:
    def once(step: int, row: Row) -> None:
        if step == 9:
            row["grad"] = math.nan

    assert verdict(rows(once)).layer == "none"


def test_hosts_and_users_do_not_leave_the_house() -> None:
    text = redact("POST http://judge-7.prod.example.com:8080/v1 failed: user=alice host=db1")
    assert not any(word in text for word in ("judge-7", "alice", "db1"))
