"""Weigh the candidates: the first cause, not the last line; and say so when the log cannot decide.

Causes before symptoms before witnesses; among causes the one that came first, unless a later one is much surer. What
comes after the chosen one is its chain. Witnesses alone (an exit code, an asynchronous error) give `undetermined`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from grpo_sentinel.diagnosis.absence_checks import ABSENCE_CHECKS
from grpo_sentinel.diagnosis.advice import fitting
from grpo_sentinel.diagnosis.clock_checks import CLOCK_CHECKS
from grpo_sentinel.diagnosis.collapse_checks import COLLAPSE_CHECKS
from grpo_sentinel.diagnosis.cut_checks import CUT_CHECKS
from grpo_sentinel.diagnosis.endings import stood_still
from grpo_sentinel.diagnosis.found import rewards_suffer
from grpo_sentinel.diagnosis.lines_checks import candidates_of_lines
from grpo_sentinel.diagnosis.normal import calibrating, notes_of
from grpo_sentinel.diagnosis.policy_checks import POLICY_CHECKS
from grpo_sentinel.diagnosis.series_checks import CHECKS
from grpo_sentinel.diagnosis.signal_checks import SIGNAL_CHECKS
from grpo_sentinel.diagnosis.silence import nothing
from grpo_sentinel.diagnosis.term_checks import TERM_CHECKS
from grpo_sentinel.diagnosis.traceback_checks import GENERIC, SERVERS, SHAPES, candidates_of_tracebacks, speaks_for
from grpo_sentinel.diagnosis.trend_checks import TREND_CHECKS
from grpo_sentinel.diagnosis.update_checks import UPDATE_CHECKS
from grpo_sentinel.diagnosis.verdict import Candidate, Diagnosis, Evidence
from grpo_sentinel.diagnosis.view import LogView, view_of
from grpo_sentinel.history.logs.lines import Line
from grpo_sentinel.rules.remedies import remedies_of

SERIES_CHECKS = (
    *CHECKS,
    *SIGNAL_CHECKS,
    *UPDATE_CHECKS,
    *POLICY_CHECKS,
    *COLLAPSE_CHECKS,
    *TERM_CHECKS,
    *TREND_CHECKS,
    *ABSENCE_CHECKS,
    *CUT_CHECKS,
    *CLOCK_CHECKS,
)
_ROLE = {"cause": 0, "symptom": 1, "witness": 2}
_GUESS = 0.6  # below this a verdict is one
_BLIND = ("nvml_init", "driver_mismatch")  # they blind the watcher, not the training


def diagnose(lines: Iterable[Line]) -> Diagnosis:
    """Read the lines of one run (several sources together) and give the verdict."""
    return judge(view_of(lines))


def judge(view: LogView) -> Diagnosis:
    """Weigh what a view holds."""
    lines = candidates_of_lines(view)
    series = [found for part in view.side_by_side() for check in SERIES_CHECKS if (found := check(part)) is not None]
    notes = notes_of(view)
    lines = [c for c in lines if not (c.name == "overflow" and calibrating(view))]
    lines = [_stood(c, view) for c in lines if not _explained(c, view)]
    lines += candidates_of_tracebacks(view)
    lines, gone_by = _without_survived(lines, view)
    notes += gone_by
    series = [_scorer_gone(c, view) if c.name == "reward_dropped" else c for c in series]
    candidates = sorted(lines + series, key=_rank_of)
    verdict = candidates[0] if candidates else nothing(view)
    if verdict.role == "witness":
        verdict = _undetermined(verdict)
    elif verdict.layer not in ("none", "undetermined") and verdict.confidence < _GUESS:
        verdict = replace(_guess(verdict), tries=fitting(_remedies(verdict), view))
    elif verdict.layer != "none":
        verdict = replace(verdict, tries=fitting(_remedies(verdict), view))
    return Diagnosis(
        verdict=verdict,
        chain=tuple(c for c in candidates[1:] if c.role != "witness")[:8],
        notes=tuple(notes),
        rows=view.rows_seen,
        lines=view.lines,
        formats=tuple(sorted({row.format for row in view.rows})),
        sources=tuple(sorted(view.last_lines)),
    )


_OF_SCORERS = (*SERVERS, "reward_server", "reward_error", "scoring_failed", "verify_timeout", "reward_none")


def _scorer_gone(dropped: Candidate, view: LogView) -> Candidate:
    """Blame what scores for a reward that fell at once, where a failure of a server was told in the rows before."""
    place = dropped.evidence[0]
    rows = [row.line for row in view.rows if row.source == place.source and row.line <= place.line]
    for name in _OF_SCORERS:
        for hit in view.hits.get(name, ()):
            if hit.line.source == place.source and rows[-4:][0] <= hit.line.number <= place.line:
                seen = Evidence(source=hit.line.source, line=hit.line.number, text=hit.line.text.strip()[:300])
                return replace(
                    dropped, name="scorer_gone", layer="reward", role="cause", confidence=0.6, would_decide=(),
                    evidence=(seen, place), says=f"a server fails, then {dropped.says.partition(':')[0]}",
                )  # fmt: skip
    return dropped


def _stood(candidate: Candidate, view: LogView) -> Candidate:
    """A time limit that ended a job which had said nothing for long is no cause: what it waited for is."""
    if candidate.name != "time_limit":
        return candidate
    gap = stood_still(view, view.hits["time_limit"][0].line)
    if gap is None:
        return candidate
    return replace(
        candidate, layer="undetermined", role="witness",
        says=f"{candidate.says}; nothing was said in the {gap.total_seconds() / 3600:.1f} hours before",
        would_decide=("a dump of all stacks while it stands (`py-spy dump`)", "the logs of all ranks and servers"),
    )  # fmt: skip


def _remedies(verdict: Candidate) -> tuple[str, ...]:
    """Remedies of the named cause; an exception of no special kind has those of its layer."""
    return remedies_of(verdict.name) or remedies_of(f"python_exception.{verdict.layer}")


def _explained(candidate: Candidate, view: LogView) -> bool:
    """Tell whether a line stands inside a traceback that says more: whose work it was, or whose server."""
    if candidate.name == "python_error" or candidate.name not in (*GENERIC, *SHAPES, *SERVERS):
        return False
    layers = speaks_for(candidate.name)
    at = candidate.evidence[0]
    spans = {(t.last.source, t.last.number): t.first for t, _ in view.tracebacks}
    return any(
        found.layer in layers
        and (seen := found.evidence[0]).source == at.source
        and spans[seen.source, seen.line] <= at.line <= seen.line
        for found in candidates_of_tracebacks(view)
    )


LASTING = frozenset(
    ("xid", "fallen_off_bus", "ecc", "gpu_lost", "device_handle", "double_bit", "uncorrectable_nvlink", "host_oom_ray",
     "host_oom_kernel", "host_oom_cgroup", "shm_full", "disk_full", "quota", "nvml_init", "driver_mismatch", "ib_error",
     "ib_event", "ib_status", "reward_none", "reward_error", "scoring_failed",
     "kl_negative", "overflow", "scale_minimum", "sleep_residue", "skipped_count", "machine_check",
     "pcie_error")
)  # fmt: skip
"""Lines that stay true although the run goes on after them; all others would have ended it, or were said in passing."""


_KERNEL = ("xid", "fallen_off_bus", "host_oom_kernel", "host_oom_cgroup", "machine_check", "pcie_error", "gpu_lost")
_PROSE = re.compile(r"[a-z]{3,} (?!kernel\b)[a-z]{2,}.*?(?:NVRM|Killed|oom-kill|Hardware Error|AER|GPU is lost)")


def _lasts(candidate: Candidate, view: LogView) -> bool:
    """Tell whether a line stays true although the run goes on: not the kernel's words amid someone's prose."""
    if candidate.name not in LASTING or (candidate.layer == "reward" and not rewards_suffer(view)):
        return False
    return candidate.name not in _KERNEL or _PROSE.search(candidate.evidence[0].text) is None


def _after_the_end(candidate: Candidate, view: LogView) -> bool:
    """Tell whether a line stands behind the trainer's closing summary and raised nothing: servers and ranks that go."""
    if not candidate.evidence or candidate.layer in ("memory", "device"):
        return False
    at = candidate.evidence[0]
    raised = any((t.last.source, t.last.number) == (at.source, at.line) for t, _ in view.tracebacks)
    return at.line > view.ended_at.get(at.source, at.line) and not raised


def _without_survived(found: list[Candidate], view: LogView) -> tuple[list[Candidate], list[str]]:
    """Drop what the run outlived: a text quoted in a completion, an error that was caught."""
    kept, notes = [], []
    outlived = {
        f"{t.last.source}:{t.last.number}"
        for n, (t, _) in enumerate(view.tracebacks)
        if view.survived(f"traceback {n}")
    }
    if view.survived("python_error") or view.habitual("python_error"):  # exceptions without their frames
        outlived |= {f"{hit.line.source}:{hit.line.number}" for hit in view.hits["python_error"]}
    for one in found:
        place = f"{one.evidence[0].source}:{one.evidence[0].line}" if one.evidence else ""
        gone_by = view.survived(one.name) or view.habitual(one.name) or place in outlived
        gone_by = gone_by or _after_the_end(one, view)
        if _lasts(one, view) or not gone_by:
            kept.append(one)
        elif one.role != "teardown" and one.name not in ("reward_frame", "busy_scoring"):
            notes.append(f"the run went on after: {one.says[:160]}")
    return kept, notes[:5]


def _rank_of(candidate: Candidate) -> tuple[float, float]:
    """Sort key: ranks that waited in vain are the last of the symptoms, whatever file they stand in."""
    waited = 0.5 if candidate.role == "symptom" and candidate.layer == "communication" else 0
    return _ROLE[candidate.role] + waited, candidate.at - 0.5 * candidate.confidence + (
        1 if candidate.name in _BLIND else 0
    )


def _guess(likely: Candidate) -> Candidate:
    """Say a suspicion in words: verdicts this faint were wrong more often than right."""
    return replace(
        likely,
        layer="undetermined",
        confidence=0.35,
        says=f"probably {likely.layer}, but the log does not decide: {likely.says}",
        would_decide=likely.would_decide or ("the lines before this one, from every rank", "the rows that come next"),
    )


def _undetermined(witness: Candidate) -> Candidate:
    return Candidate(
        name=witness.name,
        layer="undetermined",
        role="witness",
        confidence=0.3,
        says=witness.says,
        step=witness.step,
        rank=witness.rank,
        evidence=witness.evidence,
        would_decide=witness.would_decide or ("the lines before this one, from every rank",),
    )
