"""One sink's own thread: queue, retries, hang detection, and making the sink anew after it broke."""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from grpo_sentinel.clock import Clock
from grpo_sentinel.config import QueueConfig
from grpo_sentinel.scrub import scrub
from grpo_sentinel.sinks.base import Sink
from grpo_sentinel.views import SinkBatch

log = logging.getLogger(__name__)

TICK_SECONDS = 0.25
FIRST_BACKOFF_SECONDS = 0.05
MAX_BACKOFF_SECONDS = 30.0
FAILURES_BEFORE_RENEWAL = 2  # batches given up in a row before the sink is closed and made anew
REASONS = ("queue_full", "failed", "timeout", "closing")


class SinkState(enum.Enum):
    """How a sink is doing."""

    STARTING = "starting"
    RUNNING = "running"
    RETRYING = "retrying"  # the newest try of a batch failed
    FAILED = "failed"  # could not be made, or broke; will be made anew
    DEGRADED = "degraded"  # takes batches, and says itself that it cannot hand them on
    HANGING = "hanging"  # one call takes longer than the time-out; nothing can end it
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkHealth:
    """One sink's state and counts."""

    state: SinkState
    written: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    errors: int = 0
    restarts: int = 0
    queued: int = 0
    lag_seconds: float = 0.0  # age of the oldest batch that is not written yet
    error: str = ""  # the newest one, in one line
    own: Mapping[str, float] = field(default_factory=dict)  # what the sink says about itself

    def flat(self, name: str) -> dict[str, float]:
        """Write it as `name[label=value,...]: number`; names that end in `_total` only rise."""
        out = {
            f"sink_written_total[sink={name}]": float(self.written),
            f"sink_errors_total[sink={name}]": float(self.errors),
            f"sink_restarts_total[sink={name}]": float(self.restarts),
            f"sink_queued_batches[sink={name}]": float(self.queued),
            f"sink_lag_seconds[sink={name}]": self.lag_seconds,
            f"sink_up[sink={name}]": float(self.state in (SinkState.RUNNING, SinkState.RETRYING)),
            f"sink_hanging[sink={name}]": float(self.state is SinkState.HANGING),
        }
        out |= {f"sink_dropped_total[sink={name},reason={r}]": float(self.dropped.get(r, 0)) for r in REASONS}
        return out | {f"sink_{name}_{key}": value for key, value in self.own.items()}


class Worker:
    """Feed one sink from a bounded queue; see `FanOut`."""

    def __init__(self, name: str, factory: Callable[[], Sink], config: QueueConfig, clock: Clock) -> None:
        self._name, self._factory, self._config, self._clock = name, factory, config, clock
        self._wake = threading.Condition()  # guards everything below
        self._queue: deque[tuple[int, SinkBatch]] = deque()
        self._busy_since_ns: int | None = None  # monotonic; a call into the sink is under way
        self._current_ns: int | None = None  # when the batch now being written was queued
        self._state = SinkState.STARTING
        self._deadline: float | None = None  # set by finish(): time.monotonic() at which draining ends
        self._written = self._errors = self._restarts = 0
        self._dropped = dict.fromkeys(REASONS, 0)
        self._error = ""
        self._problem = ""  # what the sink says is wrong
        self._own: Mapping[str, float] = {}
        self._thread = threading.Thread(target=self._run, name=f"sink-{name}", daemon=True)
        self._thread.start()

    # ---- called by the loop

    def offer(self, batch: SinkBatch) -> None:
        """Queue a batch, dropping the oldest when there is no room."""
        with self._wake:
            while len(self._queue) >= self._config.size:
                self._queue.popleft()
                self._dropped[self._reason_of_full()] += 1
            self._queue.append((self._clock.monotonic_ns(), batch))
            self._wake.notify()

    def _reason_of_full(self) -> str:
        state = self._visible_state()
        if state is SinkState.HANGING:
            return "timeout"
        return "failed" if state is SinkState.FAILED else "queue_full"

    def _visible_state(self) -> SinkState:
        since = self._busy_since_ns
        if since is not None and self._clock.monotonic_ns() - since > self._config.timeout_seconds * 1e9:
            return SinkState.HANGING
        if self._problem and self._state is SinkState.RUNNING:
            return SinkState.DEGRADED
        return self._state

    def report(self) -> SinkHealth:
        """Say how the sink is doing; never waits for it."""
        with self._wake:
            waiting = [self._current_ns] if self._current_ns is not None else []
            waiting += [queued for queued, _ in list(self._queue)[:1]]
            return SinkHealth(
                state=self._visible_state(),
                written=self._written,
                dropped=dict(self._dropped),
                errors=self._errors,
                restarts=self._restarts,
                queued=len(self._queue),
                lag_seconds=(self._clock.monotonic_ns() - min(waiting)) / 1e9 if waiting else 0.0,
                error=self._problem or self._error,
                own=self._own,
            )

    def finish(self, deadline: float) -> None:
        """Ask the thread to write out what is queued until `deadline` (time.monotonic()) and to end."""
        with self._wake:
            self._deadline = deadline
            self._wake.notify()

    def join(self, timeout: float) -> bool:
        """Wait for the thread; what is still queued when it has not ended counts as dropped."""
        self._thread.join(timeout)
        ended = not self._thread.is_alive()
        if not ended:
            with self._wake:
                reason = "closing" if self._busy_since_ns is None else "timeout"
                self._dropped[reason] += len(self._queue) + (self._current_ns is not None)
                self._queue.clear()
                self._current_ns = None
        return ended

    # ---- the thread

    def _run(self) -> None:
        backoff = FIRST_BACKOFF_SECONDS
        while True:
            before = self._written
            sink = self._make()
            if sink is not None and self._feed(sink):
                break
            if self._written > before:
                backoff = FIRST_BACKOFF_SECONDS
            if self._pause(backoff):
                break
            backoff = min(backoff * 2, MAX_BACKOFF_SECONDS)
            with self._wake:
                self._restarts += 1
        with self._wake:
            self._dropped["closing"] += len(self._queue)
            self._queue.clear()
            self._state = SinkState.CLOSED

    def _make(self) -> Sink | None:
        made: list[Sink] = []
        ok = self._call(lambda: made.append(self._factory()), "could not be made")
        with self._wake:
            self._state = SinkState.RUNNING if ok else SinkState.FAILED
        return made[0] if ok else None

    def _feed(self, sink: Sink) -> bool:
        """Write batches until asked to finish (True) or the sink has to be made anew (False)."""
        given_up = 0
        while given_up < FAILURES_BEFORE_RENEWAL:
            item = self._next()
            if item is None:
                if self._finishing():
                    self._call(sink.close, "could not be closed")
                    self._look(sink)
                    return True
                tick = getattr(sink, "tick", None)
                if tick is not None:
                    self._call(tick, "could not do its upkeep")
            else:
                given_up = 0 if self._deliver(sink, item) else given_up + 1
            self._look(sink)
        with self._wake:
            self._state = SinkState.FAILED
        self._call(sink.close, "could not be closed")
        return False

    def _next(self) -> SinkBatch | None:
        with self._wake:
            if not self._queue and self._deadline is None:
                self._wake.wait(TICK_SECONDS)
            if not self._queue or self._late():
                return None
            self._current_ns, batch = self._queue.popleft()
            return batch

    def _deliver(self, sink: Sink, batch: SinkBatch) -> bool:
        backoff = FIRST_BACKOFF_SECONDS
        for attempt in range(self._config.retries + 1):
            if attempt and self._pause(backoff):
                break
            if self._call(lambda: sink.write(batch), "did not take a batch"):
                with self._wake:
                    self._written += self._current_ns is not None  # else join() has counted it as lost
                    self._state, self._current_ns = SinkState.RUNNING, None
                return True
            with self._wake:
                self._state = SinkState.RETRYING
            backoff = min(backoff * 2, MAX_BACKOFF_SECONDS)
        with self._wake:
            if self._current_ns is not None:  # else join() has counted it already
                self._dropped["failed"] += 1
            self._current_ns = None
        return False

    def _call(self, call: Callable[[], object], what: str) -> bool:
        """Call into the sink: the time is watched, and nothing that it raises gets out."""
        with self._wake:
            self._busy_since_ns = self._clock.monotonic_ns()
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - a sink may raise anything, SystemExit too; this thread goes on
            line = scrub(f"{type(error).__name__}: {error}".splitlines()[0])[:300]
            with self._wake:
                self._errors += 1
                changed, self._error = line != self._error, line
            if changed:
                log.warning("sink %s %s: %s", self._name, what, line)
            return False
        finally:
            with self._wake:
                self._busy_since_ns = None
        return True

    def _look(self, sink: Sink) -> None:
        health = getattr(sink, "health", None)
        if health is not None:
            self._call(lambda: setattr(self, "_own", dict(health())), "could not say how it is")
        problem = getattr(sink, "problem", None)
        if problem is not None:
            self._call(lambda: self._heed(str(problem())), "could not say what is wrong")

    def _heed(self, problem: str) -> None:
        with self._wake:
            before, self._problem = self._problem, problem
        if problem and not before:
            log.warning("sink %s: %s", self._name, problem)
        elif before and not problem:
            log.info("sink %s is well again", self._name)

    def _pause(self, seconds: float) -> bool:
        """Wait, or less when asked to finish; True when there is no time left."""
        end = time.monotonic() + seconds
        with self._wake:
            while time.monotonic() < end and not self._late():
                if self._deadline is not None and not self._queue and self._current_ns is None:
                    return True  # nothing waits for this sink to be made again
                limit = end if self._deadline is None else min(end, self._deadline)
                self._wake.wait(max(0.0, limit - time.monotonic()))
            return self._late()

    def _finishing(self) -> bool:
        with self._wake:
            return self._deadline is not None

    def _late(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline
