"""Reward faults: what the policy is paid for is not what was meant."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks.faultbench.fault import HARD, INF, LOOP1, LOOP2, NAN, SUBTLE, TRL1, TRL2, Fault, Mechanism

Scores = list[float]
ALL = ("accuracy", "shortness", "judge")


def _each(change: Callable[[Any], Any], *functions: str) -> Callable[[Fault], None]:
    """Change what some reward functions return (all where none is named)."""

    def inject(fault: Fault) -> None:
        for name in functions or fault.run.scorer_names():
            fault.score(change, name)

    return inject


def _some(value: float | None, count: int = 1) -> Callable[[Any], Any]:
    return lambda scores: [value] * count + [float(s) for s in scores[count:]]


def _all(value: float | None) -> Callable[[Any], Any]:
    return lambda scores: [value] * len(scores)


def _affine(scale: float, offset: float = 0.0) -> Callable[[Any], Any]:
    return lambda scores: [scale * float(score) + offset for score in scores]


def _stale(fault: Fault) -> None:
    for name in fault.run.scorer_names():
        before: list[Any] = []

        def late(scores: Any, before: list[Any] = before) -> Any:
            before.append(list(scores))
            return before[-2] if len(before) > 1 else None

        fault.score(late, name)


def _noise(fault: Fault) -> None:
    fault.score(lambda scores: [float(s) + fault.run.draw.gauss(0, 10) for s in scores])


def _random(fault: Fault) -> None:
    for name in fault.run.scorer_names():
        fault.score(lambda scores: [fault.run.draw.random() for _ in scores], name)


def _raises(fault: Fault) -> None:
    def fail(scores: Any) -> Any:
        raise TimeoutError("faultbench: the grading service does not answer")

    fault.score(fail)


def _slow(fault: Fault) -> None:
    def wait(scores: Any) -> None:
        if fault.since < 4:
            time.sleep(6.0)

    fault.score(wait)


def _dropout(fault: Fault) -> None:
    def train(_: Any) -> None:
        fault.run.judge.train()

    fault.at("load", train)


def _graph(fault: Fault) -> None:
    def keep(scores: Any) -> Any:
        import torch

        weight = fault.run.judge.score.weight
        return scores + 0 * torch.nn.Parameter(weight.detach().clone()).sum()

    def allowed(_: Any) -> None:
        fault.run.judge.requires_grad_(True)

    fault.at("load", allowed)
    fault.at("score/judge", _with_grad(keep))


def _with_grad(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def call(value: Any) -> Any:
        import torch

        with torch.enable_grad():
            return function(value)

    return call


def _pays_length(fault: Fault) -> None:
    """A reward for every token, and a policy that has found it: its end token gets rarer step by step."""
    from benchmarks.faultbench import policy as world

    def learn(_: Any) -> None:
        if fault.since < 60:
            fault.run.policy.lm_head.bias.data[world.EOS] -= 0.06

    def paid(prompt: Any, text: Any, wanted: Any) -> float:
        return len(text) / 4.0 if fault.acts() else 0.05 * len(text)

    fault.at("step", learn)
    fault.run.scorers["length"] = paid


ROWS = [
    Mechanism(name="one_reward_nan", layer="reward", what="every function gives NaN for one sample of rank 1", severity=HARD,
              inject=_each(_some(NAN)), roots=("reward",), trainers=(LOOP2, TRL2), rank=1, start=20, steps=40),
    Mechanism(name="function_nan", layer="reward", what="one function gives NaN for all samples; nan-means hide it", severity=HARD,
              inject=_each(_all(NAN), "accuracy"), roots=("reward",), trainers=(LOOP2, TRL1), rank=1, start=20, steps=40),
    Mechanism(name="reward_infinite", layer="reward", what="one score is infinite", severity=HARD,
              inject=_each(_some(INF), "accuracy"), roots=("reward",), trainers=(LOOP1, TRL1), start=20, steps=40),
    Mechanism(name="function_none", layer="reward", what="a function returns None for every sample", inject=_each(_all(None), "accuracy"),
              roots=("reward",), start=20, steps=40),
    Mechanism(name="reward_constant", layer="reward", what="every sample is paid the same", inject=_each(_all(0.5)),
              roots=("reward",), trainers=(LOOP2, TRL1), start=20, steps=50),
    Mechanism(name="function_stuck", layer="reward", what="one of three functions returns its default for all", inject=_each(_all(0.0), "accuracy"),
              roots=("reward",), steps=70),
    Mechanism(name="reward_sign_flipped", layer="reward", what="a function's sign is flipped: good answers cost", inject=_each(_affine(-1.0), "accuracy"),
              roots=("reward",), trainers=(LOOP1, TRL1), steps=80),
    Mechanism(name="reward_absurd_scale", layer="reward", what="a score is multiplied by 1e8: an overflowing judge", severity=HARD,
              inject=_each(_affine(1e8), "accuracy"), roots=("reward",), start=20, steps=40),
    Mechanism(name="reward_scaled_100", layer="reward", what="one function is 100 times as large: the others have no say",
              inject=_each(_affine(100.0), "shortness"), roots=("reward",), severity=SUBTLE, steps=150),
    Mechanism(name="reward_offset", layer="reward", what="all scores 5 higher: a version of the judge with another zero",
              inject=_each(_affine(1.0, 5.0), "judge"), roots=("reward",), severity=SUBTLE, steps=100),
    Mechanism(name="reward_drops", layer="reward", what="the judge's scores fall to a tenth", inject=_each(_affine(0.1)),
              roots=("reward",), steps=80),
    Mechanism(name="reward_saturates", layer="reward", what="all scores are clipped at their ceiling", inject=_each(_all(1.0)),
              roots=("reward",), trainers=(LOOP1, TRL2), start=20, steps=60),
    Mechanism(name="reward_pays_length", layer="reward", what="completions get longer and reward is their length", inject=_pays_length,
              roots=("reward", "data"), slow=True, severity=SUBTLE, steps=140),
    Mechanism(name="reward_of_last_batch", layer="reward", what="scores arrive one batch late", inject=_stale,
              roots=("reward",), severity=SUBTLE, steps=110),
    Mechanism(name="reward_noise", layer="reward", what="noise of ten times the signal in one function", inject=_noise,
              roots=("reward",), severity=SUBTLE, steps=110),
    Mechanism(name="reward_random", layer="reward", what="all functions return random numbers", inject=_random,
              roots=("reward",), severity=SUBTLE, steps=110),
    Mechanism(name="judge_dropout", layer="reward", what="the reward model is in training mode, its dropout active",
              inject=_dropout, roots=("reward",), start=20, steps=40),
    Mechanism(name="judge_keeps_graph", layer="reward", what="reward pass with autograd on a trainable judge", inject=_graph,
              roots=("reward",), start=20, steps=40),
    Mechanism(name="function_raises", layer="reward", what="a reward function raises on rank 1", severity=HARD, inject=_raises,
              roots=("reward", "sentinel", "time"), trainers=(LOOP2, TRL1), rank=1, start=20, steps=30, ends=True),
    Mechanism(name="function_slow", layer="reward", what="a reward call takes 6 s, four times", inject=_slow,
              roots=("reward", "time"), severity=SUBTLE, start=25, steps=35),
]  # fmt: skip
