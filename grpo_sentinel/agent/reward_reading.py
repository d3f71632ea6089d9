"""Reads raw rewards of one generation batch: scores of each function, and the groups that they were given to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo_sentinel.agent.guard import Guard
from grpo_sentinel.agent.probes import reward as reward_probe
from grpo_sentinel.agent.probes.groups import digest, observe_groups
from grpo_sentinel.agent.probes.samples import blamed
from grpo_sentinel.agent.probes.scores import score_matrix
from grpo_sentinel.agent.readback import Readback
from grpo_sentinel.sanitize import sanitized_totals


class RewardReader:
    """Keeps what is known of earlier batches: calls of the functions, how often each prompt was solved."""

    def __init__(self, guard: Guard, tell: Callable[[str, dict[str, Any]], None]) -> None:
        self.calls = reward_probe.CallMeter()
        self._guard = guard
        self._tell = tell
        self._history = reward_probe.History()
        self._nothing: dict[str, float] = {}  # function -> batches for which it returned None in place of scores

    def read(self, rewards: Any, details: dict[str, Any]) -> dict[str, float]:
        """Give the signals; `details` as `Agent.observe_rewards` takes them, with `group_size`. Synchronises once."""
        names, extra = details.pop("func_names", None), details.pop("extra", None) or {}
        identify = details.pop("identify", None)
        prompts, size = details.get("prompts_B"), details["group_size"]
        empty = self._returned_nothing(rewards, names)
        nothing = {f"reward.func_nothing[{name}]": count for name, count in self._nothing.items()}
        if isinstance(rewards, Mapping):
            rewards = {name: scores for name, scores in rewards.items() if scores is not None}
        if empty:
            details.pop("weights", None)  # of all functions, not of those that gave scores
        if empty and not rewards:
            return {**nothing, **self.calls.harvest(), **_sanitized(), **extra}
        scores, given = score_matrix(rewards)
        self._whole_groups(len(scores), size)
        names = given or names or [f"reward{index}" for index in range(scores.shape[-1])]
        readback = Readback()
        readback.add(reward_probe.observe(scores, names, history=self._history, **details))
        if prompts is not None and size:
            identify = identify or (lambda row: {"prompt_digest": digest(prompts[row])})
            extra = {**self.groups(prompts, details.get("completions_B"), size), **extra}
        harvest = readback.harvest()
        for body in blamed(harvest.samples, 0, None, identify):
            self._tell("sample", body)
        return {**harvest.values, **nothing, **self.calls.harvest(), **_sanitized(), **extra}

    def _returned_nothing(self, rewards: Any, names: Sequence[str] | None) -> list[str]:
        """Say and count which functions gave None for a whole batch: forgotten to return, or failed inside."""
        given = rewards if isinstance(rewards, Mapping) else dict.fromkeys(names or ["reward0"], rewards)
        empty = [str(name) for name, scores in given.items() if scores is None]
        for name in empty:
            self._nothing[name] = self._nothing.get(name, 0.0) + 1
            self._guard.refuse(
                f"observe_rewards({name}",
                f"observe_rewards({name}=None): the reward function {name} returned nothing, its scores are not "
                "judged; let it return one number for every completion",
            )
        return empty

    def groups(self, prompts: Sequence[object], completions: Sequence[object] | None, size: Any) -> Mapping[str, float]:
        """Judge the groups of a generation batch on the host."""
        return self._guard.run("groups", observe_groups, prompts, completions, group_size=size) or {} if size else {}

    def _whole_groups(self, rows: int, size: Any) -> None:
        if size and rows % size:
            self._guard.refuse(
                "observe_rewards(group_size",
                f"observe_rewards(rewards={rows} scores, group_size={size}): no whole number of groups, so the groups "
                "are not judged; give all completions of every prompt, those of one prompt side by side",
            )


def _sanitized() -> dict[str, float]:
    """What `sanitize_rewards()` has changed in this process, by function."""
    return {f"reward.func_sanitized[{name}]": float(count) for name, count in sanitized_totals().items()}
