"""The report as one HTML file: no script, nothing loaded from anywhere, every text escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from grpo_sentinel.catalog import SIGNALS, split_name
from grpo_sentinel.incidents.digest import QUESTIONS, Digest
from grpo_sentinel.incidents.model import Source
from grpo_sentinel.incidents.plots import chart
from grpo_sentinel.incidents.report import (
    chains,
    facts,
    finding_line,
    first_wrong,
    rank_rows,
    value_rows,
    walk_rows,
)
from grpo_sentinel.records import Severity
from grpo_sentinel.wording import counted

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1360px; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: .5rem 0 } th, td { text-align: left; padding: .2rem .8rem .2rem 0;
vertical-align: top; border-bottom: 1px solid #8883 } td { overflow-wrap: anywhere }
td:first-child { white-space: nowrap }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(440px, 1fr)); gap: 1rem }
svg { width: 100% } .t { font: 600 13px system-ui; fill: currentColor } .a { font: 11px system-ui; fill: #888 }
.g { stroke: #8884; fill: none } .o { stroke: #dc2626; stroke-dasharray: 4 3; fill: none }
.l { fill: none; stroke-width: 1.5; stroke-linecap: round } .n { stroke: #dc2626; stroke-width: 2.5 }
.critical { color: #dc2626 } .warning { color: #b45309 } .quiet { color: #888 }
"""


def page(source: Source, digest: Digest) -> str:
    """Write the page. Never contains a link that loads something, a script, or an unescaped text from outside."""
    about = source.about
    title = f"Incident {about.incident_id}: {about.title}"
    body = [f"<h1>{escape(about.title)}</h1>", table((), facts(source))]
    body += ["<h2>What happened</h2>", _findings(source)]
    body += ["<h2>The walk backwards</h2>", f"<p>{escape(first_wrong(source).replace('**', ''))}</p>"]
    body.append(table(("layer", "findings", *QUESTIONS), walk_rows(source, digest)))
    body += [
        "<h2>Signals</h2>",
        '<p class="quiet">red line: onset; red ticks: NaN or infinite</p>',
        _plots(source, digest),
    ]
    body.append(table(("signal", "before the onset", "newest", "worst rank"), value_rows(about, digest)))
    body += ["<h2>Ranks</h2>", table(("rank", "host", "state", "newest step", "phase"), rank_rows(source))]
    body += ["<h2>In this bundle</h2>", _contents(source, digest)]
    return document(title, body)


def document(title: str, body: Sequence[str]) -> str:
    """Put the parts of a body, escaped by the caller, into a self-contained page with the style of all reports."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width"><meta name="referrer" content="no-referrer">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _findings(source: Source) -> str:
    out = []
    for root, chain in chains(source.findings):
        style = "critical" if root.severity is Severity.CRITICAL else "warning"
        inside = [escape(finding_line(one)) for one in chain]
        inside += [f"why it matters: {escape(root.why)}"] if root.why else []
        inside += [f"try: {escape(remedy)}" for remedy in root.remedies]
        inside += [f"see: {escape(root.reference)}"] if root.reference else []
        items = "".join(f"<li>{one}</li>" for one in inside)
        out.append(f'<li><b class="{style}">{escape(finding_line(root))}</b><ul>{items}</ul></li>')
    return f"<ul>{''.join(out)}</ul>"


def _plots(source: Source, digest: Digest) -> str:
    about = source.about
    drawn = []
    for name, series in digest.series.items():
        known = SIGNALS.get(split_name(name)[0])
        onset = {about.onset_step: f"onset: step {about.onset_step}"}
        drawn.append(f"<div>{chart(name, known.unit if known else '', series, onset)}</div>")
    return f'<div class="plots">{"".join(drawn)}</div>' if drawn else "<p>none of the usual signals was recorded</p>"


def _contents(source: Source, digest: Digest) -> str:
    steps = ", ".join(f"rank {rank}: {first} to {last}" for rank, (first, last) in sorted(digest.steps.items()))
    lines = [f"steps: {counted(digest.records, 'record')} ({steps or 'none'})"]
    lines += [f"{one.what}: {one.name}" for one in source.attached]
    lines += [f"not here: {what}: {why}" for what, why in source.missing.items()]
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Give an HTML table of escaped cells."""
    if not rows:
        return "<p>none</p>"
    top = "<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>" if head else ""
    cells = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{top}{cells}</table>"


__all__ = ["document", "page", "table"]
