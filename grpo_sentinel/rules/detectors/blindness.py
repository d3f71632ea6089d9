"""Tells by the names of the signals alone that a detector could not judge a view, and would remember nothing of it."""

from __future__ import annotations

from typing import Any

from grpo_sentinel.rules.detectors.after_update import AfterUpdate
from grpo_sentinel.rules.detectors.combine import All, Not
from grpo_sentinel.rules.detectors.combine import Any as AnyOf
from grpo_sentinel.rules.detectors.correlation import Correlation
from grpo_sentinel.rules.detectors.nonfinite import Nonfinite
from grpo_sentinel.rules.detectors.odd_rank import OddRank
from grpo_sentinel.rules.detectors.replica import Replica
from grpo_sentinel.rules.detectors.window import Count, Recent, Share, Unlikely
from grpo_sentinel.rules.expression import Expression


def blind(detector: Any, present: frozenset[str], ranks: int) -> bool:
    """True when `update` gives `unable`, and changes nothing, for every view of `ranks` ranks with these signals.

    A detector that is not known here is never blind: it is asked at every view.
    """
    if isinstance(detector, (All, AnyOf)):
        return all(blind(part, present, ranks) for part in detector.of)
    if isinstance(detector, Count):
        return blind(detector.of, present, ranks) and (
            detector.unless is None or blind(detector.unless, present, ranks)
        )
    if isinstance(detector, (Not, Share, Recent, Unlikely)):
        return blind(detector.of, present, ranks)
    if isinstance(detector, Nonfinite):
        return not any(_known(one, present) for one in (*detector.counts, *detector.values))
    if isinstance(detector, Correlation):
        return not (_known(detector.x, present) and _known(detector.y, present))
    if isinstance(detector, AfterUpdate):
        return not _known(detector.signal, present) and not _known(detector.moved, present)
    signal = getattr(detector, "signal", None)
    if not isinstance(signal, Expression):
        return False
    if isinstance(detector, Replica):
        sign = detector.only_with
        return not _known(signal, present) and (sign is None or not _known(sign, present))
    if isinstance(detector, OddRank) and ranks < detector.min_ranks:
        return True
    return not _known(signal, present)


def _known(expression: Expression, present: frozenset[str]) -> bool:
    return all(name in present for name in expression.names)


__all__ = ["blind"]
