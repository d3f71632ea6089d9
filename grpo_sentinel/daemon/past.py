"""Tells runs that are past from those to be judged: a sidecar that starts must not announce last week's trouble again.

every rank closed or dead before we came, and
    its end is in the history, or its last sign of life is older than 5 minutes  ->  past: recorded and shown
    else                                                                         ->  judged: the black box matters
"""

from __future__ import annotations

import enum
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from grpo_sentinel.clock import Clock
from grpo_sentinel.collectors.ranks import RankCollector
from grpo_sentinel.daemon.whereabouts import read_whereabouts
from grpo_sentinel.errors import HistoryError
from grpo_sentinel.history import HistoryReader, history_path
from grpo_sentinel.records import Finding, Liveness
from grpo_sentinel.views import HaltStatus, RankStatus, Snapshot

FRESH_NS = 300_000_000_000  # a run that ended unwatched is judged so long after its last sign of life
_GONE = (Liveness.CLOSED, Liveness.DEAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What is shown of a run that is not judged any more."""

    note: str
    unjudged: str = ""  # why nothing is known of findings
    findings: tuple[Finding, ...] = ()  # that fired when it ended, as the history has them
    halt: HaltStatus = field(default_factory=HaltStatus)


class Stage(enum.Enum):
    """How far a run is that has rings."""

    LIVES = "it lives"
    UNREAD = "it ended, and its end is in no history"
    STORED = "it ended, and its history holds all of it"


def stage_of(directory: Path, clock: Clock, history: Path) -> Stage:
    """Tell whether a run lives, or has ended and is in `history` or in that of the sidecar that watched it."""
    ranks = _ended_ranks(directory, clock)
    if not ranks:
        return Stage.LIVES
    _, watched = _told(directory, ranks, history)
    return Stage.STORED if watched else Stage.UNREAD


def _ended_ranks(directory: Path, clock: Clock) -> Mapping[int, RankStatus]:
    """Give the ranks of a run that has ended; none of one that lives."""
    collector = RankCollector(directory, clock)
    try:
        ranks = collector.poll().ranks
    finally:
        collector.close()
    return ranks if all(status.liveness in _GONE for status in ranks.values()) else {}


def _told(directory: Path, ranks: Mapping[int, RankStatus], history: Path) -> tuple[Snapshot, bool]:
    """Give what is stored of a run and whether its end is."""
    stored = _stored(history, directory.name)
    there = read_whereabouts(directory)
    if _end_is_known(stored, ranks) or there is None:
        return stored, _end_is_known(stored, ranks)
    other = _stored(history_path(Path(there.state_dir), socket.gethostname()), directory.name)
    return (other, True) if _end_is_known(other, ranks) else (stored, False)


def past(directory: Path, clock: Clock, history: Path) -> Past | None:
    """Give what the history says of a run that is past; None for one that lives, or ended just now and unwatched."""
    ranks = _ended_ranks(directory, clock)
    if not ranks:
        return None
    stored, watched = _told(directory, ranks, history)
    age_ns = clock.wall_ns() - last_sign_ns(ranks)
    if age_ns < FRESH_NS and not watched:
        return None
    ago = f"{age_ns / 1e9:.0f} s" if age_ns < 120e9 else f"{age_ns / 60e9:.0f} min"
    note = f"run {directory.name} ended {ago} ago, "
    unjudged = ""
    if watched and not stored.unjudged:
        note += "watched to its end: shown as past and not judged again"
    else:
        judge = f"`grpo-sentinel run --once --run-id {directory.name}` judges it"
        unjudged = f"it ended before any sidecar looked; {judge}"
        note += f"before any sidecar looked: shown as past and not judged; {judge}"
    return Past(note=note, unjudged=unjudged, findings=stored.findings, halt=stored.halt)


def last_sign_ns(ranks: Mapping[int, RankStatus]) -> int:
    """Give the newest sign of life of any rank, wall ns; 0 without ranks."""
    return max(
        (
            max(one.heartbeat.updated_wall_ns, one.updated_wall_ns, one.identity.created_wall_ns)
            for one in ranks.values()
        ),
        default=0,
    )


def _end_is_known(stored: Snapshot, ranks: Mapping[int, RankStatus]) -> bool:
    """Tell whether a sidecar has seen these very processes leave or die."""
    for rank, status in ranks.items():
        known = stored.ranks.get(rank)
        if known is None or known.liveness not in _GONE or _process(known) != _process(status):
            return False
    return True


def _process(status: RankStatus) -> tuple[int, int, int]:
    return status.identity.pid, status.identity.pid_start_ticks, status.identity.created_wall_ns


def _stored(history: Path, run_id: str) -> Snapshot:
    if not history.exists():
        return Snapshot(run_id=run_id)
    try:
        with HistoryReader(history) as reader:
            return reader.latest(run_id)
    except HistoryError:
        return Snapshot(run_id=run_id)


__all__ = ["FRESH_NS", "Past", "Stage", "last_sign_ns", "past", "stage_of"]
