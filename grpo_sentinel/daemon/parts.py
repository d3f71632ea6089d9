"""Builds the daemon's parts; one that cannot work says so in a sentence and is left out."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from grpo_sentinel.clock import Clock
from grpo_sentinel.collectors.host import HostCollector
from grpo_sentinel.collectors.nvml import NvmlCollector
from grpo_sentinel.config import Config
from grpo_sentinel.daemon.background import Background
from grpo_sentinel.daemon.port_holder import holder_of
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.halting.escalation import TakeStacks
from grpo_sentinel.halting.processes import mark_of_rank, send
from grpo_sentinel.history import history_path
from grpo_sentinel.incidents.recorder import IncidentRecorder
from grpo_sentinel.incidents.stacks import write_stacks
from grpo_sentinel.records import Action, RankIdentity, Sample
from grpo_sentinel.rules.load import load_rules
from grpo_sentinel.rules.rule import RuleSet
from grpo_sentinel.scrub import learn
from grpo_sentinel.sinks.base import Page, Sink, SinkContext, enabled, load_factory, no_page
from grpo_sentinel.sinks.fanout import FanOut
from grpo_sentinel.sinks.prometheus import MetricsRenderer
from grpo_sentinel.sinks.worker import SinkState
from grpo_sentinel.views import RankStatus, SinkBatch
from grpo_sentinel.web.app import build_app
from grpo_sentinel.web.server import WebServer
from grpo_sentinel.web.state import AlertActions, WebState
from grpo_sentinel.wording import counted

MIN_TOKEN = 16  # characters of a token that a person chose

Say = Callable[[str, str], None]
"""Says under a key what is off; "" that it is well again."""


class PortTaken(SentinelError):
    """The only port that may be served on is not to be had: this ends the sidecar."""


class Waiting(Protocol):
    """A collector whose reading under way may be waited for."""

    name: str

    def poll(self, wait_seconds: float = 0.0) -> Sequence[Sample]: ...

    def close(self) -> None: ...


def own_pid() -> int:
    """This process, as others name it."""
    return os.getpid()


def act_token(config: Config, say: Say) -> str:
    """Give the token that acting needs: from its file, or a new one that only this user's processes can find out."""
    own, path = secrets.token_urlsafe(24), config.http.act_token_file
    learn(own)
    if path is None:
        return own
    try:
        token = Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        say("act token", f"http.act_token_file {path} cannot be read ({error}); a token of its own is used instead")
        return own
    if len(token) < MIN_TOKEN:
        say("act token", f"http.act_token_file {path} holds fewer than {MIN_TOKEN} characters; another one is used")
        return own
    learn(token)
    return token


def alerts(config: Config, act: Callable[[str, Action, str, str], int]) -> AlertActions | None:
    """Say what alerts of Alertmanager's may ask for; None when none is listed."""
    halting = config.halting
    if not halting.on_alerts:
        return None
    actions = {name: Action[action.upper().replace("-", "_")] for name, action in halting.on_alerts.items()}
    only_say = halting.dry_run or not halting.enabled
    return AlertActions(by_name=actions, labels=halting.on_alert_labels, act=act, only_say=only_say)


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
        existing = [_nearest(path) for path in paths]  # the state directory may be made only later
        ring = next((root for root in roots if root.is_dir()), None)
        made.append(HostCollector(config.collectors.host, existing, clock, ring=ring, ranks=ranks))
    if config.collectors.nvml.enabled:
        made.append(NvmlCollector(config.collectors.nvml, clock))
    return made


def _nearest(path: Path) -> Path:
    """The path, or the nearest folder above it that exists: on the same file system once it is made."""
    return next((one for one in (path, *path.absolute().parents) if one.exists()), Path("/"))


def incidents(
    config: Config, state: Path, node: str, clock: Clock, history: Path, background: Background, stacks: Background
) -> IncidentRecorder:
    """Build the recorder of incidents; its bundles are written in `background`, stacks taken in `stacks`."""

    def take_stacks(directory: Path, identities: Sequence[RankIdentity], why: str) -> None:
        stack_taker(directory, state / "stacks" / directory.name, stacks, clock)(identities, why)

    return IncidentRecorder(
        state,
        config.incidents,
        node=node,
        submit=background.submit,
        history=history if config.sinks.history.enabled else None,
        sentinel=config.model_dump(mode="json"),
        clock=clock,
        stacks=take_stacks,
    )


class Sinks:
    """The fan-out with the sinks that are switched on, and the renderer behind /metrics."""

    def __init__(self, config: Config, state: Path, node: str, clock: Clock, page: Page = no_page) -> None:
        self.history_path = history_path(state, node)
        self.metrics = MetricsRenderer(config.sinks.prometheus, clock) if config.sinks.prometheus.enabled else None
        context = SinkContext(run_id="", node=node, state_dir=state, clock=clock, config=config.sinks, page=page)
        factories: dict[str, Callable[[], Sink]] = {}
        for name in enabled(config.sinks):
            factories[name] = partial(load_factory(name), context)
        for name, settings in config.sinks.external.items():
            factories[name] = partial(_external, name, replace(context, settings=settings))
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


def _external(name: str, context: SinkContext) -> Sink:
    """Make a sink of another package, in its own thread: what its import costs or breaks is its own."""
    return load_factory(name)(context)


def _given(sink: Sink) -> Sink:
    return sink


def for_others(url: str, node: str) -> str:
    """Give the address of a page as others may use it: one that listens everywhere is found under the node's name."""
    for everywhere in ("//0.0.0.0:", "//[::]:"):
        url = url.replace(everywhere, f"//{node}:")
    return url


def serve(config: Config, state: WebState, say: Say) -> WebServer | None:
    """Start page, API and /metrics in a thread; None when switched off or impossible, which is said."""
    if not config.http.enabled:
        return None
    try:
        server = WebServer(build_app(state), config.http.host, config.http.port)
        if server.note and config.http.fixed_port:
            server.stop(0.0)
            raise PortTaken(
                f"port {config.http.port} is not to be had{_held_by(config)} and http.fixed_port is true; "
                "end what listens there or give another http.port"
            )
        server.start()
    except PortTaken:
        raise
    except (SentinelError, OSError) as error:
        say("http", f"page, API and /metrics are off: {error}")
        return None
    if server.note:
        say("port", server.note + _held_by(config))
    return server


def _held_by(config: Config) -> str:
    holder = holder_of(config.http.port)
    return f" (held by {holder})" if holder else ""


def stack_taker(directory: Path, target: Path, background: Background, clock: Clock) -> TakeStacks:
    """Make the function that has the stacks of some ranks written, in the background."""

    def take(identities: Sequence[RankIdentity], why: str) -> str:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(clock.wall_ns() / 1e9))
        path = target / f"stacks-{stamp}.txt"
        ranks = tuple(identities)

        def job() -> None:
            write_stacks(ranks, directory, path, why, lambda identity, number: send(mark_of_rank(identity), number))

        background.submit(f"taking the stacks of {counted(len(ranks), 'rank')}", job)
        return str(path)

    return take
