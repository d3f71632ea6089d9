"""The report as one HTML file that opens anywhere: plots as inline SVG, no script, nothing loaded, all text escaped."""

from __future__ import annotations

from html import escape

from grpo_sentinel.catalog import LAYERS, layer_of
from grpo_sentinel.incidents.page import document, table
from grpo_sentinel.incidents.plots import chart
from grpo_sentinel.incidents.report import finding_line
from grpo_sentinel.records import Severity
from grpo_sentinel.reporting import words
from grpo_sentinel.reporting.gather import RunReport


def html(report: RunReport) -> str:
    """Write the page: the verdict first, then layers, findings, plots by layer, ranks and settings."""
    body = [f"<h1>Run {escape(report.run_id)}</h1>", f"<p>{escape(words.headline(report))}</p>"]
    body += [table((), words.facts(report)), "<h2>Layers</h2>", table((), list(report.layers.items()))]
    body += ["<h2>Findings</h2>", _findings(report)]
    body += ["<h2>Signals</h2>", '<p class="quiet">dashed red line: onset of a finding; red ticks: NaN or infinite</p>']
    body += _plots(report)
    body.append(table(words.VALUE_HEAD, words.value_rows(report)))
    body += ["<h2>Ranks</h2>", table(words.RANK_HEAD, words.rank_rows(report))]
    body += ["<h2>Settings of the trainer</h2>", table((), words.setting_rows(report))]
    return document(f"Run {report.run_id}", body)


def _findings(report: RunReport) -> str:
    out = []
    for root, chain in words.chains(report):
        style = "critical" if root.severity is Severity.CRITICAL else "warning"
        inside = [escape(finding_line(one)) for one in chain] + [f"try: {escape(remedy)}" for remedy in root.remedies]
        items = "".join(f"<li>{one}</li>" for one in inside)
        out.append(f'<li><b class="{style}">{escape(finding_line(root))}</b><ul>{items}</ul></li>')
    out += [f'<li class="quiet">{escape(line)}</li>' for line in words.notes(report)]
    return f"<ul>{''.join(out)}</ul>" if out else "<p>nothing was found</p>"


def _plots(report: RunReport) -> list[str]:
    if not report.plots:
        return ["<p>no signal was recorded</p>"]
    out = []
    for layer in LAYERS:
        drawn = [
            f"<div>{chart(plot.signal, plot.unit, plot.lines, dict(plot.marks))}</div>"
            for plot in report.plots
            if layer_of(plot.signal) == layer and plot.lines
        ]
        if drawn:
            out += [f"<h3>{layer}</h3>", f'<div class="plots">{"".join(drawn)}</div>']
    if report.undrawn_ranks:
        out.append(f'<p class="quiet">ranks that are not drawn: {report.undrawn_ranks}</p>')
    return out


__all__ = ["html"]
