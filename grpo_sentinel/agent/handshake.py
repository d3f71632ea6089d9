"""Before the first vote: prove that every rank has a core, then make a host-side gloo group of our own.

A vote that one rank does not join hangs or breaks the job, so nobody votes until all have agreed to. The ranks agree
over a clone of the job's store (the job's own client would block other threads of the trainer):

    every rank    add(arrived, 1), then polls until arrived == world size or the time limit
    first to know compare_set(decision, "", "go" | "off: why")      atomic: one decision, which everybody obeys

A rank that knows it has no core says "off" at once, so that nobody waits for it.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from grpo_sentinel.agent.ballot import VERSION

_attachments = itertools.count()


class Transport(Protocol):
    """The collectives that a vote needs. Both block until all ranks have come."""

    def maximum(self, words: Sequence[int]) -> list[int]:
        """Return the elementwise maximum over all ranks."""
        ...

    def gather(self, row: Sequence[float]) -> list[list[float]]:
        """Return every rank's row, in the order of ranks."""
        ...


class Alone:
    """World of one: the vote is what this rank says."""

    def maximum(self, words: Sequence[int]) -> list[int]:
        return list(words)

    def gather(self, row: Sequence[float]) -> list[list[float]]:
        return [list(row)]


class GroupTransport:
    """One small collective on a process group; on the host unless the group is the job's own."""

    def __init__(self, group: Any, device: str = "cpu") -> None:
        self._group = group
        self._device = device

    def maximum(self, words: Sequence[int]) -> list[int]:
        tensor = torch.tensor(words, dtype=torch.int64, device=self._device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self._group)
        return [int(word) for word in tensor.tolist()]

    def gather(self, row: Sequence[float]) -> list[list[float]]:
        tensor = torch.tensor(row, dtype=torch.float64, device=self._device)
        rows = [torch.empty_like(tensor) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(rows, tensor, group=self._group)
        return [list(map(float, each.tolist())) for each in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """Result at attach: `transport` is None when the vote is off, and `reason` says why."""

    transport: Transport | None
    reason: str = ""
    over: str = ""  # "alone" | "gloo" | "job group"
    names: tuple[str, ...] = ()  # what rank 0 has named, once all ranks have come


def shake_hands(*, timeout_s: float, vote_timeout_s: float, names: Sequence[str] = ()) -> Handshake:
    """Agree with all ranks of the default process group on a vote; every rank gets the same answer.

    `names`: of rank 0, handed to all ranks with the answer; of other ranks they are not looked at.

    Waits at most about twice `timeout_s`, and half of the job's own time limit for each of the two: a rank without an
    agent waits in the job's first collective meanwhile, and would give up. Never
    raises for a rank that is missing; a store that fails does raise.
    """
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return Handshake(transport=Alone(), over="alone")
    rank, world = dist.get_rank(), dist.get_world_size()
    timeout_s = min(timeout_s, _job_limit_s() / 2)
    store = _own_store()
    if rank == 0:
        store.set("names", "\n".join(names))
    reason = agree(store, "core", rank=rank, world=world, timeout_s=timeout_s)
    if reason:
        return Handshake(transport=None, reason=reason)
    agreed = tuple(bytes(store.get("names")).decode().split("\n"))  # there: rank 0 has come
    problem, transport = "", None
    try:
        transport = _own_group(timeout_s, vote_timeout_s)
    except Exception as error:  # noqa: BLE001 - gloo that cannot connect raises many types; the others must hear of it
        problem = f"gloo failed on rank {rank}: {type(error).__name__}: {error}".splitlines()[0][:200]
    reason = agree(store, "group", rank=rank, world=world, timeout_s=timeout_s, problem=problem)
    if not reason:
        return Handshake(transport=transport, over="gloo", names=agreed)
    return Handshake(transport=GroupTransport(None, _job_device()), reason=reason, over="job group", names=agreed)


def announce_absence(reason: str) -> None:
    """Tell waiting ranks that this one has no core; never raises, never waits."""
    try:
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            store = _own_store()
            store.compare_set("core/decision", "", f"off: rank {dist.get_rank()} has no core ({reason[:200]})")
    except Exception:  # noqa: BLE001, S110 - the others find out by their time limit
        pass


def agree(
    store: Any,
    stage: str,
    *,
    rank: int,
    world: int,
    timeout_s: float,
    problem: str = "",
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """Bring all ranks to one decision about `stage`: "" means go, else why not. Waits at most `timeout_s`."""
    decision = f"{stage}/decision"
    if problem:  # a store that outlives the processes may still say "go" to those before a restart
        return _reason(_decide(store, decision, f"off: {problem}")) or problem
    store.set(f"{stage}/rank/{rank}", "here")
    arrived = f"{stage}/arrived/v{VERSION}"
    count = store.add(arrived, 1)
    deadline, pause = clock() + timeout_s, 0.002
    while count < world:
        if store.check([decision]):
            break
        if clock() >= deadline:
            missing = [other for other in range(world) if not store.check([f"{stage}/rank/{other}"])]
            who = f"rank {', '.join(map(str, missing[:8]))}" if missing else "a rank with another version"
            return _reason(_decide(store, decision, f"off: no core on {who} within {timeout_s:g} s"))
        time.sleep(pause)
        pause = min(pause * 2, 0.25)
        count = store.add(arrived, 0)
    return _reason(_decide(store, decision, "go"))


def _decide(store: Any, key: str, proposal: str) -> str:
    return bytes(store.compare_set(key, "", proposal)).decode()


def _reason(decision: str) -> str:
    return "" if decision == "go" else decision.removeprefix("off: ")


def _own_store() -> Any:
    store = dist.distributed_c10d._get_default_store()
    clone = store.clone() if hasattr(store, "clone") else store
    return dist.PrefixStore(f"grpo_sentinel/{next(_attachments)}", clone)


def _own_group(timeout_s: float, vote_timeout_s: float) -> Transport:
    """Make the group with the short limit, so that a rank that cannot connect is known soon; votes get the long one."""
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
    transport = GroupTransport(group)
    transport.maximum([0])
    set_timeout = getattr(dist.distributed_c10d, "_set_pg_timeout", None)
    if set_timeout is not None:
        set_timeout(timedelta(seconds=vote_timeout_s), group)
    return transport


def _job_limit_s() -> float:
    """Give the time limit of the job's collectives in seconds; infinity where it cannot be told."""
    try:
        group = dist.distributed_c10d._get_default_group()
        limits = [group._get_backend(device).options._timeout for device in group._device_types]
        return float(min(limit.total_seconds() for limit in limits))
    except Exception:  # noqa: BLE001 - backends of others need not have options
        return math.inf


def _job_device() -> str:
    return f"cuda:{torch.cuda.current_device()}" if "nccl" in str(dist.get_backend()) else "cpu"
