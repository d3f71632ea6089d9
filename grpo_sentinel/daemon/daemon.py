"""The sidecar: one process, one loop with a fixed deadline, every part built here and nowhere else.

    every poll_interval   each run: rings -> rules -> control file           (RunWatch)
    every few seconds     device and host readings -> rules of every run
    twice a second        new run directories, runs that ended
    in threads            HTTP, sinks (behind the fan-out), pins and stacks

A part that cannot work costs one clear line and itself; the rest goes on.
"""

from __future__ import annotations

import logging
import queue
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path

from grpo_sentinel.clock import Clock, SystemClock
from grpo_sentinel.config import Config
from grpo_sentinel.daemon import parts
from grpo_sentinel.daemon.background import Background
from grpo_sentinel.daemon.claim import DaemonNote
from grpo_sentinel.daemon.health import Health
from grpo_sentinel.daemon.incident_views import IncidentViews
from grpo_sentinel.daemon.places import ring_roots, state_dir
from grpo_sentinel.daemon.reading import page_link, read_token
from grpo_sentinel.daemon.runs import Choice, Runs, Tools
from grpo_sentinel.daemon.watch import RunWatch
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.halting import NodeLauncher
from grpo_sentinel.halting.processes import ProcessMark, is_running
from grpo_sentinel.history import HistoryReader
from grpo_sentinel.records import Action, Sample
from grpo_sentinel.rules.walk import as_json
from grpo_sentinel.views import RankStatus, SinkBatch, Snapshot
from grpo_sentinel.web.server import WebServer
from grpo_sentinel.web.state import WebState

log = logging.getLogger(__name__)

LOOK_NS = 500_000_000  # between two looks for new runs
CLOSE_SECONDS = 5.0
ORPHAN_SECONDS = 1.0  # after the launched command, its ranks and `launch` itself, beyond launch.linger_seconds
STUCK_SECONDS = 10.0  # a loop that has not turned for so long is to be started again
JUST_SAID = ("port", "another daemon", "token of this start", "history")  # keys of what is said and is no problem

Command = tuple[str, Action, str, str, "Future[int]"]


class Daemon:
    """Watches the runs of this user on this node: one named run with its restarts, or all of them."""

    def __init__(
        self,
        config: Config,
        *,
        roots: Sequence[Path] | None = None,
        run_dir: Path | None = None,
        run_id: str | None = None,
        clock: Clock | None = None,
        launcher: ProcessMark | None = None,
        supervisor: ProcessMark | None = None,
        open_page: Callable[[str], None] = lambda _: None,
        config_file: Path | None = None,
    ) -> None:
        """Build every part. Raises nothing for a part that is broken; `ConfigError` for built-in rules that are."""
        self._config = config
        self._clock = clock or SystemClock()
        self._roots = list(roots) if roots is not None else ring_roots(config)
        self._command = launcher
        self._supervisor = supervisor
        self._open_page = open_page  # told the address that opens the page, token and all
        self._node = socket.gethostname()
        self._state = state_dir(config)
        self._started_wall_ns = self._clock.wall_ns()
        self._health = Health()
        self._background = Background("sentinel-background")
        self._stacks = Background("sentinel-stacks")
        self._evidence = Background("sentinel-incidents")
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._said: dict[str, str] = {}
        self._looked_ns: int | None = None
        self._idle_since_ns = self._turned_ns = self._clock.monotonic_ns()
        self.act_token = parts.act_token(config, self.say)
        self.url = self._page = ""

        rules = parts.rules(config, self.say)
        self._sinks = parts.Sinks(
            config, self._state, self._node, self._clock, lambda: parts.for_others(self.url, self._node)
        )
        tools = Tools(
            rules=rules, health=self._health, launcher=NodeLauncher(launcher), background=self._background,
            stacks=self._stacks, state=self._state, history=self._sinks.history_path, node=self._node,
            config_file=config_file,
        )  # fmt: skip
        choice = Choice(roots=tuple(self._roots), run_dir=run_dir, run_id=run_id)
        self._runs = Runs(config, self._clock, choice, tools, self)
        self._incidents = parts.incidents(
            config, self._state, self._node, self._clock, self._sinks.history_path, self._evidence, self._stacks
        )
        self._collectors = parts.collectors(config, [self._state], self._roots, self._all_ranks, self._clock)

    # ---- what others may ask, from any thread

    def snapshots(self) -> Mapping[str, Snapshot]:
        """Newest snapshot of every watched run, the one with the newest record first."""
        watches = list(self._runs.watches.values())  # a copy: the loop may take up a run meanwhile
        watches.sort(key=lambda watch: (watch.past is not None, -watch.quiet_since_ns))
        return {watch.run_id: watch.snapshot for watch in watches}

    def request(
        self, run_id: str, action: Action, reason: str, requested_by: str = "user", timeout_s: float = 5.0
    ) -> int:
        """Ask a run for something and give the request's id; waits for the loop, at most `timeout_s`.

        Raises `SentinelError` when it cannot be asked.
        """
        answer: Future[int] = Future()
        self._commands.put((run_id, action, reason, requested_by, answer))
        try:
            return answer.result(timeout_s)
        except TimeoutError as error:
            raise SentinelError(f"the daemon did not take the request within {timeout_s:g} s; try again") from error

    def problems(self) -> list[str]:
        """Name every part that is off or broken, the loop itself first; [] when all do their work."""
        stuck = self.stuck()
        of_runs = [text for watch in list(self._runs.watches.values()) for text in watch.problems]
        return [*([stuck] if stuck else []), *self._off(), *of_runs]

    def stuck(self) -> str:
        """Say for how long the loop has stood still; "" while it turns."""
        seconds = (self._clock.monotonic_ns() - self._turned_ns) / 1e9
        return f"the loop has not turned for {seconds:.0f} s" if seconds > STUCK_SECONDS else ""

    def _off(self) -> list[str]:
        """Name the parts that are off or broken, whatever the run."""
        said = [text for key, text in list(self._said.items()) if not key.startswith(JUST_SAID)]
        return [*self._sinks.problems(), *said]

    def _web_state(self) -> WebState:
        history = self._sinks.history_path if self._config.sinks.history.enabled else None
        return WebState(
            snapshots=self.snapshots,
            problems=self.problems,
            stuck=self.stuck,
            act=self.request,
            act_token=self.act_token,
            alerts=parts.alerts(self._config, self.request),
            walk=self._walk,
            incidents=IncidentViews(self._incidents.root) if self._config.incidents.enabled else None,
            hosts=self._config.http.allowed_hosts,
            metrics=self._sinks.metrics.render if self._sinks.metrics is not None else None,
            history=partial(HistoryReader, history) if history is not None else None,
            read_token=read_token(self._config, self._state, self.say),
        )

    def _walk(self, run_id: str) -> Mapping[str, object] | None:
        watch = next((one for one in list(self._runs.watches.values()) if one.run_id == run_id), None)
        return None if watch is None else as_json(watch.walked())

    def say(self, key: str, text: str) -> None:
        """Say what is off, once per change; "" says that it is well again."""
        if self._said.get(key, "") == text:
            return
        if text:
            self._said[key] = text
            log.warning("%s", text)
        else:
            del self._said[key]
            log.info("%s works again", key)

    def unsay(self, key: str) -> None:
        """Forget what was said."""
        self._said.pop(key, None)

    def history_works(self) -> bool:
        """Tell whether the history takes what it is given."""
        return self._config.sinks.history.enabled and not self._sinks.problems()

    def note(self) -> DaemonNote:
        """Say where this sidecar answers."""
        return DaemonNote(
            pid=parts.own_pid(),
            url=self.url,
            act_token=self.act_token,
            started_wall_ns=self._started_wall_ns,
            page=self._page,
        )

    # ---- the loop

    def run(self, stop: threading.Event) -> None:
        """Watch until `stop` is set, or until the command that `launcher` names and its runs have ended."""
        interval = self._config.poll_interval_seconds
        server = None
        try:
            server = self._serve()
            due = self._clock.monotonic_ns()
            while not stop.is_set() and not self._deserted():
                started = self._clock.monotonic_ns()
                self.turn()
                now = self._clock.monotonic_ns()
                due += round(interval * 1e9)
                self._health.turn((now - started) / 1e9, late=now > due)
                due = max(due, now)  # a turn that took too long is not made up for
                stop.wait((due - now) / 1e9)
        finally:
            if server is not None:
                server.stop(CLOSE_SECONDS)
            self.close()

    def _serve(self) -> WebServer | None:
        if not self._config.http.enabled:
            return None
        state = self._web_state()
        server = parts.serve(self._config, state, self.say)
        if server is not None:
            self.url = server.url
            log.info("page, API and /metrics on %s", self.url)
            self._page = page_link(self.url, state.read_token)
            self._open_page(self._page)
        return server

    def once(self) -> Mapping[str, Snapshot]:
        """Look once at everything, hand it to the sinks, and give the snapshots."""
        self._runs.once = True
        self._runs.look()
        samples = [sample for collector in self._collectors for sample in self._poll(collector, 2.0)]
        for watch in list(self._runs.watches.values()):
            self.last_words(watch, samples)
        return self.snapshots()

    def turn(self) -> None:
        """Do one turn of the loop. Never raises for the sake of a part."""
        now = self._turned_ns = self._clock.monotonic_ns()
        if self._looked_ns is None or now - self._looked_ns >= LOOK_NS:
            self._looked_ns = now
            self._guarded("looking for runs", self._runs.look)
        self._obey()
        samples: list[Sample] = []
        for collector in self._collectors:
            self._guarded(collector.name, lambda one=collector: samples.extend(self._poll(one)))  # type: ignore[misc]
        for watch in list(self._runs.watches.values()):
            self._guarded(f"run {watch.run_id}", lambda watch=watch: self._turn_of(watch, samples))  # type: ignore[misc]
        self._guarded("incidents", self._incidents.tick)
        self._guarded("background work", self._background.settle)

    def _turn_of(self, watch: RunWatch, samples: Sequence[Sample]) -> None:
        self._tell(watch, watch.turn(samples))

    def _guarded(self, what: str, part: Callable[[], None]) -> None:
        """Run one part of the loop; an error in it is counted and said, the other parts and the next turn go on."""
        try:
            part()
        except Exception as error:  # noqa: BLE001 - one run's trouble must not end the watching of the others
            self._health.counts["loop_errors_total"] += 1
            self.say(f"{what} failed", f"{what}: {type(error).__name__}: {error}; the daemon goes on")

    def close(self) -> None:
        """Hand on what is left, let the runs go and end every part within a bounded time."""
        self._background.close(CLOSE_SECONDS)
        self._background.settle()
        for watch in self._runs.watches.values():
            self._guarded(f"run {watch.run_id}", lambda watch=watch: self.last_words(watch))  # type: ignore[misc]
        for collector in self._collectors:
            collector.close()
        self._sinks.close(CLOSE_SECONDS)
        self._incidents.close()  # after the history has taken everything
        self._evidence.close(CLOSE_SECONDS)
        self._runs.close()

    def last_words(self, watch: RunWatch, samples: Sequence[Sample] = ()) -> None:
        """Read a run once more and hand on all of it, due or not."""
        self._tell(watch, watch.turn(samples))
        self._tell(watch, watch.bundle())

    def _tell(self, watch: RunWatch, batch: SinkBatch | None) -> None:
        if batch is None:
            return
        for one in (*watch.passed(), batch):
            self._publish(watch, one)

    def _publish(self, watch: RunWatch, batch: SinkBatch) -> None:
        """Add to the snapshot what only the daemon knows, and hand the batch on; never blocks."""
        snapshot = batch.snapshot
        incidents = {f"incidents_{name}": value for name, value in self._incidents.health().items()}
        health = {**snapshot.health, **self._sinks.numbers(), **incidents}
        notes = dict.fromkeys((*snapshot.notes, *self._said.values(), *self._sinks.problems()))
        problems = (*self._off(), *watch.problems)
        watch.snapshot = replace(snapshot, health=health, notes=tuple(notes), problems=problems)
        shown = watch.snapshot if watch.past is None else replace(watch.snapshot, findings=())  # nothing fires any more
        self._sinks.publish(replace(batch, snapshot=shown))
        self._incidents.update(watch.snapshot, batch.findings, watch.claim.directory, judged=watch.past is None)

    def _poll(self, collector: parts.Waiting, wait_seconds: float = 0.0) -> Sequence[Sample]:
        samples = collector.poll(wait_seconds)
        problem = getattr(collector, "problem", None)
        if problem is not None and not getattr(collector, "absent", False):
            self.say(collector.name, problem)
        return samples

    def _all_ranks(self) -> Mapping[int, RankStatus]:
        return {
            rank: status
            for watch in self._runs.watches.values()
            if not watch.over
            for rank, status in watch.ranks.items()
        }

    def _obey(self) -> None:
        while not self._commands.empty():
            run_id, action, reason, requested_by, answer = self._commands.get()
            watch = next((watch for watch in self._runs.watches.values() if watch.run_id == run_id), None)
            try:
                if watch is None:
                    raise SentinelError(
                        f"run {run_id} is not watched here; `grpo-sentinel status` lists those that are"
                    )
                answer.set_result(watch.request(action, reason, requested_by))
            except SentinelError as error:
                answer.set_exception(error)

    def _deserted(self) -> bool:
        """Tell whether the launched command and its runs are gone, as after a kill -9 of `launch`.

        While `launch` itself lives it ends its sidecar; a sidecar left behind must not hold the port for long.
        """
        if self._command is None:
            return False
        now = self._clock.monotonic_ns()
        if is_running(self._command) or any(not watch.over for watch in self._runs.watches.values()):
            self._idle_since_ns = now
        patience_s = ORPHAN_SECONDS if self._supervisor is not None and not is_running(self._supervisor) else 30.0
        return now - self._idle_since_ns > (self._config.launch.linger_seconds + patience_s) * 1e9
