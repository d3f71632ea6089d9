"""The core: step vote and gate. The part that must not differ between ranks, and that outlives every probe.

Once per optimizer step every rank says whether its gradient may be applied, what its sidecar asks, and the bits of its
norm and parameters (see `agent.ballot`). One all-reduce later all ranks know the same and act the same.

No probe is imported here; a core is never off on one rank alone. Without a vote (a rank has no core, or a vote failed)
the gate is local and halting is refused, because a flag on one rank only ends in a collective mismatch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from grpo_sentinel.agent.ballot import ABOVE_BOUND, CLEAN, NONFINITE, Ballot, Tally, count, fill
from grpo_sentinel.agent.guard import say, short_traceback
from grpo_sentinel.agent.handshake import Transport

ReportError = Callable[[str, str], None]  # reason, traceback


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one step's vote decided; equal on all ranks when `voted`."""

    voted: bool
    skip: bool = False
    flag: int = CLEAN
    first_flagged: int = -1
    last_flagged: int = -1
    action: int = 0
    request_id: int = 0
    norm: float | None = None  # of this rank
    norm_min: float | None = None
    norm_max: float | None = None
    norms_differ: bool = False
    digests_differ: bool = False
    wait_seconds: float = 0.0
    rows: Sequence[Sequence[float]] = ()  # every rank's vitals, when they were gathered with this vote
    summed: bool = False  # `norm` was added up from the parts of all ranks
    by_scaler: bool = False  # a loss scaler is active, and an overflow is its daily business: counted apart

    @property
    def cause(self) -> str:
        """Say in one phrase why the update is stopped."""
        if self.flag == NONFINITE:
            return "the gradient is not finite"
        return "the gradient norm is above the bound" if self.flag == ABOVE_BOUND else ""


class Core:
    """Votes once per step and decides over the update. `transport` None: the vote is off, `why_off` says why."""

    def __init__(
        self,
        *,
        rank: int,
        transport: Transport | None,
        world: int = 1,
        why_off: str = "",
        gate: str = "skip",
        skip_above_norm: float | None = None,
        on_error: ReportError | None = None,
    ) -> None:
        self.rank = rank
        self.world = world
        self.why_off = why_off
        self.skipped_updates = 0
        self._transport = transport
        self._gate = gate
        self._bound = math.inf if skip_above_norm is None else skip_above_norm
        self._on_error = on_error
        self.scaled = False
        self.scaler_skips = 0

    @property
    def voting(self) -> bool:
        """Tell whether ranks still agree by vote."""
        return self._transport is not None

    def decide(
        self,
        norm: float | None,
        *,
        bound: float = math.inf,
        action: int = 0,
        request_id: int = 0,
        digest: int = 0,
        vitals: Sequence[float] | None = None,
        copies: int = 0,
        uneven: bool = False,
    ) -> Outcome:
        """Vote on one optimizer step; blocks until all ranks have come. Never raises (a failed vote is switched off).

        `norm` is the global L2 norm before clipping, None when unknown; `bound` the sidecar's limit on it; `vitals`
        this rank's row, gathered when every rank brings one. `copies` above 0 says that `norm` is of this rank's part
        of the gradients only, which so many ranks hold; with a bound the parts are then added up. `uneven`: ranks may
        run out of input and leave, so nobody votes; to be true on all of them or on none. To be called the same number
        of times on every rank: once per optimizer step, never in evaluation or accumulation.
        """
        bound = min(bound, self._bound)
        partial = copies > 0 and norm is not None and math.isfinite(bound) and self._transport is not None
        ballot = Ballot(
            rank=self.rank,
            flag=self._flag(norm, math.inf if partial else bound),
            action=action,
            request_id=request_id,
            norm=norm,
            digest=digest,
            ready=vitals is not None,
            partial=partial,
        )
        # At every step, with no option to thin it: between votes one rank could skip or halt alone.
        outcome = (
            self._alone(ballot) if self._transport is None or uneven else self._vote(ballot, vitals, bound, copies)
        )
        if outcome.by_scaler:
            self.scaler_skips += 1
        elif outcome.skip:
            self.skipped_updates += 1
        return outcome

    def _flag(self, norm: float | None, bound: float) -> int:
        if norm is None:
            return CLEAN
        if not math.isfinite(norm):
            return NONFINITE
        return ABOVE_BOUND if norm > bound else CLEAN

    def _vote(self, ballot: Ballot, vitals: Sequence[float] | None, bound: float, copies: int) -> Outcome:
        assert self._transport is not None
        words = fill(ballot)
        started = time.perf_counter()
        try:
            tally = count(self._transport.maximum(words))
            rows = self._transport.gather(vitals) if tally.all_ready and vitals is not None else ()
            parts: Sequence[Sequence[float]] = ()
            if tally.partial and tally.flag == CLEAN:
                known = ballot.norm is not None and copies > 0
                square = ballot.norm**2 / copies if known and ballot.norm is not None else math.nan
                parts = self._transport.gather([square, bound])
        except Exception as error:  # noqa: BLE001 - the job is dying or about to; the trainer must hear its own error
            self._switch_off(error)
            return self._alone(ballot)
        waited = time.perf_counter() - started
        if parts:
            tally, ballot = _judge_sum(tally, ballot, parts)
        return self._outcome(ballot, tally, voted=True, waited=waited, rows=rows, summed=bool(parts))

    def _alone(self, ballot: Ballot) -> Outcome:
        """Decide over the gate from this rank's own gradient; a request cannot be agreed this way and is left out."""
        words = fill(Ballot(rank=ballot.rank, flag=ballot.flag, norm=ballot.norm))
        return self._outcome(ballot, count(words), voted=False, waited=0.0)

    def _outcome(
        self,
        ballot: Ballot,
        tally: Tally,
        *,
        voted: bool,
        waited: float,
        rows: Sequence[Sequence[float]] = (),
        summed: bool = False,
    ) -> Outcome:
        return Outcome(
            voted=voted,
            skip=tally.flag != CLEAN and self._gate != "off",
            flag=tally.flag,
            first_flagged=tally.first_flagged,
            last_flagged=tally.last_flagged,
            action=tally.action,
            request_id=tally.request_id,
            norm=ballot.norm,
            norm_min=tally.norm_min,
            norm_max=tally.norm_max,
            norms_differ=tally.norms_differ,
            digests_differ=tally.digests_differ,
            wait_seconds=waited,
            rows=rows,
            summed=summed and ballot.norm is not None,
            by_scaler=self.scaled and tally.flag == NONFINITE,
        )

    def _switch_off(self, error: Exception) -> None:
        self._transport = None
        self.why_off = f"the step vote failed: {type(error).__name__}: {error}".splitlines()[0][:300]
        say(f"{self.why_off}; vote and halting are off on rank {self.rank}, the gate is local, training goes on")
        if self._on_error is not None:
            self._on_error(self.why_off, short_traceback(error))


def _judge_sum(tally: Tally, ballot: Ballot, parts: Sequence[Sequence[float]]) -> tuple[Tally, Ballot]:
    """Judge the norm over all parts by the smallest bound; every rank holds the same rows and comes to the same.

    `parts`: per rank the square of its norm over the number of ranks that hold the same part, and its bound. A rank
    that does not know its part leaves the norm unknown, and what is unknown stops no update.
    """
    total = math.fsum(square for square, _ in parts)
    if math.isnan(total):
        return tally, replace(ballot, norm=None)
    norm = math.sqrt(total)
    if norm > min(bound for _, bound in parts):
        tally = replace(tally, flag=ABOVE_BOUND, first_flagged=0, last_flagged=len(parts) - 1)
    return replace(tally, norm_min=norm, norm_max=norm, norms_differ=False), replace(ballot, norm=norm)
