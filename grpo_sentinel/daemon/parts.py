"""Builds the daemon's parts; one that cannot work says so in a sentence and is left out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from grpo_sentinel.clock import Clock
from grpo_sentinel.collectors.host import HostCollector
from grpo_sentinel.collectors.nvml import NvmlCollector
from grpo_sentinel.config import Config
from grpo_sentinel.daemon.background import Background
from grpo_sentinel.errors import ConfigError
from grpo_sentinel.halting.escalation import TakeStacks
from grpo_sentinel.halting.processes import mark_of_rank, send
from grpo_sentinel.history import HistoryStore, history_path
from grpo_sentinel.incidents.stacks import write_stacks
from grpo_sentinel.records import RankIdentity, Sample
from grpo_sentinel.rules.load import load_rules
from grpo_sentinel.rules.rule import RuleSet
from grpo_sentinel.sinks.fanout import FanOut
from grpo_sentinel.views import RankStatus, SinkBatch

if TYPE_CHECKING:
    from grpo_sentinel.daemon.daemon import Daemon
    from grpo_sentinel.daemon.serving import Server

Say = Callable[[str, str], None]
"""Says under a key what is off; "" that it is well again."""


class Waiting(Protocol):
    """A collector whose reading under way may be waited for."""

    name: str

    def poll(self, wait_seconds: float = 0.0) -> Sequence[Sample]: ...

    def close(self) -> None: ...


def own_pid() -> int:
    """This process, as others name it."""
    return os.getpid()


def rules(config: Config, say: Say) -> RuleSet:
    """Load the rules; broken user rules are said and left out, the others work."""
    found = load_rules(config.rules, strict=False)
    for index, problem in enumerate(found.problems):
        say(f"rule problem {index}", f"{problem}; this is left out, the other rules work")
    return found


def collectors(
    config: Config,
    paths: Sequence[Path],
    roots: Sequence[Path],
    ranks: Callable[[], Mapping[int, RankStatus]],
    clock: Clock,
    say: Say,
) -> list[Waiting]:
    """Build the readers of devices and host that are switched on."""
    made: list[Waiting] = []
    if config.collectors.host.enabled:
        existing = [path for path in paths if path.exists()]
        ring = next((root for root in roots if root.is_dir()), None)
        made.append(HostCollector(config.collectors.host, existing, clock, ring=ring, ranks=ranks))
    if config.collectors.nvml.enabled:
        made.append(NvmlCollector(config.collectors.nvml, clock))
    return made


class Sinks:
    """The fan-out with the sinks that are switched on."""

    def __init__(self, config: Config, state: Path, node: str, clock: Clock, say: Say) -> None:
        self.history_path = history_path(state, node)
        self._say = say
        factories: dict[str, Callable[[], object]] = {}
        if config.sinks.history.enabled:
            factories["history"] = lambda: HistoryStore(self.history_path, config.sinks.history, clock)
        self._fan_out = FanOut(factories, config.sinks.queue, clock)

    def publish(self, batch: SinkBatch) -> None:
        """Hand a batch to every sink; never blocks."""
        self._fan_out.publish(batch)

    def numbers(self) -> dict[str, float]:
        """Give the health of every sink as flat numbers."""
        out: dict[str, float] = {}
        return out

    def close(self, seconds: float) -> None:
        """Let the sinks write what waits, for at most `seconds`."""
        self._fan_out.close(seconds)


def serve(config: Config, daemon: Daemon, say: Say) -> Server | None:
    """Start page, API and /metrics in a thread; None when switched off or impossible, which is said."""
    if not config.http.enabled:
        return None
    from grpo_sentinel.daemon.serving import start

    return start(config, daemon, say)


def stack_taker(directory: Path, target: Path, background: Background, clock: Clock) -> TakeStacks:
    """Make the function that has the stacks of some ranks written, in the background."""

    def take(identities: Sequence[RankIdentity], why: str) -> str:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(clock.wall_ns() / 1e9))
        path = target / f"stacks-{stamp}.txt"
        ranks = tuple(identities)

        def job() -> None:
            write_stacks(ranks, directory, path, why, lambda identity, number: send(mark_of_rank(identity), number))

        background.submit(f"taking the stacks of {len(ranks)} ranks", job)
        return str(path)

    return take


__all__ = ["ConfigError", "Sinks", "Waiting", "collectors", "own_pid", "rules", "serve", "stack_taker"]
