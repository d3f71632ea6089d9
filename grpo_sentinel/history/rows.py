"""Encode one batch into rows, before any transaction: what cannot be encoded is found here and costs only itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

from grpo_sentinel.history.codec import dumps, int64, pack_values, plain, rank_status_body, text
from grpo_sentinel.records import EventRecord, Finding, Liveness, Sample, StepRecord
from grpo_sentinel.views import HaltStatus, RankStatus, SinkBatch

Names = tuple[str, ...]
_GONE = (Liveness.CLOSED, Liveness.DEAD)
Item = TypeVar("Item")
Row = TypeVar("Row")


@dataclass(slots=True)
class Rows:
    """What one batch brings, as plain values ready to be bound."""

    run_id: str
    node: str
    wall_ns: int
    began_ns: int = 0  # start of the newest process of the run; 0 = no rank is known
    started_ns: int = 0  # of the oldest
    seen_ns: int = 0  # when a rank was alive last: a run that is only looked at as past does not grow younger
    context: Mapping[str, object] = field(default_factory=dict)
    unjudged: str = ""
    ranks: dict[int, RankStatus] = field(default_factory=dict)  # encoded at the commit: only the newest counts
    records: list[tuple[tuple[int, ...], Names, bytes]] = field(default_factory=list)
    events: list[tuple[int | str, ...]] = field(default_factory=list)
    findings: list[tuple[str, str, int, str]] = field(default_factory=list)
    samples: list[tuple[tuple[str, str, str], int, Names, bytes, str]] = field(default_factory=list)
    request: tuple[str, int, str, int, str] | None = None
    unencodable: int = 0

    def take(self, encode_item: Callable[[Item], Row], item: Item, into: list[Row]) -> None:
        """Encode one item; one that cannot be is counted and left out."""
        try:
            into.append(encode_item(item))
        except (ValueError, TypeError, OverflowError, AttributeError, RecursionError):
            self.unencodable += 1

    def __len__(self) -> int:
        return (
            len(self.records) + len(self.events) + len(self.findings) + len(self.samples) + (self.request is not None)
        )


def encode(batch: SinkBatch) -> Rows:
    """Turn a batch into rows; an item that cannot be encoded is left out and counted in `unencodable`."""
    rows = Rows(run_id=text(batch.run_id), node=text(batch.node), wall_ns=int64(batch.wall_ns))
    rows.ranks = dict(batch.snapshot.ranks)
    rows.began_ns, rows.started_ns, rows.seen_ns = _times(rows)
    rows.context = batch.snapshot.context
    rows.unjudged = text(batch.snapshot.unjudged)
    for record in batch.records:
        rows.take(_record, record, rows.records)
    for event in batch.events:
        rows.take(_event, event, rows.events)
    for finding in batch.findings:
        rows.take(_finding, finding, rows.findings)
    for sample in batch.samples:
        rows.take(_sample, sample, rows.samples)
    if batch.halt is not None:
        rows.request = _request(batch.halt, rows)
    return rows


def _times(rows: Rows) -> tuple[int, int, int]:
    """Give start of the newest process, start of the oldest and last sign of life, wall ns, none after the batch."""
    if not rows.ranks:
        return 0, rows.wall_ns, rows.wall_ns
    ranks = rows.ranks.values()
    made = [min(int64(one.identity.created_wall_ns), rows.wall_ns) for one in ranks]
    seen = rows.wall_ns
    if all(one.liveness in _GONE for one in ranks):
        signs = (max(one.heartbeat.updated_wall_ns, one.updated_wall_ns) for one in ranks)
        seen = min(max(max(made), *map(int64, signs)), seen)
    return max(made), min(made), seen


def rank_row(status: RankStatus) -> tuple[int, int, str]:
    """Encode the newest state of a rank: cursor of records, cursor of events, body."""
    return int64(status.cursor.record), int64(status.cursor.event), rank_status_body(status)


def _record(record: StepRecord) -> tuple[tuple[int, ...], Names, bytes]:
    head = (
        record.rank, record.step, record.sequence, record.wall_ns, record.monotonic_ns,
        record.kind, record.mode, record.micro_batch, record.generation,
    )  # fmt: skip
    return tuple(map(int64, head)), _storable(tuple(record.values)), pack_values(record.values.values())


@lru_cache(maxsize=1024)
def _storable(names: Names) -> Names:
    return tuple(map(text, names))


def _event(event: EventRecord) -> tuple[int | str, ...]:
    numbers = map(int64, (event.rank, event.step, event.sequence, event.wall_ns))
    return (*numbers, text(event.kind), int(event.truncated), dumps(event.body))


def _finding(finding: Finding) -> tuple[str, str, int, str]:
    return text(finding.finding_id), finding.state.value, int64(finding.wall_ns), dumps(finding)


def _sample(sample: Sample) -> tuple[tuple[str, str, str], int, Names, bytes, str]:
    constant = dumps({"labels": sample.labels, "unsupported": sample.unsupported})
    return (
        (text(sample.source), text(sample.entity), constant),
        int64(sample.wall_ns),
        _storable(tuple(sample.values)),
        pack_values(sample.values.values()),
        dumps(sample.failed) if sample.failed else "",
    )


def _request(halt: HaltStatus, rows: Rows) -> tuple[str, int, str, int, str]:
    wall_ns = int64(halt.updated_wall_ns or halt.requested_wall_ns or rows.wall_ns)
    return rows.node, int64(halt.request_id), str(plain(halt.state)), wall_ns, dumps(halt)
