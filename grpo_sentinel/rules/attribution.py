"""Whose gradient, which parameter: what is known about non-finite numbers and spikes, from events and per-rank signals.

After an all-reduce every rank holds the same NaN, so only two things name the culprit: a `nonfinite` event of
`where: before_reduce` (a hook saw the local gradient), or a local loss, log-prob, reward or gradient count that is bad
on some ranks only. Parameter names come with any `nonfinite` event. A spike is the same on all ranks as well: its rank
shows only where hooks read every rank's own norm before the reduce, and one of them stands far above all others.

Any finding takes the names that the agent has sent for one of its signals: rows of a batch with their ids, tensors, a
parameter (events `sample` and `named`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from grpo_sentinel.records import EventRecord, Frame

_OWN_NORM = "gradient.norm_before_reduce"
_LONGEST = 200  # characters
NAMING = ("sample", "named")
_FAR_ABOVE = 5.0  # times the next largest own norm
_LOCAL = (
    "gradient.local_nonfinite_tensors",
    "policy.loss_nonfinite",
    "policy.logp_nonfinite",
    "policy.advantage_nonfinite",
    "reward.nonfinite",
)


@dataclass(frozen=True, slots=True)
class Culprit:
    """Ranks and parameters, each empty when not known."""

    ranks: tuple[int, ...] = ()
    names: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.ranks or self.names)


class Attribution:
    """Evidence of the last `keep_steps` steps; asked with the step from which a finding counts."""

    def __init__(self, keep_steps: int = 64, names: int = 8) -> None:
        self._keep = keep_steps
        self._names_kept = names
        self._ranks: dict[int, dict[int, int]] = {}  # step -> rank -> strength
        self._names: dict[int, list[str]] = {}
        self._behind: dict[int, dict[str, str]] = {}  # step -> signal -> who is behind it
        self._largest: dict[int, Culprit] = {}  # step -> the rank whose own gradient stands far above all others

    def frame(self, frame: Frame) -> bool:
        """Take the per-rank signals that are bad on some ranks and not on others; tells whether one norm stands out."""
        if len(frame.ranks) < 2:
            return False
        for strength, signal in ((2, _LOCAL[0]), *((1, name) for name in _LOCAL[1:])):
            bad = [rank for rank, row in frame.ranks.items() if _above_zero(row, signal)]
            if bad and len(bad) < len(frame.ranks):
                for rank in bad:
                    self._blame(frame.step, rank, strength)
        norms = sorted((row[_OWN_NORM], rank) for rank, row in frame.ranks.items() if _above_zero(row, _OWN_NORM))
        if len(norms) < len(frame.ranks) or not norms[-1][0] > _FAR_ABOVE * norms[-2][0]:
            return False
        rank = norms[-1][1]
        micro = frame.ranks[rank].get("gradient.worst_micro_batch")
        self._largest[frame.step] = Culprit((rank,), () if micro is None else (f"micro-batch {micro:.0f}",))
        self._forget(frame.step)
        return True

    def event(self, event: EventRecord) -> None:
        """Take an event that names somebody: `nonfinite`, `sample` or `named`."""
        if event.kind in NAMING:
            text = event.body.get("text") or event.body.get("names")
            if isinstance(text, str):
                self._behind.setdefault(event.step, {}).setdefault(str(event.body.get("signal")), text[:_LONGEST])
                self._forget(event.step)
        if event.kind != "nonfinite":
            return
        where = str(event.body.get("where", ""))
        if where == "before_reduce":
            self._blame(event.step, event.rank, 3)
        if where not in ("weights", "moments"):
            names = event.body.get("names", ())
            known = self._names.setdefault(event.step, [])
            if isinstance(names, list | tuple):
                known.extend(str(name) for name in names if str(name) not in known)
                del known[self._names_kept :]
        self._forget(event.step)

    def behind(self, signals: Iterable[str], since_step: int) -> str:
        """Say who was first named for one of these signals from `since_step` on; "" when nobody was."""
        for step, told in sorted(self._behind.items()):
            found = next((told[signal] for signal in signals if signal in told), "") if step >= since_step else ""
            if found:
                return found
        return ""

    def culprit(self, since_step: int, kind: str = "nonfinite") -> Culprit:
        """Say who it is by the strongest evidence from `since_step` on; the earliest names win.

        `kind` is the rule's attribution: "own_gradient" asks for the first rank whose own norm stood out since then,
        and for the micro-batch (0-based) that carried it.
        """
        if kind == "own_gradient":
            return next((found for step, found in sorted(self._largest.items()) if step >= since_step), Culprit())
        best: dict[int, int] = {}
        for step, ranks in self._ranks.items():
            if step >= since_step:
                for rank, strength in ranks.items():
                    best[rank] = max(best.get(rank, 0), strength)
        top = max(best.values(), default=0)
        named = [names for step, names in sorted(self._names.items()) if step >= since_step and names]
        ranks_found = tuple(sorted(rank for rank, strength in best.items() if strength == top))
        return Culprit(ranks_found, tuple(named[0]) if named else ())

    def _blame(self, step: int, rank: int, strength: int) -> None:
        ranks = self._ranks.setdefault(step, {})
        ranks[rank] = max(ranks.get(rank, 0), strength)
        self._forget(step)

    def _forget(self, step: int) -> None:
        for table in (self._ranks, self._names, self._behind, self._largest):
            for old in [known for known in table if known < step - self._keep]:
                del table[old]


def _above_zero(row: Mapping[str, float], signal: str) -> bool:
    value = row.get(signal)
    return value is not None and (value > 0 or value != value)
