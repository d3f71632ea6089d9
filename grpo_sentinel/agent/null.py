"""What a loop gets when nothing is watched: the same methods, no effect, no cost. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the loop should do after a step; equal on all ranks when the step vote works.

    `halt`: leave the loop; true from then on. `checkpoint`: save first, then call `checkpoint_saved(path)`; told once,
    at the same step on all ranks. Where all hold the same weights (DDP), rank 0's call is enough.
    `skipped`: the gate stopped this step's update.
    """

    halt: bool = False
    checkpoint: bool = False
    skipped: bool = False
    request_id: int = 0
    reason: str = ""


NOTHING = Verdict()


class NullAgent:
    """Stands in for `Agent` where it is disabled, broken or in a forked child; `reason` says which."""

    active = False

    def __init__(self, reason: str = "") -> None:
        self.reason = reason

    def __repr__(self) -> str:
        """Say that nothing is watched, and why."""
        return f"<grpo_sentinel agent: nothing is watched ({self.reason or 'no reason given'})>"

    def watch(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def configure(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def on_close(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def begin_step(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def observe_data(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def observe_rewards(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    @contextmanager
    def scoring(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        """Run the block and nothing else."""
        yield

    def observe_model(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def observe_policy(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def observe_gradients(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def look_at_gradients(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def take_norm(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def observe_optimizer(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    @contextmanager
    def phase(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        """Run the block and nothing else."""
        yield

    def enter(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def leave(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def event(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def exception(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def vote(self, *args: Any, **kwargs: Any) -> Any:
        """Give the outcome of a vote that was not held: nothing is skipped."""
        from grpo_sentinel.agent.core import Outcome  # needs torch, which a loop that votes has

        return Outcome(voted=False)

    def end_step(self, *args: Any, **kwargs: Any) -> Verdict:
        """Return a verdict that asks for nothing."""
        return NOTHING

    def checkpoint_saved(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def checkpoint_failed(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def close(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def disown(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def __enter__(self) -> NullAgent:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
