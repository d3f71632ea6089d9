"""One symptom with two causes: what stands beside it tells which."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from grpo_sentinel.diagnosis.trend_checks import gradient_died
from grpo_sentinel.diagnosis.triage import diagnose
from grpo_sentinel.diagnosis.verdict import Candidate
from grpo_sentinel.diagnosis.view import view_of
from grpo_sentinel.history.logs.lines import Line


def verdict_of(lines: list[str]) -> Candidate:
    return diagnose(Line("rank0.log", number, text) for number, text in enumerate(lines, 1)).verdict


def rows(count: int = 12, **given: object) -> list[str]:
    """Rows of a run that learns nothing; a callable gives the value of a step."""
    out = []
    for step in range(1, count + 1):
        row: dict[str, object] = {
            "loss": 0.0, "grad_norm": 0.0, "learning_rate": 1e-6, "reward": 0.0, "reward_std": 0.0,
            "frac_reward_zero_std": 1.0, "completions/mean_length": 512.0, "completions/clipped_ratio": 1.0,
            "entropy": 0.5, "step_time": 20.0, "epoch": step / 100,
        }  # fmt: skip
        row.update(
            {name.replace("__", "/"): value(step) if callable(value) else value for name, value in given.items()}
        )
        out.append(str(row))
    return out


def test_long_answers_that_are_all_cut_are_the_datas_with_no_more_than_two_thirds() -> None:
    found = verdict_of(rows())
    assert (found.layer, found.name) == ("data", "all_truncated")
    assert found.confidence <= 0.65


@pytest.mark.parametrize(
    ("lines", "given"),
    [
        ([], {"entropy": 9.7}),
        (["Some weights of M were not initialized and are newly initialized: ['model.layers.0.q.weight']"], {}),
        ([], {"completions__clipped_ratio": lambda n: 0.1 if n < 3 else 1.0, "reward": lambda n: 0.4 if n < 3 else 0.0,
              "frac_reward_zero_std": lambda n: 0.2 if n < 3 else 1.0}),
    ],
    ids=["entropy near its top", "layers newly made", "from one row to the next"],
)  # fmt: skip
def test_noise_that_is_all_cut_is_the_policys(lines: list[str], given: dict[str, object]) -> None:
    found = verdict_of([*lines, *rows(**given)])
    assert (found.layer, found.name) == ("policy", "noise_written")


def test_a_head_that_is_newly_made_is_no_sign_of_noise() -> None:
    said = "Some weights of M were not initialized and are newly initialized: ['score.weight']"
    assert verdict_of([said, *rows()]).layer == "data"


def test_a_temperature_that_is_far_too_high_is_seen_although_groups_differ() -> None:
    draw = random.Random(4)
    hot = rows(
        20, entropy=lambda n: 8 + 0.01 * (n % 3), completions__clipped_ratio=0.9, reward=lambda n: draw.gauss(0.02, 0.01),
        reward_std=0.03, frac_reward_zero_std=0.6, grad_norm=0.2,
    )  # fmt: skip
    assert verdict_of(hot).name == "noise_written"


@pytest.mark.parametrize("length", [0.0, 1.0])
def test_completions_without_a_word_are_the_templates_doing_not_the_rewards(length: float) -> None:
    found = verdict_of(rows(completions__mean_length=length, completions__clipped_ratio=0.0))
    assert (found.layer, found.name) == ("data", "empty_completions")


def _slower(step: int) -> float:
    return 20.0 + step % 3 if step < 9 else 70.0


_ALIVE = {"grad_norm": 0.4, "reward_std": 0.3, "frac_reward_zero_std": 0.2, "completions__clipped_ratio": 0.05}


def test_steps_that_take_three_times_as_long_beside_lowered_clocks_are_the_devices() -> None:
    run = rows(16, **_ALIVE, reward=lambda n: 0.2 + n / 100, step_time=_slower)
    hot = "    HW Thermal Slowdown               : Active"
    assert verdict_of([*run, hot]).layer == "device"
    assert verdict_of(run).layer != "device"
    assert (
        verdict_of(rows(16, **_ALIVE, step_time=_slower, gpu_sm_clock=lambda n: 1980 if n < 9 else 585)).layer
        == "device"
    )
    longer = rows(16, **_ALIVE, step_time=_slower, completions__mean_length=lambda n: 300.0 if n < 9 else 900.0)
    assert verdict_of([*longer, hot]).layer != "device"


def _raised(*lines: str) -> list[str]:
    return [
        "Traceback (most recent call last):",
        '  File "/v/trl/trainer/grpo_trainer.py", line 1141, in _calculate_rewards',
        "    output = reward_func(prompts=prompts, completions=completions, **kwargs)",
        *lines,
    ]


_IN_SCORER = ('  File "/ws/train.py", line 73, in accuracy', "    x = f(answer)")
_SENT = ('  File "/v/requests/sessions.py", line 703, in send', "    r = adapter.send(request)")


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        ((*_IN_SCORER, "SystemExit: 0"), "reward_function_raised"),
        ((*_IN_SCORER, "ZeroDivisionError: division by zero"), "reward_function_raised"),
        ((*_IN_SCORER, *_SENT, "requests.exceptions.ConnectionError: Connection refused"), "reward_function_raised"),
        (("TypeError: accuracy() missing 1 required positional argument: 'answer'",), "reward_argument"),
    ],
)
def test_what_a_scorer_raises_is_the_rewards_whatever_it_is_called(lines: tuple[str, ...], name: str) -> None:
    found = verdict_of(_raised(*lines))
    assert (found.layer, found.name) == ("reward", name)


def test_a_missing_column_is_told_with_the_columns_of_the_data() -> None:
    found = verdict_of(_raised("TypeError: accuracy() missing 1 required positional argument: 'answer'"))
    assert "accuracy" in found.says
    assert "column" in found.tries[0]


def test_a_refused_connection_outside_of_a_scorer_is_no_rewards() -> None:
    lines = ["Traceback (most recent call last):", '  File "/ws/train.py", line 9, in push_weights', "    x = f()"]
    assert verdict_of([*lines, *_SENT, "requests.exceptions.ConnectionError: Connection refused"]).layer != "reward"


def test_a_chained_exception_is_counted_once() -> None:
    first = [
        "Traceback (most recent call last):",
        '  File "/v/http/client.py", line 3, in connect',
        "    self.sock = f()",
        "ConnectionRefusedError: [Errno 111] Connection refused",
    ]
    second = [
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        "Traceback (most recent call last):",
        '  File "/v/requests/adapters.py", line 9, in send',
        "    raise ConnectionError(e)",
        "requests.exceptions.ConnectionError: Max retries exceeded: Connection refused",
    ]
    assert "2 times" not in verdict_of([*first, *second]).says


def test_a_peer_that_went_away_alone_decides_nothing() -> None:
    found = verdict_of(
        ["[rank3]: RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.5]:2241"]
    )
    assert found.layer == "undetermined"


def test_a_learning_rate_that_never_was_one_has_its_own_first_advice() -> None:
    draw = random.Random(2)
    found = verdict_of(rows(**_ALIVE, learning_rate=0.0, reward=lambda _: 0.3 + draw.gauss(0, 0.02), entropy=0.4))
    assert found.name == "never_a_learning_rate"
    assert "param_groups" in " ".join(found.tries)


@pytest.mark.parametrize(("late", "died"), [(0.3, True), (float("nan"), False)])
def test_a_gradient_dies_only_beside_rewards_that_are_numbers(late: float, died: bool) -> None:
    run = rows(
        16, **{**_ALIVE, "grad_norm": lambda n: 0.4 if n < 8 else 0.0, "reward": lambda n: 0.3 if n < 8 else late}
    )  # fmt: skip
    view = view_of(Line("rank0.log", number, text) for number, text in enumerate(run, 1))
    assert (gradient_died(view) is not None) == died


@pytest.mark.parametrize(("reward", "sure"), [(lambda n: 0.1 + n / 40, 0.7), (lambda n: 0.3 + n % 3 / 50, 0.6)])
def test_healthy_is_surer_where_the_reward_rises(reward: Callable[[int], float], sure: float) -> None:
    found = verdict_of(rows(16, **_ALIVE, reward=reward))
    assert (found.layer, found.confidence) == ("none", sure)


def test_one_row_that_is_not_cut_does_not_hide_that_all_others_are() -> None:
    found = verdict_of(rows(completions__clipped_ratio=lambda n: 0.97 if n == 5 else 1.0))
    assert found.name == "all_truncated"


def test_moments_on_another_device_are_the_optimizers() -> None:
    trace = [
        "Traceback (most recent call last):",
        '  File "/v/torch/optim/adamw.py", line 538, in _multi_tensor_adamw',
        "    torch._foreach_lerp_(device_exp_avgs, device_grads, 1 - beta1)",
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cpu and cuda:0!",
    ]
    assert verdict_of(trace).layer == "optimizer"
    assert (
        verdict_of([trace[0], '  File "/ws/model.py", line 3, in forward', "    a + b", trace[-1]]).layer == "tooling"
    )
