"""Finds out what an acknowledgement is about that this node's sidecar did not ask for, or not in this life; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grpo_sentinel.halting.journal import Entry
from grpo_sentinel.records import Ack, Action, HaltState
from grpo_sentinel.views import RankStatus

ELSEWHERE = "asked on another node, or by the gate"


def purpose_of(
    ack: Ack, ranks: Mapping[int, RankStatus], made: Sequence[Entry], voted: tuple[Action, str] | None
) -> tuple[Action, str, str] | None:
    """Give action, reason and who asked; None when nothing says so.

    `made`: what this run's journal knows of the request; `voted`: what a rank's own event said of this vote.
    """
    if made and made[-1].wall_ns <= ack.wall_ns:  # asked here, and followed by a daemon before this one
        return made[-1].action, made[-1].reason, made[-1].requested_by
    if voted is not None:
        return *voted, "elsewhere"
    closed = [status.closed_detail or "" for status in ranks.values()]
    if any(detail.startswith("halted") for detail in closed):
        return Action.CHECKPOINT_AND_HALT if ack.detail else Action.HALT_NOW, ELSEWHERE, "elsewhere"
    return (Action.CHECKPOINT, ELSEWHERE, "elsewhere") if ack.state is HaltState.CHECKPOINTING else None


__all__ = ["ELSEWHERE", "purpose_of"]
