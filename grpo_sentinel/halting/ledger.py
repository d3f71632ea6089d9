"""What has been asked of a run so far: its journal, what rules may still ask for, which findings have been served.

All of it is charged from the journal, so that numbers, cooldown and budget survive a restart of the sidecar.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_sentinel.clock import Clock
from grpo_sentinel.config import HaltingConfig
from grpo_sentinel.halting import journal
from grpo_sentinel.halting.evidence import EVIDENCE, Budget
from grpo_sentinel.records import Action


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A request that is not written yet."""

    action: Action
    reason: str
    requested_by: str
    by_rule: bool
    step: int = 0
    finding_ids: tuple[str, ...] = ()


class Ledger:
    """Requests made of one run. Evidence has a budget of its own."""

    def __init__(self, directory: Path, config: HaltingConfig, clock: Clock) -> None:
        self._directory = directory
        self._saving = Budget(clock, config.max_requests, config.cooldown_seconds)
        self._evidence = Budget(clock, config.max_evidence, config.evidence_cooldown_seconds)
        self._served: set[str] = set()
        past = journal.load(directory)
        self.last_id = past[-1].request_id if past else 0
        self._charge(past)

    def _charge(self, past: Sequence[journal.Entry]) -> None:
        self._served = {finding_id for entry in past for finding_id in entry.finding_ids}
        self._saving.charge(entry for entry in past if entry.action not in EVIDENCE)
        self._evidence.charge(entry for entry in past if entry.action in EVIDENCE)

    def begin_at(self, wall_ns: int) -> None:
        """Charge only what was asked since `wall_ns`: the run was started again under its name."""
        self._charge([entry for entry in journal.load(self._directory) if entry.wall_ns >= wall_ns])

    def made(self, request_id: int) -> journal.Entry | None:
        """Give the newest entry of a request; None of one that was not made here."""
        return next((one for one in reversed(journal.load(self._directory)) if one.request_id == request_id), None)

    def allows(self, action: Action) -> bool:
        """Tell whether a rule may ask for this now."""
        return (self._evidence if action in EVIDENCE else self._saving).allows()

    def has_served(self, finding_id: str) -> bool:
        """Tell whether a finding has had its request."""
        return finding_id in self._served

    def serve(self, wish: Wish) -> None:
        """Count a wish as made: its findings do not ask again, and a rule's is charged."""
        self._served.update(wish.finding_ids)
        if wish.by_rule:
            (self._evidence if wish.action in EVIDENCE else self._saving).take()

    def let_ask_again(self, finding_ids: Iterable[str] | None = None) -> None:
        """Let findings ask once more, all of them without `finding_ids`; cooldown and budget hold."""
        self._served.difference_update(list(self._served) if finding_ids is None else finding_ids)

    def note(self, wish: Wish, request_id: int, now_ns: int) -> None:
        """Write a request down. Where the disk does not take it the request stands; a restart will not know of it."""
        entry = journal.Entry(
            request_id=request_id,
            action=wish.action,
            reason=wish.reason,
            requested_by=wish.requested_by,
            by_rule=wish.by_rule,
            wall_ns=now_ns,
            finding_ids=wish.finding_ids,
        )
        with contextlib.suppress(OSError):
            journal.append(self._directory, entry)


__all__ = ["Ledger", "Wish"]
