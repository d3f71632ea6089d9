"""All, any and not of other detectors. Every part sees every view: their states must not depend on each other."""

from __future__ import annotations

from dataclasses import dataclass, replace

from grpo_sentinel.rules.view import FINE, NEAR, Detector, Get, Verdict, View


@dataclass
class All:
    """Bad when every part is bad; unable when none is fine and one cannot judge. The first part gives the numbers."""

    of: tuple[Detector, ...]

    def update(self, view: View) -> Verdict:
        verdicts = [part.update(view) for part in self.of]
        for verdict in verdicts:  # the usual case, without an allocation
            if verdict is FINE:
                return FINE
        if all(verdict.bad for verdict in verdicts):
            onsets = [verdict.onset for verdict in verdicts if verdict.onset is not None]
            details = "; ".join(verdict.detail for verdict in verdicts if verdict.detail)
            return replace(verdicts[0], onset=max(onsets) if onsets else None, detail=details)
        if any(not verdict.bad and not verdict.unable for verdict in verdicts):
            return FINE if any(verdict.clear and not verdict.unable for verdict in verdicts) else NEAR
        return next(verdict for verdict in verdicts if verdict.unable)

    def blames(self, get: Get) -> bool:
        return all(part.blames(get) for part in self.of if hasattr(part, "blames"))


@dataclass
class Any:
    """Bad when one part is bad (the first such gives the numbers); unable only when no part can judge."""

    of: tuple[Detector, ...]

    def update(self, view: View) -> Verdict:
        verdicts = [part.update(view) for part in self.of]
        for verdict in verdicts:
            if verdict.bad:
                return verdict
        judged = [verdict for verdict in verdicts if not verdict.unable]
        if not judged:
            return verdicts[0]
        for verdict in judged:
            if not verdict.clear:
                return NEAR
        return FINE

    def blames(self, get: Get) -> bool:
        return any(part.blames(get) for part in self.of if hasattr(part, "blames"))


@dataclass
class Not:
    """Bad when `of` is fine; unable when it is."""

    of: Detector

    def update(self, view: View) -> Verdict:
        verdict = self.of.update(view)
        if verdict.unable:
            return verdict
        return FINE if verdict.bad else Verdict(bad=True, clear=False, value=verdict.value, limit=verdict.limit)
