"""The report of an incident as Markdown, and the pieces that the page shows too: everything is told once, here."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_sentinel import views
from grpo_sentinel.incidents.digest import LAYERS, QUESTIONS, Answer, Digest
from grpo_sentinel.incidents.model import About, Source
from grpo_sentinel.records import Finding, FindingState
from grpo_sentinel.wording import counted, visible


def facts(source: Source) -> list[tuple[str, str]]:
    """The head of the report: name and value."""
    about = source.about
    rows: list[tuple[str, str]] = [
        ("run", f"{about.run_id} on {about.node}"),
        ("began", f"step {about.onset_step}, announced {_when(about.opened_wall_ns)}"),
        ("newest step", str(about.last_step)),
        ("state", about.state.value + (f"; the run {about.ended}" if about.ended else "; the run goes on")),
    ]
    halt = source.run.get("halt")
    if isinstance(halt, Mapping) and halt.get("request_id"):
        detail = f", {halt['detail']}" if halt.get("detail") else ""
        action = str(halt.get("action", "")).replace("_", "-")
        rows.append(("request", f"{action} by {halt.get('requested_by')}: {halt.get('state')}{detail}"))
    kept = source.run.get("checkpoints")
    if isinstance(kept, Mapping):
        rows.append(("last checkpoint before", str(kept.get("last_before_onset") or "none known")))
        rows.append(("kept from rotation", str(kept.get("pinned") or "none")))
    return rows


def finding_line(finding: Finding) -> str:
    """One finding in one line."""
    where = f"rank {', '.join(map(str, finding.ranks))}" if finding.ranks else "rank not known"
    over = ", resolved" if finding.state is FindingState.RESOLVED else ""
    return (
        f"{finding.severity.name.lower()}, {finding.layer}, {where}, since step {finding.onset_step}{over}: "
        f"{finding.message} [{finding.rule}]"
    )


def chains(findings: tuple[Finding, ...]) -> list[tuple[Finding, list[Finding]]]:
    """Every root with what follows from it, in order of onset."""
    return [(root, sorted(chain, key=lambda f: (f.onset_step, f.wall_ns))) for root, chain in views.chains(findings)]


def walk_rows(source: Source, digest: Digest) -> list[tuple[str, ...]]:
    """The walk backwards: layer, its findings, and four answers about its signals."""
    rows = []
    for layer in LAYERS:
        found = sorted((f for f in source.findings if f.layer == layer), key=lambda f: f.onset_step)
        told = f"{found[0].message} (step {found[0].onset_step})" if found else "nothing found"
        if len(found) > 1:
            told += f", and {len(found) - 1} more"
        rows.append((layer, told, *(_answer(digest.answer(layer, question)) for question in QUESTIONS)))
    return rows


def _answer(answer: Answer) -> str:
    if answer.step is not None:
        return f"wrong from step {answer.step}, rank {answer.rank} ({answer.signal})"
    return f"good ({answer.signals})" if answer.signals else "not watched"


def first_wrong(source: Source) -> str:
    """The end of the walk, in a sentence."""
    if not source.findings:
        return "No finding belongs to this incident."
    root = source.findings[0]
    where = f"on rank {', '.join(map(str, root.ranks))}" if root.ranks else "on a rank that is not known"
    return f"The first layer that was wrong is **{root.layer}**, at step {root.onset_step}, {where}."


def markdown(source: Source, digest: Digest) -> str:
    """Write the report. Texts from outside cannot break out of their line or cell."""
    about = source.about
    out = [f"# Incident {about.incident_id}: {cell(about.title)}", ""]
    out += table(("", ""), facts(source))
    out += ["", "## What happened", ""]
    for root, chain in chains(source.findings):
        out.append(f"- **{cell(finding_line(root))}**")
        out += [f"  - {cell(finding_line(one))}" for one in chain]
        if root.why:
            out.append(f"  - why it matters: {cell(root.why)}")
        out += [f"  - try: {cell(remedy)}" for remedy in root.remedies]
        if root.reference:
            out.append(f"  - see: {cell(root.reference)}")
    out += ["", "## The walk backwards", "", first_wrong(source).replace("|", "\\|"), ""]
    out += table(("layer", "findings", *QUESTIONS), walk_rows(source, digest))
    out += ["", "## The last values", ""]
    out += table(("signal", "before the onset", "newest", "worst rank"), value_rows(about, digest))
    out += ["", "## Ranks", ""]
    out += table(("rank", "host", "state", "newest step", "phase"), rank_rows(source))
    out += ["", "## In this bundle", ""]
    steps = ", ".join(f"rank {rank}: {first} to {last}" for rank, (first, last) in sorted(digest.steps.items()))
    out.append(f"- steps: {counted(digest.records, 'record')} ({steps or 'none'})")
    out += [f"- {cell(one.what)}: `{cell(one.name)}`" for one in source.attached]
    out += [f"- not here: {cell(what)}: {cell(why)}" for what, why in source.missing.items()]
    return "\n".join(out) + "\n"


def value_rows(about: About, digest: Digest) -> list[tuple[str, ...]]:
    """Plotted signals: the value before the onset, the newest, and the rank that is farthest off."""
    rows: list[tuple[str, ...]] = []
    for signal, ranks in digest.series.items():
        before = [value for line in ranks.values() for step, value in line if step < about.onset_step][-1:]
        newest = {rank: line[-1][1] for rank, line in ranks.items()}
        reference = before[0] if before else 0.0
        worst = max(newest, key=lambda rank: _distance(newest[rank], reference))
        rows.append((signal, _number(before[0]) if before else "-", _number(newest[worst]), str(worst)))
    return rows


def rank_rows(source: Source) -> list[tuple[str, ...]]:
    """The ranks as last seen."""
    ranks = source.run.get("ranks")
    rows: list[tuple[str, ...]] = []
    for rank, status in ranks.items() if isinstance(ranks, Mapping) else ():
        state = str(_at(status, "liveness")) + (f" ({status['closed_detail']})" if status.get("closed_detail") else "")
        host, phase = str(_at(status, "identity", "host")), str(_at(status, "heartbeat", "phase"))
        rows.append((str(rank), host, state, str(_at(status, "last_step")), phase))
    return rows


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key, "-") if isinstance(value, Mapping) else "-"
    return value


def _distance(value: float, reference: float) -> float:
    return abs(value - reference) if math.isfinite(value) else math.inf


def _number(value: float) -> str:
    return f"{value:.6g}"


def _when(wall_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(wall_ns / 1e9))


def cell(text: str) -> str:
    """Keep a text on one line and inert: it may come from a sample or an exception."""
    flat = visible(" ".join(text.split()))
    for sign in ("\\", "|", "`", "<", "[", "]", "*", "_", "!"):
        flat = flat.replace(sign, f"\\{sign}") if sign != "<" else flat.replace("<", "&lt;")
    return flat


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Give the lines of a Markdown table; "none" without rows."""
    if not rows:
        return ["none"]
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    return [*lines, *(f"| {' | '.join(cell(text) for text in row)} |" for row in rows)]


__all__ = [
    "cell",
    "chains",
    "facts",
    "finding_line",
    "first_wrong",
    "markdown",
    "rank_rows",
    "table",
    "value_rows",
    "walk_rows",
]
