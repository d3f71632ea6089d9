"""Life of one rule for one subject: idle -> pending -> firing -> resolved.

                 bad >= n of the last m views            clear for `resolve_after` views
    idle ──────▶ pending ──────────────────────▶ firing ───────────────────────────────▶ resolved
      ▲             │ nothing bad in the window                                              │
      └─────────────┴──────────────────── cooldown: no firing for so many views ◀────────────┘

A view that cannot be judged (missing signal, unmet condition) changes nothing: neither alarm nor all-clear.
"""

from __future__ import annotations

import enum

from grpo_sentinel.records import Finding
from grpo_sentinel.rules.detectors.blindness import blind
from grpo_sentinel.rules.rule import Rule
from grpo_sentinel.rules.view import FINE, Get, Verdict, View


class Change(enum.Enum):
    """What a look at a tracker changed."""

    NONE = 0
    FIRED = 1
    RESOLVED = 2


_NONE = Change.NONE


class Tracker:
    """State of one (rule, rank or entity, label): constant size, whatever the length of the run."""

    __slots__ = (
        "_bits", "_clear", "_conditions", "_detector", "_full", "_quiet_until", "_unless", "episode", "evaluates",
        "finding", "judged", "label", "last_bad", "last_unable", "looks", "rank", "rule", "verdict",
    )  # fmt: skip

    def __init__(self, rule: Rule, label: str = "", rank: int | None = None, *, evaluates: bool = False) -> None:
        """`evaluates`: it judges steps of evaluation, which are apart from those of training."""
        self.rule = rule
        self.evaluates = evaluates
        self.label = label
        self.rank = rank
        self._detector = rule.detector(label)
        self._unless = rule.exception(label)
        self._conditions = rule.conditions(label)
        self._full = (1 << rule.window) - 1
        self._bits = 0
        self._clear = 0
        self._quiet_until = 0
        self.looks = 0  # number of the last look; frames are counted by the board, others one by one
        self.judged = 0  # number of the last look that could be judged, 0 = none
        self.last_unable = ""
        self.episode = 0  # step of the first bad view of the current episode
        self.last_bad = 0  # step of the newest bad view
        self.verdict: Verdict = FINE
        self.finding: Finding | None = None

    @property
    def bad(self) -> bool:
        """Was the newest view bad, fired or not?"""
        return bool(self._bits & 1)

    @property
    def idle(self) -> bool:
        """Has it nothing to remember: no bad view in its window, no finding?"""
        return not self._bits and self.finding is None

    def blind(self, present: frozenset[str], ranks: int) -> bool:
        """Would a look at a view with these signals judge nothing and change nothing?"""
        return any(condition.blind(present) for condition in self._conditions) or (
            blind(self._detector, present, ranks) and (self._unless is None or blind(self._unless, present, ranks))
        )

    def calm(self) -> tuple[tuple[str, float, float], ...]:
        """Ranges (signal, low, high) inside which an idle tracker stays idle; empty when only a look can tell."""
        if self._conditions or self._unless is not None:
            return ()
        ranges: tuple[tuple[str, float, float], ...] = getattr(self._detector, "calm", lambda: ())()
        return ranges

    def rest(self) -> None:
        """Forget what was bad, keep what was learned."""
        self._bits = self._clear = self._quiet_until = 0
        self.finding = None
        self.verdict = FINE

    def blames(self, row_get: Get) -> bool:
        """Would one rank's own values alone be bad? False for detectors with memory."""
        judge = getattr(self._detector, "blames", None)
        return bool(judge(row_get)) if judge is not None else False

    def look(self, view: View, number: int = 0) -> Change:
        """Judge one view, the `number`-th if the caller counts. Cost is the detector's own, constant."""
        self.looks = number or self.looks + 1
        for condition in self._conditions:
            met = condition(view.get)
            if not met:
                self.last_unable = condition.missing(view.get) if met is None else f"only judged when {condition.text}"
                return _NONE
        verdict = self._detector.update(view)
        if self._unless is not None and self._unless.update(view).bad:
            verdict = FINE
        if verdict is FINE and not self._bits and self.finding is None:  # nearly always: nothing to remember
            self.judged = self.looks
            self.last_unable = ""
            return _NONE
        if verdict.unable:
            self.last_unable = verdict.unable
            return _NONE
        self.judged = self.looks
        self.last_unable = ""
        if verdict.bad:
            return self._look_bad(verdict, view.step)
        if self._bits:
            self._bits = (self._bits << 1) & self._full
        if self.finding is None:
            return _NONE
        self._clear = self._clear + 1 if verdict.clear else 0
        if self._clear < self.rule.resolve_after:
            return _NONE
        self._quiet_until = self.looks + self.rule.cooldown
        self._bits = 0
        return Change.RESOLVED

    def _look_bad(self, verdict: Verdict, step: int) -> Change:
        if not self._bits and self.finding is None:
            self.episode = step
        self.last_bad = step
        self._bits = ((self._bits << 1) | 1) & self._full
        self._clear = 0
        self.verdict = verdict
        if self.finding is not None or self.looks < self._quiet_until:
            return _NONE
        return Change.FIRED if self._bits.bit_count() >= self.rule.bad else _NONE

    @property
    def onset(self) -> int:
        """First abnormal step: the detector's own dating, else the first bad view of the episode."""
        own = self.verdict.onset
        return self.episode if own is None else min(own, self.episode)
