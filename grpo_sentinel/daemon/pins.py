"""Keeps the newest checkpoint from before an anomaly, as soon as there is one, out of the trainer's rotation.

A finding that begins an incident, and every critical one, looks for the newest whole checkpoint saved before the onset,
pins it and reads it back: one with non-finite weights is given up for the one before. The onset is that of its root, of
the roots' own, and of every critical finding that still fires (`harm`): what is saved after the cause and before a late
consequence is spoiled. Which copy is shown follows from the same onset, and changes when an earlier root turns up.
"""

from __future__ import annotations

import errno
import logging
import re
import socket
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from grpo_sentinel.config import HaltingConfig
from grpo_sentinel.daemon.background import Background
from grpo_sentinel.daemon.whereabouts import write_whereabouts
from grpo_sentinel.halting.checkpoints import Checkpoint, check_finite, newest_before, scan_directory
from grpo_sentinel.halting.pin import PINNED_NAME, pin, remove
from grpo_sentinel.harm import first_onset, kept_before, step_of
from grpo_sentinel.records import Action, EventRecord, Finding, FindingState, Severity
from grpo_sentinel.wording import counted

log = logging.getLogger(__name__)

_MOST_REPORTED = 64
_MOST_KNOWN = 512  # findings that are over
_RESTART = re.compile(r"-r\d+$")


class Pins:
    """The pinned checkpoints of one run; called from the loop, copies in the background."""

    def __init__(
        self,
        run_id: str,
        config: HaltingConfig,
        state: Path,
        background: Background,
        on_pinned: Callable[[str], None],
    ) -> None:
        self._run_id = run_id
        self._enabled = config.pin_checkpoints
        self._most = config.max_pins  # each costs a whole checkpoint's space
        self._state = state
        self._background = background
        self._on_pinned = on_pinned
        self._fixed = config.checkpoint_dir is not None
        self.directory = Path(config.checkpoint_dir) if config.checkpoint_dir is not None else None
        self.paths: list[Path] = []
        self._reported: deque[Path] = deque(maxlen=_MOST_REPORTED)  # finished, as the trainer says
        self._known: dict[str, Finding] = {}  # newest state of each, those that are over too: a root may be
        self._firing: set[str] = set()
        self._shown = ""
        self._nothing: set[tuple[Path, int]] = set()  # of which it was said already that there is nothing to keep

    def observe(self, events: Sequence[EventRecord]) -> None:
        """Learn where the trainer saves, from its configuration and from the checkpoints it reports."""
        for event in events:
            if event.kind == "config":
                self.look_in(event.body.get("output_dir"))
            elif event.kind == "checkpoint" and event.body.get("path"):
                path = Path(str(event.body["path"]))
                self._reported.append(path)
                self.look_in(str(path.parent))

    def look_in(self, directory: object) -> None:
        """Take `directory` as the place of checkpoints, unless the configuration names one."""
        if not self._fixed and isinstance(directory, str) and Path(directory).is_absolute():
            self.directory = Path(directory)

    def consider(self, findings: Sequence[Finding], firing: Sequence[Finding] = ()) -> None:
        """Pin what the newly fired findings call for; never blocks. `firing`: all that fires, with its newest roots."""
        if not findings:
            return
        self._learn((*findings, *firing))
        for finding in findings:
            if finding.state is FindingState.RESOLVED:
                self._firing.discard(finding.finding_id)
                continue
            if finding.severity is Severity.NOTE:
                continue
            grave = finding.severity is Severity.CRITICAL or finding.action >= Action.CHECKPOINT
            if grave or not self._firing or (self.paths and not self._kept()):
                self._submit(self._onset(finding))
            self._firing.add(finding.finding_id)
        self._show()

    def _learn(self, findings: Sequence[Finding]) -> None:
        self._known.update({finding.finding_id: finding for finding in findings})
        over = [name for name, finding in self._known.items() if finding.state is FindingState.RESOLVED]
        for name in over[:-_MOST_KNOWN]:
            del self._known[name]

    def _onset(self, finding: Finding) -> int:
        """Date what a finding is about: its own onset, its root's, and that of the harm which still goes on."""
        finding = self._known[finding.finding_id]
        root = self._known.get(finding.root_id, finding)
        live = {one.finding_id: one for one in self._known.values() if one.state is FindingState.FIRING}
        live |= {one.root_id: self._known[one.root_id] for one in list(live.values()) if one.root_id in self._known}
        dated = first_onset(live.values())
        return min(finding.onset_step, root.onset_step, *([] if dated is None else [dated]))

    def _kept(self) -> str:
        return kept_before(map(str, self.paths), first_onset(self._known.values()))

    def _show(self) -> None:
        """Tell which copy is from before, where that has changed."""
        kept = self._kept()
        if kept != self._shown:
            self._shown = kept
            self._on_pinned(kept)

    def _submit(self, onset: int) -> None:
        directory = self.directory
        if not self._enabled or len(self.paths) >= self._most or directory is None or onset <= 1:
            return
        if any(_step(path) == onset - 1 for path in self.paths):
            return
        reported = frozenset(self._reported)
        self._background.submit(
            f"pinning the checkpoint before step {onset}", lambda: self._pin_before(directory, onset, reported)
        )

    def _pin_before(self, directory: Path, onset: int, reported: frozenset[Path]) -> Callable[[], None] | None:
        """Runs in the background; gives what the loop has to do then."""
        candidates = newest_before(scan_directory(directory, reported), onset)
        for checkpoint in candidates:
            if any(path.name == checkpoint.path.name for path in self.paths):
                return None
            destination = checkpoint.path.parent.parent / PINNED_NAME / self._run_id
            if not (destination / checkpoint.path.name).exists() and len(_kept_in(destination)) >= self._most:
                return None  # by this run, before its sidecar was started again
            kept = self._keep(checkpoint, destination)
            bad, told = _numbers(kept)
            if not bad:
                _make_room(kept.parent, self._most)
                write_whereabouts(kept.parent, self._state)
                return lambda: self._pinned(kept, onset, told)
            log.warning("%s %s: not kept, looking further back", kept, bad)
            remove(kept)
        if not any(0 <= _step(path) < onset for path in self.paths) and (directory, onset) not in self._nothing:
            self._nothing.add((directory, onset))
            log.warning("no whole checkpoint from before step %d in %s: nothing to keep", onset, directory)
        return None

    def _keep(self, checkpoint: Checkpoint, destination: Path) -> Path:
        tag = f"{socket.gethostname()}-{self._run_id}"
        try:
            return pin(checkpoint, destination, tag)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            return pin(checkpoint, self._state / "pinned" / self._run_id, tag)

    def _pinned(self, path: Path, onset: int, told: str) -> None:
        if path in self.paths:  # two findings of one turn asked for the same
            return
        self.paths.append(path)
        log.warning("kept %s: the newest checkpoint from before step %d, %s", path, onset, told)
        self._show()


def _make_room(folder: Path, most: int) -> None:
    """Remove the oldest copies of a run's earlier restarts, so that a job that crashes often does not fill the disk."""
    base = _RESTART.sub("", folder.name)
    kin = [one for one in folder.parent.iterdir() if one != folder and _RESTART.sub("", one.name) == base]
    earlier = sorted((path for one in kin for path in _kept_in(one)), key=lambda path: path.stat().st_mtime)
    for path in earlier[: max(0, len(earlier) + len(_kept_in(folder)) - most)]:
        log.info("%s is removed: halting.max_pins is %d for a run and its restarts", path, most)
        remove(path)


def _kept_in(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if not path.name.startswith(".")]
    except OSError:
        return []


def _numbers(path: Path) -> tuple[str, str]:
    """Read a checkpoint's weights: what speaks against it ("" for nothing), and what can be said for it."""
    try:
        report = check_finite(path)
    except ValueError as error:  # damaged where it lay, or while it was read
        return f"is damaged ({error})", ""
    if report.nonfinite:
        name, count = next(iter(report.nonfinite.items()))
        return f"holds {counted(count, 'non-finite value')} in {name}", ""
    return "", "all its weights are finite" if report.finite else "its weights could not all be read"


def _step(path: Path) -> int:
    step = step_of(path.name)
    return -1 if step is None else step
