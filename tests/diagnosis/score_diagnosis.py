"""Scores `diagnose`: right, confidently wrong, abstained although it could be decided.

    python tests/diagnosis/score_diagnosis.py            # every collection
    python tests/diagnosis/score_diagnosis.py --misses   # and each miss, those of the held-out half excepted

A verdict of `undetermined` counts as right only where a case is marked as undecidable.
"""

from __future__ import annotations

import io
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain

import test_real_logs
import test_reports
import thread_rows
import unseen_logs

from grpo_sentinel.diagnosis.triage import diagnose
from grpo_sentinel.diagnosis.verdict import Candidate
from grpo_sentinel.history.logs.lines import lines_of, read_lines

UNDECIDED = "undetermined"


@dataclass(slots=True)
class Score:
    """Counts of one collection; `misses` are `(name, wanted, got, cause)`."""

    counts: Counter[str] = field(default_factory=Counter)
    misses: list[tuple[str, str, str, str]] = field(default_factory=list)

    def add(self, name: str, wanted: str, verdict: Candidate) -> None:
        got = verdict.layer
        kind = "right" if got == wanted else "abstained" if got == UNDECIDED else "wrong"
        self.counts[kind] += 1
        self.counts["decidable"] += wanted != UNDECIDED
        self.counts["decidable right"] += wanted != UNDECIDED and kind == "right"
        if kind != "right":
            self.misses.append((name, wanted, got, verdict.name))

    @property
    def total(self) -> int:
        return self.counts["right"] + self.counts["wrong"] + self.counts["abstained"]

    @property
    def right(self) -> float:
        """Share of the decidable that is right."""
        return self.counts["decidable right"] / max(1, self.counts["decidable"])

    @property
    def wrong(self) -> float:
        """Share of all that is confidently wrong."""
        return self.counts["wrong"] / max(1, self.total)


def verdict_of(lines: Iterable[str]) -> Candidate:
    data = "\n".join(lines).encode() + b"\n"
    return diagnose(lines_of(io.BytesIO(data), "log")).verdict


def reports_as_given() -> Score:
    """All reports: their series printed as the trainer prints it, their facts word for word, also where those are prose."""
    score = Score()
    for name, report in test_reports.REPORTS.items():
        lines = test_reports.rendered(report) if "series" in report else []
        score.add(name, _wanted(name), verdict_of([*lines, *report["log_facts"]]))
    return score


def reports_as_logs() -> Score:
    """The reports that tell of something a log shows, as that log; the others are of code and of things no log shows."""
    score = Score()
    shown = {*test_reports.SERIES, *test_reports.LINES, *test_reports.UNDECIDABLE, *test_reports.TOLD}
    for name in sorted(shown):
        report = test_reports.REPORTS[name]
        lines = test_reports.TOLD.get(name)
        if lines is None:
            lines = test_reports.rendered(report) if name in test_reports.SERIES else []
            lines = lines + (
                report["log_facts"] if name not in test_reports.SERIES or name in (*test_reports.LINES, "C023") else []
            )
        score.add(name, _wanted(name), verdict_of(lines))
    return score


def _wanted(name: str) -> str:
    return test_reports.wanted(name) if test_reports.REPORTS[name]["decidable"] else UNDECIDED


def real_logs() -> Score:
    """Logs of TRL runs; a fault without a trace in the log (`BLIND`) wants silence."""
    score = Score()
    wanted = {name: layer for name, (layer, _) in test_real_logs.EXPECTED.items()}
    wanted |= dict.fromkeys((*test_real_logs.HEALTHY, *test_real_logs.BLIND), "none") | {"d_kill_r1": UNDECIDED}
    for path in sorted(test_real_logs.LOGS.glob("*.log")):
        if path.stem in wanted:
            score.add(path.stem, wanted[path.stem], diagnose(read_lines(path)).verdict)
    return score


def unseen(*, held_out: bool) -> Score:
    score = Score()
    for name, (lines, layer) in unseen_logs.CASES.items():
        if unseen_logs.held_out(name) is held_out:
            score.add(name, layer, verdict_of(lines))
    return score


def later() -> Score:
    score = Score()
    for name, (lines, layer) in unseen_logs.LATER.items():
        score.add(name, layer, verdict_of(lines))
    return score


def threads() -> Score:
    """Logs in the shape of public threads, the verdict written down before anything was run; learned from since."""
    score = Score()
    for name, layer, files in thread_rows.cases():
        lines = (lines_of(io.BytesIO("\n".join([*text, ""]).encode()), source) for source, text in files.items())
        score.add(name, layer, diagnose(chain.from_iterable(lines)).verdict)
    return score


def main() -> None:
    collections = {
        "reports, facts word for word": reports_as_given(), "reports that a log can show": reports_as_logs(),
        "logs of real runs": real_logs(), "unseen, the half to learn from": unseen(held_out=False),
        "unseen, the held-out half": unseen(held_out=True), "written later, learned from since": later(),
        "of public threads, learned from since": threads(),
    }  # fmt: skip
    for name, score in collections.items():
        counts = score.counts
        print(
            f"{name:37} {score.total:4} logs, {counts['decidable']} decidable: {score.right:.0%} of these right; of all "
            f"{counts['wrong']} ({score.wrong:.1%}) confidently wrong, {counts['abstained']} abstained"
        )
        if "--misses" in sys.argv and "held-out" not in name:
            for miss in score.misses:
                print("    {}: wanted {}, got {} ({})".format(*miss))


if __name__ == "__main__":
    main()
