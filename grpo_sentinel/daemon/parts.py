"""Builds the daemon's parts; one that cannot work says so in a sentence and is left out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from grpo_sentinel.clock import Clock
from grpo_sentinel.collectors.host import HostCollector
from grpo_sentinel.collectors.nvml import NvmlCollector
from grpo_sentinel.config import Config
from grpo_sentinel.daemon.background import Background
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.halting.escalation import TakeStacks
from grpo_sentinel.halting.processes import mark_of_rank, send
from grpo_sentinel.history import history_path
from grpo_sentinel.incidents.recorder import IncidentRecorder
from grpo_sentinel.incidents.stacks import write_stacks
from grpo_sentinel.records import RankIdentity, Sample
from grpo_sentinel.rules.load import load_rules
from grpo_sentinel.rules.rule import RuleSet
from grpo_sentinel.sinks.base import Sink, SinkContext, enabled, load_factory
from grpo_sentinel.sinks.fanout import FanOut
from grpo_sentinel.sinks.prometheus import MetricsRenderer
from grpo_sentinel.sinks.worker import SinkState
from grpo_sentinel.views import RankStatus, SinkBatch
from grpo_sentinel.web.app import build_app
from grpo_sentinel.web.server import WebServer
from grpo_sentinel.web.state import WebState

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
    found = load_rules(config.rules, halting=config.halting, strict=False)
    for index, problem in enumerate(found.problems):
        say(f"rule problem {index}", f"{problem}; this is left out, the other rules work")
    return found


def collectors(
    config: Config,
    paths: Sequence[Path],
    roots: Sequence[Path],
    ranks: Callable[[], Mapping[int, RankStatus]],
    clock: Clock,
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


def incidents(
    config: Config, state: Path, node: str, clock: Clock, history: Path, background: Background
) -> IncidentRecorder:
    """Build the recorder of incidents; its bundles are written in `background`."""
    return IncidentRecorder(
        state,
        config.incidents,
        node=node,
        submit=background.submit,
        history=history if config.sinks.history.enabled else None,
        sentinel=config.model_dump(mode="json"),
        clock=clock,
    )


class Sinks:
    """The fan-out with the sinks that are switched on, and the renderer behind /metrics."""

    def __init__(self, config: Config, state: Path, node: str, clock: Clock) -> None:
        self.history_path = history_path(state, node)
        self.metrics = MetricsRenderer(config.sinks.prometheus, clock) if config.sinks.prometheus.enabled else None
        context = SinkContext(run_id="", node=node, state_dir=state, clock=clock, config=config.sinks)
        factories: dict[str, Callable[[], Sink]] = {}
        for name in enabled(config.sinks):
            factories[name] = partial(load_factory(name), context)
        if self.metrics is not None:
            factories["prometheus"] = partial(_given, self.metrics)  # the one that the page serves
        self._fan_out = FanOut(factories, config.sinks.queue, clock)

    def publish(self, batch: SinkBatch) -> None:
        """Hand a batch to every sink; never blocks."""
        self._fan_out.publish(batch)

    def numbers(self) -> dict[str, float]:
        """Give the health of every sink as flat numbers."""
        return self._fan_out.health()

    def problems(self) -> list[str]:
        """Name every sink that does not take what it is given."""
        bad = (SinkState.FAILED, SinkState.HANGING, SinkState.DEGRADED)
        return [
            f"the sink {name} is {health.state.value}: {health.error or 'no answer'}"
            for name, health in self._fan_out.report().items()
            if health.state in bad
        ]

    def close(self, seconds: float) -> None:
        """Let the sinks write what waits, for at most `seconds`."""
        self._fan_out.close(seconds)


def _given(sink: Sink) -> Sink:
    return sink


def serve(config: Config, state: WebState, say: Say) -> WebServer | None:
    """Start page, API and /metrics in a thread; None when switched off or impossible, which is said."""
    if not config.http.enabled:
        return None
    try:
        server = WebServer(build_app(state), config.http.host, config.http.port)
        server.start()
    except (SentinelError, OSError) as error:
        say("http", f"page, API and /metrics are off: {error}")
        return None
    if server.note:
        say("port", server.note)
    return server


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
