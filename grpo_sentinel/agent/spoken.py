"""The few lines that rank 0 says in the trainer's own log: that nobody reads its record, and that the gate has closed.

Said once; of one kind of skipped update the first, then at most a line a minute with how many came since.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from grpo_sentinel.agent.core import Outcome
from grpo_sentinel.agent.guard import say
from grpo_sentinel.protocol.watched import is_watched

_LOOK_STEPS = 3
_LOOK_SECONDS = 2.0  # a sidecar that is there has taken the run up by then: it looks twice a second
_LAUNCHED_SECONDS = 20.0  # the launcher starts one beside the trainer
_AGAIN_SECONDS = 60.0
_MOST_NAMES = 3


@dataclass(slots=True)
class _Kind:
    """What was said of one kind of skip."""

    said_s: float
    since: int = 0


class Spoken:
    """Speaks for one rank; mute on all but rank 0. `directory` is the run's, None without a ring."""

    def __init__(
        self,
        rank: int,
        directory: Path | None,
        *,
        world: int = 1,
        launched: bool = False,
        say: Callable[[str], None] = say,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mute = rank != 0
        self._directory = directory
        self._say = say
        self._clock = clock
        self._began_s = clock()
        self._steps = 0
        self._looking = directory is not None
        self._launched = launched
        self._patience_s = _LAUNCHED_SECONDS if launched else _LOOK_SECONDS
        self._world = world
        self._kinds: dict[str, _Kind] = {}
        self._skips: dict[int, Outcome] = {}

    def step_ended(self, step: int, outcome: Outcome) -> None:
        """Take the outcome of a step; its names may come a step later, see `landed`."""
        self._steps += 1
        if outcome.skip and not outcome.by_scaler and not self._mute:
            self._skips[step] = outcome
        if self._looking and self._steps >= _LOOK_STEPS and self._clock() - self._began_s >= self._patience_s:
            self._look("is read by no sidecar: start `grpo-sentinel run`")

    def landed(self, step: int, names: Iterable[str]) -> None:
        """Say that the update of a step was skipped, with the tensors to blame, if it was and is not said too often."""
        outcome = self._skips.pop(step, None)
        if outcome is None:
            return
        kind = self._kinds.get(outcome.cause)
        now = self._clock()
        if kind is not None and now - kind.said_s < _AGAIN_SECONDS:
            kind.since += 1
            return
        more = f"; {kind.since} more since it was last said" if kind is not None and kind.since else ""
        self._kinds[outcome.cause] = _Kind(now)
        words = [_named(list(dict.fromkeys(names))), self._flagged(outcome)]
        about = f" ({'; '.join(filter(None, words))})" if any(words) else ""
        where = "" if self._world == 1 else " on every rank" if outcome.voted else " on this rank alone"
        self._say(f"step {step}: {outcome.cause}{about}; the update is skipped{where}{more}")

    def closed(self) -> None:
        """Say at the end of a short run what there was no time to say before."""
        if self._looking and not self._launched and self._steps >= _LOOK_STEPS:
            self._look(
                "was read by no sidecar: `grpo-sentinel run --once` reads it now, `grpo-sentinel run` while it runs"
            )

    def _flagged(self, outcome: Outcome) -> str:
        first, last = outcome.first_flagged, outcome.last_flagged
        if self._world == 1 or not outcome.voted or first < 0:
            return ""
        return f"flagged by rank {first}" if first == last else f"flagged by ranks {first} to {last}"

    def _look(self, what: str) -> None:
        self._looking = False
        if self._directory is not None and not self._mute and not is_watched(self._directory):
            self._say(f"recording to {self._directory}, which {what}")


def run_by_launcher() -> bool:
    """Tell whether `launch` runs this process: it switches the agent on by the environment."""
    return os.environ.get("GRPO_SENTINEL") == "1"


def _named(names: list[str]) -> str:
    return ", ".join(names[:_MOST_NAMES]) + (f" and {len(names) - _MOST_NAMES} more" if names[_MOST_NAMES:] else "")


__all__ = ["Spoken", "run_by_launcher"]
