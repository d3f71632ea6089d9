"""What happens when the ranks do not answer in time, in this order and never faster:

    deadline                        stacks of every rank of this node
    + terminate_seconds             SIGTERM to the launcher (a rank would only be started again by torchrun)
    + kill_after_seconds, if set    SIGKILL to the launcher, then to the ranks it leaves behind

A request for a checkpoint alone stops after the stacks: it must not end a run.

How far it has come is kept beside the ring: a sidecar started again in the middle goes on from there. A launcher
that has had its SIGTERM is ending its ranks (torchrun gives them 30 s) and must not be disturbed by a second one.
"""

from __future__ import annotations

import contextlib
import enum
import json
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from grpo_sentinel.config import HaltingConfig
from grpo_sentinel.halting.launcher import LauncherHandle
from grpo_sentinel.halting.processes import mark_of_rank, send
from grpo_sentinel.records import RankIdentity
from grpo_sentinel.views import RankStatus

TakeStacks = Callable[[Sequence[RankIdentity], str], str]
"""Starts writing the stacks of some ranks, told why; gives at once where they will lie. Never blocks."""


ESCALATION_NAME = "escalation.json"


class Stage(enum.IntEnum):
    WAITING = 0
    STACKS = 1
    TERMINATED = 2
    KILLED = 3


class Escalation:
    """One overdue request on its way up; `said` is what was done so far, for the status."""

    def __init__(
        self,
        config: HaltingConfig,
        launcher: LauncherHandle | None,
        take_stacks: TakeStacks | None,
        directory: Path,
        request_id: int,
        since_ns: int,
    ) -> None:
        """Take up what an earlier sidecar did about the request `request_id`, which was made at `since_ns`."""
        self._memory = directory / ESCALATION_NAME
        self._request = [request_id, since_ns]
        self._config = config
        self._launcher = launcher
        self._take_stacks = take_stacks
        self.stage = Stage.WAITING
        self.said = ""
        self._since_ns = 0
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            kept = json.loads(self._memory.read_text(encoding="utf-8"))
            if kept["request"] == self._request:
                self.stage, self.said = Stage(int(kept["stage"])), str(kept["said"])
                self._since_ns = int(kept["since_ns"])

    @property
    def exhausted(self) -> bool:
        """Tell whether nothing is left to be done."""
        last = Stage.TERMINATED if self._config.kill_after_seconds is None else Stage.KILLED
        return self.stage >= last

    def advance(self, now_ns: int, ranks: Mapping[int, RankStatus], *, what: str, may_end_run: bool) -> None:
        """Take the next step if its time has come; `what` says what is overdue."""
        if self.stage is Stage.WAITING:
            self._enter(Stage.STACKS, now_ns, f"{what}; {self._stacks(ranks, what)}")
        elif not may_end_run:
            return
        elif self.stage is Stage.STACKS and now_ns - self._since_ns >= self._config.terminate_seconds * 1e9:
            self._enter(Stage.TERMINATED, now_ns, self._signal_launcher(ranks, signal.SIGTERM))
        elif self.stage is Stage.TERMINATED and self._kill_due(now_ns):
            self._enter(Stage.KILLED, now_ns, self._kill(ranks))

    def _enter(self, stage: Stage, now_ns: int, done: str) -> None:
        self.stage, self._since_ns = stage, now_ns
        self.said = f"{self.said}; {done}" if self.said else done
        body = {"request": self._request, "stage": int(stage), "since_ns": now_ns, "said": self.said}
        with contextlib.suppress(OSError):  # then a restart begins with the stacks again
            self._memory.write_text(json.dumps(body), encoding="utf-8")

    def waited_s(self, now_ns: int) -> float:
        """Seconds since the last step."""
        return (now_ns - self._since_ns) / 1e9

    def _kill_due(self, now_ns: int) -> bool:
        after = self._config.kill_after_seconds
        return after is not None and now_ns - self._since_ns >= after * 1e9

    def _stacks(self, ranks: Mapping[int, RankStatus], what: str) -> str:
        if self._take_stacks is None:
            return "no stacks taken"
        return f"stacks in {self._take_stacks([status.identity for status in ranks.values()], what)}"

    def _signal_launcher(self, ranks: Mapping[int, RankStatus], number: signal.Signals) -> str:
        mark = self._launcher.find(ranks) if self._launcher is not None else None
        if mark is None:
            return f"no launcher found for {number.name}"
        problem = send(mark, number)
        return (
            f"{number.name} not sent: {problem}" if problem else f"{number.name} sent to the launcher, pid {mark.pid}"
        )

    def _kill(self, ranks: Mapping[int, RankStatus]) -> str:
        done = self._signal_launcher(ranks, signal.SIGKILL)
        killed = [
            rank for rank, status in sorted(ranks.items()) if not send(mark_of_rank(status.identity), signal.SIGKILL)
        ]
        return f"{done}, and to ranks {killed}" if killed else done
