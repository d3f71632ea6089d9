"""Our values in the trainer's own logs: `append_to_logs(trainer, ["policy.kl_k3_nats"])`, for transformers and TRL.

    writer.push(values) ── kept: newest value of each wanted signal ──▶ on_log: logs["sentinel/policy/kl_k3_nats"]

Reporters such as W&B's callback are told in the order in which they were added, so ours goes to the front and changes
the dictionary that all of them get. What is logged is this rank's own view of the newest step that it has recorded, at
most one step back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from transformers import TrainerCallback

from grpo_sentinel.agent import entry
from grpo_sentinel.agent.agent import Agent

PREFIX = "sentinel/"


class Tee:
    """A writer that keeps the newest value of some signals on their way to the ring."""

    def __init__(self, writer: Any, names: frozenset[str]) -> None:
        self._writer, self._names = writer, names
        self.newest: dict[str, float] = {}

    def push(self, values: Mapping[str, float], **place: Any) -> None:
        """Keep what is wanted, pass everything on."""
        self.newest.update({name: values[name] for name in self._names & values.keys()})
        self._writer.push(values, **place)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


class LogAppender(TrainerCallback):  # type: ignore[misc]
    """Adds our values to what the Trainer logs; where nothing is watched it adds nothing."""

    def __init__(self, names: Iterable[str], prefix: str = PREFIX) -> None:
        self._names, self._prefix = frozenset(names), prefix
        self._agent: Agent | None = None
        self._tee: Tee | None = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
        """Find the agent, which attaches when training begins."""
        agent = entry._current
        if agent is not None and agent is not self._agent:
            self._tee = Tee(agent.writer, self._names)
            agent.writer = self._tee
            self._agent = agent

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kw: Any) -> None:
        """Add what is known to the dictionary that every reporter gets."""
        if logs is not None and self._tee is not None:
            logs.update({self._prefix + name.replace(".", "/"): value for name, value in self._tee.newest.items()})


def append_to_logs(trainer: Any, names: Iterable[str], prefix: str = PREFIX) -> LogAppender:
    """Let a Trainer log these signals of its own rank, as `sentinel/<layer>/<signal>`; call it before `train()`."""
    appender = LogAppender(names, prefix)
    trainer.callback_handler.callbacks.insert(0, appender)
    return appender
