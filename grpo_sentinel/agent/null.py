"""What a loop gets when nothing is watched: the same methods, no effect, no cost. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from grpo_sentinel.records import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the loop should do after a step; equal on all ranks when the step vote works.

    `halt`: leave the loop. `checkpoint`: save first, on all ranks, then call `checkpoint_saved(path)`.
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

    def observe_data(self, batch: Any = None, **tensors: Any) -> None:
        """Do nothing."""

    def observe_rewards(self, rewards: Any = None, **kwargs: Any) -> None:
        """Do nothing."""

    def observe_policy(self, **kwargs: Any) -> None:
        """Do nothing."""

    def observe_gradients(self, norm: Any = None, **kwargs: Any) -> None:
        """Do nothing."""

    def look_at_gradients(self, **kwargs: Any) -> None:
        """Do nothing."""

    def observe_optimizer(self, **kwargs: Any) -> None:
        """Do nothing."""

    @contextmanager
    def phase(self, phase: Phase | str) -> Iterator[None]:
        """Run the block and nothing else."""
        yield

    def event(self, kind: str, body: Any = None, *, step: int | None = None) -> None:
        """Do nothing."""

    def end_step(self, step: int | None = None) -> Verdict:
        """Return a verdict that asks for nothing."""
        return NOTHING

    def checkpoint_saved(self, path: Any) -> None:
        """Do nothing."""

    def close(self, detail: str = "finished") -> None:
        """Do nothing."""

    def __enter__(self) -> NullAgent:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
