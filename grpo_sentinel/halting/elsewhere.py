"""Requests that this node's sidecar did not make, or not in this life: another node's asked, or the agent's own gate.

A rank acknowledges them like any other. What they are about is known from this run's journal, from the `halt` event of
the vote, or from how the ranks close; of one that nothing explains nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from grpo_sentinel.halting.journal import Entry
from grpo_sentinel.halting.progress import TERMINAL
from grpo_sentinel.records import Ack, Action, EventRecord, HaltState
from grpo_sentinel.views import HaltStatus, RankStatus

ELSEWHERE = "asked on another node, or by the gate"
_REMEMBERED = 64  # votes whose purpose is kept


class Elsewhere:
    """Remembers what votes were about, and finds a request to follow among the ranks' acknowledgements."""

    def __init__(self) -> None:
        self._voted: dict[tuple[int, int], tuple[Action, str]] = {}  # (id, step) of a vote -> what it was about

    def observe(self, events: Sequence[EventRecord]) -> None:
        """Learn from the ranks' `halt` events what a vote was about."""
        for event in events:
            name = str(event.body.get("action", "")).upper()
            if event.kind == "halt" and name in Action.__members__:
                number = event.body.get("request_id")
                key = number if isinstance(number, int) else 0, event.step
                self._voted[key] = Action[name], str(event.body.get("reason") or ELSEWHERE)
                while len(self._voted) > _REMEMBERED:
                    del self._voted[next(iter(self._voted))]

    def newest(
        self, status: HaltStatus, ranks: Mapping[int, RankStatus], made: Callable[[int], Entry | None]
    ) -> HaltStatus | None:
        """Give the status of a request newer than `status` that the ranks act on; None when there is none to claim.

        `made` looks a request up in this run's journal.
        """
        acks = [one.acknowledgement for one in ranks.values() if one.acknowledgement is not None]
        ack = max(acks, key=lambda one: one.wall_ns, default=None)
        if ack is None or ack.wall_ns <= status.updated_wall_ns or ack.state in TERMINAL - {HaltState.DONE}:
            return None
        if ack.request_id == status.request_id and ack.step == status.step:
            return None
        known = _purpose(ack, ranks, made(ack.request_id), self._voted.get((ack.request_id, ack.step)))
        if known is None:
            return None  # a halt is claimed on somebody's word only; its event, or how the ranks close, will say
        action, reason, by = known
        return HaltStatus(
            request_id=ack.request_id,
            state=HaltState.VOTED,
            action=action,
            reason=reason,
            requested_by=by,
            step=ack.step,
            requested_wall_ns=min(one.wall_ns for one in acks if one.step == ack.step),
            updated_wall_ns=ack.wall_ns,
            pinned_checkpoint=status.pinned_checkpoint,
        )


def _purpose(
    ack: Ack, ranks: Mapping[int, RankStatus], made: Entry | None, voted: tuple[Action, str] | None
) -> tuple[Action, str, str] | None:
    """Give action, reason and who asked; None when nothing says so.

    `made`: what this run's journal knows of the request; `voted`: what a rank's own event said of this vote.
    """
    if made is not None and made.wall_ns <= ack.wall_ns:  # asked here, and followed by a daemon before this one
        return made.action, made.reason, made.requested_by
    if voted is not None:
        return *voted, "elsewhere"
    closed = [status.closed_detail or "" for status in ranks.values()]
    if any(detail.startswith("halted") for detail in closed):
        return Action.CHECKPOINT_AND_HALT if ack.detail else Action.HALT_NOW, ELSEWHERE, "elsewhere"
    return (Action.CHECKPOINT, ELSEWHERE, "elsewhere") if ack.state is HaltState.CHECKPOINTING else None


__all__ = ["Elsewhere"]
