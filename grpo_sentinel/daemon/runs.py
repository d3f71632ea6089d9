"""Which runs the sidecar watches: new ones are taken up, ended ones let go, those of others left alone.

directory with rings ─▶ claimed ─▶ RunWatch ─▶ over for a while ─▶ let go, its rings removed when they are old
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from grpo_sentinel.clock import Clock
from grpo_sentinel.config import Config
from grpo_sentinel.daemon import parts
from grpo_sentinel.daemon.background import Background
from grpo_sentinel.daemon.claim import Claim, DaemonNote
from grpo_sentinel.daemon.health import Health
from grpo_sentinel.daemon.past import past
from grpo_sentinel.daemon.permanent import Folders
from grpo_sentinel.daemon.pins import Pins
from grpo_sentinel.daemon.places import belongs_to, run_directories
from grpo_sentinel.daemon.resume import begun, inherit, is_unjudged, parent_of, resume
from grpo_sentinel.daemon.tidy import tidy
from grpo_sentinel.daemon.watch import RunWatch, unbounded
from grpo_sentinel.daemon.whereabouts import write_whereabouts
from grpo_sentinel.errors import HistoryError
from grpo_sentinel.halting import HaltController, LauncherHandle
from grpo_sentinel.protocol import list_segments
from grpo_sentinel.rules.engine import Engine
from grpo_sentinel.rules.rule import RuleSet
from grpo_sentinel.views import Cursor

log = logging.getLogger(__name__)

RETIRE_NS = 2_000_000_000  # a run that had ended before we came is let go after so long
FORGET_NS = 600_000_000_000  # a run that ended while we watched stays on the page so long
TIDY_NS = 60_000_000_000  # between two looks for rings that nobody needs any more


class Host(Protocol):
    """What the daemon does for its runs."""

    def note(self) -> DaemonNote:
        """Say where this sidecar answers."""
        ...

    def last_words(self, watch: RunWatch) -> None:
        """Read a run once more and hand on all of it, due or not."""
        ...

    def history_works(self) -> bool:
        """Tell whether the history takes what it is given."""
        ...

    def say(self, key: str, text: str) -> None:
        """Say what is off, once per change."""
        ...

    def unsay(self, key: str) -> None:
        """Forget what was said."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which runs are meant: those under `roots`, or one directory, or one run and its restarts."""

    roots: tuple[Path, ...]
    run_dir: Path | None = None
    run_id: str | None = None

    @property
    def named(self) -> bool:
        """Is one run meant?"""
        return self.run_dir is not None or self.run_id is not None

    def directories(self) -> list[Path]:
        """List the run directories that are there, the newest first."""
        if self.run_dir is not None:
            return [self.run_dir] if self.run_dir.is_dir() else []
        found = run_directories(self.roots)
        return found if self.run_id is None else [one for one in found if belongs_to(one, self.run_id)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What the watch of every run is built from."""

    rules: RuleSet
    health: Health
    launcher: LauncherHandle
    background: Background  # pins
    stacks: Background
    state: Path
    history: Path
    node: str
    config_file: Path | None


class Runs:
    """The runs that are watched now; used from the daemon's loop, `watches` may be copied from any thread."""

    def __init__(self, config: Config, clock: Clock, choice: Choice, tools: Tools, host: Host) -> None:
        self.watches: dict[Path, RunWatch] = {}
        self.once = False  # only one look is taken
        self._choice = choice
        self._config = config
        self._clock = clock
        self._tools = tools
        self._host = host
        self._folders = Folders(choice.roots, tools.state, tools.config_file)
        self._retired: dict[Path, tuple[int, ...]] = {}
        self._past: dict[Path, tuple[int, ...]] = {}  # segments of the watched runs that are not judged
        self._tidy_ns = clock.monotonic_ns() + TIDY_NS

    def look(self) -> None:
        """Take up new runs, let those go that ended."""
        now = self._clock.monotonic_ns()
        if self._is_permanent:
            self._folders.hold(self._host.note())
        for directory in self._choice.directories():
            if directory in self.watches or self._retired.get(directory) == _segments_of(directory):
                continue
            if self._is_permanent and self._folders.is_anothers(directory, now):
                continue
            self._take_up(directory)
        for directory, watch in list(self.watches.items()):
            if watch.past is not None and self._started_again(directory):
                watch = self._begin_anew(watch)
            quiet = now - watch.quiet_since_ns
            if watch.over and not self._choice.named and quiet > (FORGET_NS if watch.seen_alive else RETIRE_NS):
                self._retired[directory] = _segments_of(directory)
                self._host.last_words(watch)
                self.watches.pop(directory).close()
                self._past.pop(directory, None)
                if watch.past is None:
                    log.info("run %s has ended", watch.run_id)
        if self._host.history_works() and now >= self._tidy_ns:
            self._tidy_ns = now + TIDY_NS
            for directory in tidy(list(self._retired), self._clock.wall_ns() / 1e9):
                self._retired.pop(directory)

    @property
    def _is_permanent(self) -> bool:
        return not (self._choice.named or self.once)

    def close(self) -> None:
        """Let all runs go."""
        for watch in self.watches.values():
            watch.close()
        self.watches.clear()
        self._folders.release()

    def _take_up(self, directory: Path) -> None:
        try:
            claim = Claim.take(directory)
        except OSError as error:
            self._host.say(
                f"run {directory.name}", f"run {directory.name} cannot be watched: {directory}: {error.strerror}"
            )
            return
        if claim is None:
            left = f"run {directory.name} is watched by another daemon already; left to it"
            self._host.say(f"another daemon has {directory.name}", left)
            return
        try:
            self.watches[directory] = self._watch(claim)
            claim.publish(self._host.note())
            if self._config.sinks.history.enabled:
                judged_there = self.once or self.watches[directory].past is not None
                write_whereabouts(directory, self._tools.state, self._tools.config_file, replace=not judged_there)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run must not stay claimed and unwatched
            self._tools.health.counts["loop_errors_total"] += 1
            self._host.say(f"run {directory.name}", f"run {directory.name} cannot be watched fully: {error}")
            if directory not in self.watches:
                claim.release()
            return
        for key in (f"run {directory.name}", f"another daemon has {directory.name}"):
            self._host.unsay(key)
        ended = self.watches[directory].past
        log.info("%s", f"watching run {directory.name} in {directory}" if ended is None else ended.note)

    def _started_again(self, directory: Path) -> bool:
        changed = _segments_of(directory) != self._past[directory]
        return changed and past(directory, self._clock, self._tools.history) is None

    def _begin_anew(self, before: RunWatch) -> RunWatch:
        """Judge a run that was past when its ranks have been started again; what was read is not read again."""
        watch = self._watch(before.claim, {rank: status.cursor for rank, status in before.ranks.items()})
        before.close(release=False)
        self.watches[before.claim.directory] = watch
        log.info("watching run %s in %s: it was started again", watch.run_id, watch.claim.directory)
        return watch

    def _watch(self, claim: Claim, read: Mapping[int, Cursor] | None = None) -> RunWatch:
        run_id, tools = claim.directory.name, self._tools
        self._past[claim.directory] = _segments_of(claim.directory)
        asked = self.once and self._choice.named
        ended = None if asked else past(claim.directory, self._clock, tools.history)
        engine = Engine(tools.rules, run_id=run_id)
        cursors: dict[int, Cursor] = {}
        context: dict[str, object] = {}
        try:
            since = begun(claim.directory, self._clock)
            inherit(engine, tools.history, parent_of(claim.directory, self._clock))
            if not (asked and is_unjudged(tools.history, run_id)):  # else it is judged from its first record
                cursors, context = resume(engine, tools.history, run_id, since_wall_ns=since)
        except HistoryError as error:
            self._host.say("history", f"{error}; detectors of run {run_id} start anew")
        halting = HaltController(
            claim.directory,
            self._config.halting,
            self._clock,
            tools.launcher,
            skip_above_norm=unbounded(self._config.agent.skip_above_norm),
            take_stacks=parts.stack_taker(claim.directory, tools.state / "stacks" / run_id, tools.stacks, self._clock),
        )

        def pins(on_pinned: Callable[[str], None]) -> Pins:
            return Pins(run_id, self._config.halting, tools.state, tools.background, on_pinned)

        cursors = {**cursors, **(read or {})}
        return RunWatch(
            claim,
            self._config,
            self._clock,
            engine,
            halting,
            pins,
            tools.health,
            tools.node,
            cursors,
            context,
            ended,
        )


def _segments_of(directory: Path) -> tuple[int, ...]:
    """Identify the segments in a directory, to notice new ones in the place of old."""
    found = []
    for path in list_segments(directory):
        try:
            found.append(path.stat().st_ino)
        except OSError:
            continue
    return tuple(found)
