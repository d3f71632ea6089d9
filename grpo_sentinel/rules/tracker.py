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
from grpo_sentinel.rules.rule import Rule
from grpo_sentinel.rules.view import FINE, Get, Verdict, View


class Change(enum.Enum):
    """What a look at a tracker changed."""

    NONE = 0
    FIRED = 1
    RESOLVED = 2


class Tracker:
    """State of one (rule, rank or entity, label): constant size, whatever the length of the run."""

    __slots__ = (
        "_bits", "_clear", "_conditions", "_detector", "_full", "_quiet_until", "_unless", "episode", "finding",
        "judged", "label", "last_unable", "looks", "rank", "rule", "verdict",
    )  # fmt: skip

    def __init__(self, rule: Rule, label: str = "", rank: int | None = None) -> None:
        self.rule = rule
        self.label = label
        self.rank = rank
        self._detector = rule.detector(label)
        self._unless = rule.exception(label)
        self._conditions = rule.conditions(label)
        self._full = (1 << rule.window) - 1
        self._bits = 0
        self._clear = 0
        self._quiet_until = 0
        self.looks = 0
        self.judged = 0  # number of the last look that could be judged, 0 = none
        self.last_unable = ""
        self.episode = 0  # step of the first bad view of the current episode
        self.verdict: Verdict = FINE
        self.finding: Finding | None = None

    @property
    def bad(self) -> bool:
        """Was the newest view bad, fired or not?"""
        return bool(self._bits & 1)

    def blames(self, row_get: Get) -> bool:
        """Would one rank's own values alone be bad? False for detectors with memory."""
        judge = getattr(self._detector, "blames", None)
        return bool(judge(row_get)) if judge is not None else False

    def look(self, view: View) -> Change:
        """Judge one view. Never raises for a value; cost is the detector's own, constant."""
        self.looks += 1
        for condition in self._conditions:
            met = condition(view.get)
            if not met:
                self.last_unable = condition.missing(view.get) if met is None else f"only judged when {condition.text}"
                return Change.NONE
        verdict = self._detector.update(view)
        if self._unless is not None and self._unless.update(view).bad:
            verdict = FINE
        if verdict is FINE and not self._bits and self.finding is None:  # nearly always: nothing to remember
            self.judged = self.looks
            self.last_unable = ""
            return Change.NONE
        if verdict.unable:
            self.last_unable = verdict.unable
            return Change.NONE
        self.judged = self.looks
        self.last_unable = ""
        if verdict.bad:
            return self._look_bad(verdict, view.step)
        if self._bits:
            self._bits = (self._bits << 1) & self._full
        if self.finding is None:
            return Change.NONE
        self._clear = self._clear + 1 if verdict.clear else 0
        if self._clear < self.rule.resolve_after:
            return Change.NONE
        self._quiet_until = self.looks + self.rule.cooldown
        self._bits = 0
        return Change.RESOLVED

    def _look_bad(self, verdict: Verdict, step: int) -> Change:
        if not self._bits and self.finding is None:
            self.episode = step
        self._bits = ((self._bits << 1) | 1) & self._full
        self._clear = 0
        self.verdict = verdict
        if self.finding is not None or self.looks < self._quiet_until:
            return Change.NONE
        return Change.FIRED if self._bits.bit_count() >= self.rule.bad else Change.NONE

    @property
    def onset(self) -> int:
        """First abnormal step: the detector's own dating, else the first bad view of the episode."""
        own = self.verdict.onset
        return self.episode if own is None else min(own, self.episode)
