"""What to say and when: findings grouped by their first cause, one message a group, updates no more often than asked.

    finding ──▶ group of its root ──wait──▶ "firing" ──interval──▶ "firing" with more ──▶ ... ──▶ "resolved", forgotten

A state, not a queue: while a channel is down its groups go on changing, and one message says how they stand when it is
back. No I/O, and time comes in from outside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from grpo_sentinel.records import Finding, FindingState, Severity
from grpo_sentinel.views import SinkBatch

MAX_GROUPS = 200
MAX_FINDINGS = 500  # of one group

Key = tuple[str, str]  # run, finding_id of the root


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """How one group stands now; `findings` with the root first when it is grave enough to be among them."""

    key: Key
    node: str
    findings: tuple[Finding, ...]
    version: int = 0

    @property
    def run_id(self) -> str:
        return self.key[0]

    @property
    def firing(self) -> bool:
        return any(finding.state is FindingState.FIRING for finding in self.findings)

    @property
    def severity(self) -> Severity:
        return max(finding.severity for finding in self.findings)


@dataclass(slots=True)
class _Group:
    node: str
    since_ns: int
    findings: dict[str, Finding] = field(default_factory=dict)
    version: int = 0  # rises with every change
    sent_version: int = 0
    sent_ns: int | None = None

    @property
    def over(self) -> bool:
        return all(finding.state is FindingState.RESOLVED for finding in self.findings.values())


class Groups:
    """Keep the groups of one channel."""

    def __init__(
        self,
        *,
        wait_seconds: float,
        interval_seconds: float,
        at_least: Severity,
        quiet: Callable[[int], bool] = lambda now_ns: False,
    ) -> None:
        self._wait_ns, self._interval_ns = wait_seconds * 1e9, interval_seconds * 1e9
        self._at_least, self._quiet = at_least, quiet
        self._groups: dict[Key, _Group] = {}
        self._where: dict[tuple[str, str], Key] = {}  # (run, finding) -> its group
        self.lost = 0  # groups forgotten before they were told, because there were too many

    def __len__(self) -> int:
        return len(self._groups)

    def update(self, batch: SinkBatch) -> None:
        """Take what changed, and what the snapshot says fires; what it no longer holds has resolved."""
        now_ns = batch.wall_ns
        told = {finding.finding_id for finding in batch.findings}
        for finding in batch.findings:
            self._take(batch, finding, now_ns)
        if batch.snapshot.run_id != batch.run_id:
            return
        firing = {finding.finding_id for finding in batch.snapshot.findings} | told
        for finding in batch.snapshot.findings:
            if finding.finding_id not in told:
                self._take(batch, finding, now_ns)
        for run_id, finding_id in list(self._where):
            if run_id == batch.run_id and finding_id not in firing:
                self._resolve(run_id, finding_id, now_ns)

    def _take(self, batch: SinkBatch, finding: Finding, now_ns: int) -> None:
        if finding.severity < self._at_least:
            return
        place = (batch.run_id, finding.finding_id)
        key, old = (batch.run_id, finding.root_id or finding.finding_id), self._where.get(place)
        if old is None and finding.state is not FindingState.FIRING:
            return
        if old is not None and old != key and self._groups[old].sent_ns is not None:
            key = old  # what was told under one heading stays there
        elif old is not None and old != key:
            self._forget_finding(old, place)
        group = self._groups.get(key)
        if group is None:
            self._make_room()
            group = self._groups[key] = _Group(batch.node, now_ns)
        before = group.findings.get(finding.finding_id)
        if before is None and len(group.findings) >= MAX_FINDINGS:
            return
        group.findings[finding.finding_id] = finding
        self._where[place] = key
        if finding.state is FindingState.RESOLVED:
            group.version += group.over and before is not None and before.state is FindingState.FIRING
        elif before is None or before.state is not finding.state or before.severity is not finding.severity:
            group.version += 1

    def _forget_finding(self, key: Key, place: tuple[str, str]) -> None:
        del self._where[place]
        group = self._groups[key]
        del group.findings[place[1]]
        if not group.findings:
            del self._groups[key]

    def _resolve(self, run_id: str, finding_id: str, now_ns: int) -> None:
        group = self._groups[self._where[run_id, finding_id]]
        finding = group.findings[finding_id]
        if finding.state is FindingState.FIRING:
            group.findings[finding_id] = replace(finding, state=FindingState.RESOLVED, wall_ns=now_ns)
            group.version += group.over  # the end of a part is told with the next news

    def _make_room(self) -> None:
        while len(self._groups) >= MAX_GROUPS:
            key = next(iter(self._groups))
            self.lost += self._groups[key].sent_version < self._groups[key].version
            self._forget(key)

    def _forget(self, key: Key) -> None:
        for finding_id in self._groups.pop(key).findings:
            self._where.pop((key[0], finding_id), None)

    def due(self, now_ns: int, *, last: bool = False) -> list[Notification]:
        """Give what should be told now; `last` leaves out all waiting."""
        return [self._notification(key) for key, group in self._groups.items() if self._is_due(group, now_ns, last)]

    def _is_due(self, group: _Group, now_ns: int, last: bool) -> bool:
        if group.version == group.sent_version:
            return False
        grave = any(finding.severity is Severity.CRITICAL for finding in group.findings.values())
        if not grave and self._quiet(now_ns):
            return False
        if group.sent_ns is None:
            return last or now_ns - group.since_ns >= self._wait_ns
        return last or now_ns - group.sent_ns >= self._interval_ns

    def _notification(self, key: Key) -> Notification:
        group = self._groups[key]
        order = sorted(
            group.findings.values(),
            key=lambda finding: (finding.finding_id != key[1], -finding.severity, finding.onset_step),
        )
        return Notification(key=key, node=group.node, findings=tuple(order), version=group.version)

    def sent(self, notification: Notification, now_ns: int) -> None:
        """Note that it was told; a group of which nothing fires any more is forgotten."""
        group = self._groups.get(notification.key)
        if group is None:
            return
        group.sent_version, group.sent_ns = notification.version, now_ns
        if not notification.firing and group.version == notification.version:
            self._forget(notification.key)
