"""What one rank says in a step vote and what all of them said: twelve int64 words, merged by MAX.

    word  0        1         2     3           4          5                   6          7           8       9
          version  -version  flag  -flag_rank  flag_rank  action<<40|request  norm bits  -norm bits  digest  -digest
    word  10         11
          -ready     partial
                     vitals are gathered when every rank is ready: ranks with other settings agree on that as well;
                     partial norms are gathered and added up when one rank has a bound and only a part of the norm

A minimum is the negated maximum of negated words. The bits of a non-negative float64, read as an integer, sort like
the float, and NaN sorts last: replicas with equal bits hold equal norms. Words a rank cannot fill never win.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

VERSION = 3
WORDS = 12

CLEAN, ABOVE_BOUND, NONFINITE = 0, 1, 2
"""Gate flags, worst last."""

_NEVER = -(2**62)
_NAN_BITS = 0x7FF8 << 48
_REQUEST_BITS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Ballot:
    """One rank's word. `norm` None: this rank does not know it. `digest` 0: none."""

    rank: int
    flag: int = CLEAN
    action: int = 0
    request_id: int = 0
    norm: float | None = None
    digest: int = 0
    ready: bool = False  # to gather vitals after this vote
    partial: bool = False  # `norm` is of a part of the gradients, and a bound waits for the whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What all ranks said together."""

    flag: int
    first_flagged: int  # -1: none
    last_flagged: int
    action: int
    request_id: int
    norm_min: float | None
    norm_max: float | None
    norms_differ: bool
    digests_differ: bool
    all_ready: bool
    partial: bool


def fill(ballot: Ballot) -> list[int]:
    """Write a ballot as its words."""
    norm = _NEVER if ballot.norm is None else _bits(ballot.norm)
    digest = ballot.digest or _NEVER
    flagged = ballot.flag != CLEAN
    return [
        VERSION,
        -VERSION,
        ballot.flag,
        -ballot.rank if flagged else _NEVER,
        ballot.rank if flagged else -1,
        ballot.action << _REQUEST_BITS | ballot.request_id & (1 << _REQUEST_BITS) - 1,
        norm,
        -norm if ballot.norm is not None else _NEVER,
        digest,
        -digest if ballot.digest else _NEVER,
        -int(ballot.ready),
        int(ballot.partial),
    ]


def count(words: Sequence[int]) -> Tally:
    """Read the merged words. Raises ValueError when ranks run different versions of the vote."""
    if len(words) != WORDS or words[0] != VERSION or words[1] != -VERSION:
        raise ValueError("the ranks run different versions of grpo-sentinel; install the same one everywhere")
    has_norm, has_digest = words[6] != _NEVER, words[8] != _NEVER
    return Tally(
        flag=words[2],
        first_flagged=-words[3] if words[2] else -1,
        last_flagged=words[4],
        action=words[5] >> _REQUEST_BITS,
        request_id=words[5] & (1 << _REQUEST_BITS) - 1,
        norm_min=_value(-words[7]) if has_norm else None,
        norm_max=_value(words[6]) if has_norm else None,
        norms_differ=has_norm and words[6] != -words[7],
        digests_differ=has_digest and words[8] != -words[9],
        all_ready=words[10] == -1,
        partial=bool(words[11]),
    )


def _bits(norm: float) -> int:
    if math.isnan(norm):
        return _NAN_BITS  # payload and sign of a NaN differ between ranks for no reason
    return int(struct.unpack("<q", struct.pack("<d", abs(norm)))[0])


def _value(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])
