"""`grpo-sentinel report RUN`: a whole run as one HTML file or as Markdown, from the history alone."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import click

from grpo_sentinel.cli.runs import run_choice, settings_of
from grpo_sentinel.daemon.places import belongs_to, state_dir
from grpo_sentinel.errors import HistoryError
from grpo_sentinel.history import HistoryReader, history_path
from grpo_sentinel.incidents.places import bundles, incidents_dir
from grpo_sentinel.wording import counted


@click.command()
@run_choice
@click.option(
    "--output", "-o", metavar="FILE", help="Where to write; .md gives Markdown, - prints it.  [RUN-report.html]"
)
@click.option("--format", "kind", type=click.Choice(["html", "markdown"]), help="Default: by the name of the output.")
@click.option("--signal", "signals", multiple=True, metavar="NAME", help="Draw this signal too; may be repeated.")
@click.option(
    "--history", "history", metavar="FILE", help="History to read; default: this host's, in the state directory."
)
@click.option("--config", "config_path", metavar="FILE", help="Settings of the sidecar, for its directories.")
def report(
    run_id: str | None, output: str | None, kind: str | None, signals: tuple[str, ...], history: str | None,
    config_path: str | None,
) -> int:  # fmt: skip
    """Write a self-contained report of RUN (default: the newest): verdict, layers, findings, plots, ranks, settings.

    Needs no daemon and no rings. Exit code 0, or 2 when the run is unknown.
    """
    from grpo_sentinel.reporting.gather import gather
    from grpo_sentinel.reporting.html import html
    from grpo_sentinel.reporting.markdown import markdown

    config = settings_of(config_path, run_id)
    root = state_dir(config)
    with HistoryReader(Path(history) if history else history_path(root, socket.gethostname())) as reader:
        if run_id is None:
            newest = reader.runs(1)
            if not newest:
                raise HistoryError(f"the history {reader.path} holds no run yet; start one with `grpo-sentinel launch`")
            run_id = newest[0].run_id
        elif reader.run(run_id) is None:  # the newest of its restarts, as other commands take it
            run_id = next((one.run_id for one in reader.runs() if belongs_to(Path(one.run_id), run_id)), run_id)
        kept = [str(path) for path, body in bundles(incidents_dir(root)) if _run_of(body) == run_id]
        found = gather(reader, run_id, signals=signals, incidents=kept)
    chosen = kind or ("markdown" if output and (output == "-" or output.endswith((".md", ".markdown"))) else "html")
    text = markdown(found) if chosen == "markdown" else html(found)
    if output == "-":
        click.echo(text, nl=False)
        return 0
    path = Path(output or f"{run_id.replace('/', '_')}-report.{'md' if chosen == 'markdown' else 'html'}")
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")  # a path may be no text
    except OSError as error:
        raise click.BadParameter(
            f"cannot write {path}: {error.strerror}; choose another place", param_hint="--output"
        ) from error
    findings = counted(len(found.findings), "finding")
    click.echo(f"wrote {path} ({findings}, {counted(len(found.plots), 'plot')})", err=True)
    return 0


def _run_of(manifest: dict[str, Any]) -> object:
    about = manifest.get("incident")
    return about.get("run_id") if isinstance(about, dict) else None
