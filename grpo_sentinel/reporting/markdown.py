"""The report as Markdown: for an issue, a pull request, a mail. Texts from outside cannot break out of their line."""

from __future__ import annotations

from grpo_sentinel.incidents.report import cell, finding_line, table
from grpo_sentinel.reporting import words
from grpo_sentinel.reporting.gather import RunReport


def markdown(report: RunReport) -> str:
    """Write the report; of each plot stay its first, last and extreme values, and a line of blocks."""
    out = [f"# Run {cell(report.run_id)}", "", cell(words.headline(report)), ""]
    out += table(("", ""), words.facts(report))
    out += ["", "## Layers", "", *table(("layer", "what was seen"), list(report.layers.items()))]
    out += ["", "## Findings", ""]
    for root, chain in words.chains(report):
        out.append(f"- **{cell(finding_line(root))}**")
        out += [f"  - {cell(finding_line(one))}" for one in chain]
        out += [f"  - try: {cell(remedy)}" for remedy in root.remedies]
    out += [] if words.chains(report) else ["none above a note"]
    out += [f"- {cell(line)}" for line in words.notes(report)]
    out += ["", "## Signals", "", *table((*words.VALUE_HEAD, "over the run"), words.drawn_rows(report))]
    out += ["", "## Ranks", "", *table(words.RANK_HEAD, words.rank_rows(report))]
    out += ["", "## Settings of the trainer", "", *table(("setting", "value"), words.setting_rows(report))]
    return "\n".join(out) + "\n"


__all__ = ["markdown"]
