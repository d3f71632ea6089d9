"""Derives how far a request has come from what all ranks of the node acknowledged; pure.

    all DONE at one step -> DONE        any REFUSED -> REFUSED       a rank dead, or left in the middle -> FAILED
    any FAILED -> FAILED                all left before the vote -> FINISHED
    any DONE or CHECKPOINTING -> CHECKPOINTING       any VOTED -> VOTED        else REQUESTED

DONE is claimed only when every rank says so for the same step: a checkpoint that half of the ranks wrote is none. Where
all ranks hold the same weights, rank 0's is enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from grpo_sentinel.records import LEFT, Ack, HaltState, Liveness
from grpo_sentinel.views import RankStatus

TERMINAL = frozenset({HaltState.DONE, HaltState.FAILED, HaltState.FINISHED, HaltState.REFUSED})
_UNDER_WAY = frozenset({HaltState.VOTED, HaltState.CHECKPOINTING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """State of one request over all ranks."""

    state: HaltState
    step: int = 0
    detail: str = ""
    wall_ns: int = 0  # newest acknowledgement


def begun_ns(ranks: Mapping[int, RankStatus]) -> int:
    """Give when the first of the ranks that live now attached; 0 when none lives."""
    alive = (Liveness.ALIVE, Liveness.UNKNOWN)
    return min((status.identity.created_wall_ns for status in ranks.values() if status.liveness in alive), default=0)


def progress_of(request_id: int, since_wall_ns: int, ranks: Mapping[int, RankStatus]) -> Progress:
    """Judge the request `request_id`, made at `since_wall_ns`; acknowledgements older than that are another run's."""
    acks = {
        rank: status.acknowledgement
        for rank, status in sorted(ranks.items())
        if status.acknowledgement is not None
        and status.acknowledgement.request_id == request_id
        and status.acknowledgement.wall_ns >= since_wall_ns
    }
    state, detail = _judge(acks, ranks)
    return Progress(
        state=state,
        step=max((ack.step for ack in acks.values()), default=0),
        detail=detail,
        wall_ns=max((ack.wall_ns for ack in acks.values()), default=0),
    )


def _judge(acks: Mapping[int, Ack], ranks: Mapping[int, RankStatus]) -> tuple[HaltState, str]:
    for bad in (HaltState.FAILED, HaltState.REFUSED):
        for rank, ack in acks.items():
            if ack.state is bad:
                return bad, f"rank {rank}: {ack.detail}" if ack.detail else f"rank {rank} gave no reason"
    if ranks and all(rank in acks and _has_acted(acks[rank], ranks[rank]) for rank in ranks):
        if any(ack.state is HaltState.DONE for ack in acks.values()):
            return _all_done(acks)
        return HaltState.FINISHED, next(ack.detail for ack in acks.values())
    lost = _lost(acks, ranks)
    if lost:
        return HaltState.FAILED, lost
    open_ranks = [rank for rank, status in ranks.items() if status.liveness not in (Liveness.CLOSED, Liveness.DEAD)]
    states = {ack.state for ack in acks.values()}
    if ranks and not open_ranks and not states & {HaltState.DONE}:
        return HaltState.FINISHED, "the run ended first"
    if states & {HaltState.DONE, HaltState.CHECKPOINTING}:
        return HaltState.CHECKPOINTING, ""
    return (HaltState.VOTED if HaltState.VOTED in states else HaltState.REQUESTED), ""


def _has_acted(ack: Ack, status: RankStatus) -> bool:
    """A rank that followed the vote before it saw the request itself says FINISHED, but closes as halted.

    So does one that leaves the checkpoint to rank 0, which holds the same weights, whether it halts or not.
    """
    if ack.state is HaltState.FINISHED and ack.detail == LEFT:
        return True
    halted = status.closed_detail is not None and status.closed_detail.startswith("halted")
    return ack.state is HaltState.DONE or (ack.state is HaltState.FINISHED and halted)


def _all_done(acks: Mapping[int, Ack]) -> tuple[HaltState, str]:
    steps = {rank: ack.step for rank, ack in acks.items()}
    if len(set(steps.values())) > 1:
        told = ", ".join(f"rank {rank} at {step}" for rank, step in steps.items())
        return HaltState.FAILED, f"ranks acted at different steps ({told}); trust no checkpoint of this request"
    done = (ack.detail for ack in acks.values() if ack.state is HaltState.DONE and ack.detail)
    return HaltState.DONE, next(done, "")


def _lost(acks: Mapping[int, Ack], ranks: Mapping[int, RankStatus]) -> str:
    """Name a rank that can never finish the request: dead, or closed in the middle of it."""
    for rank, status in sorted(ranks.items()):
        ack = acks.get(rank)
        if status.liveness is Liveness.DEAD and (ack is None or ack.state is not HaltState.DONE):
            return f"rank {rank} died before it could finish the request"
        if status.liveness is Liveness.CLOSED and ack is not None and ack.state in _UNDER_WAY:
            return f"rank {rank} left while the request was under way"
    return ""
