"""`grpo-sentinel diagnose`: read the logs of one run and name the first cause, or say that they cannot tell."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import click

from grpo_sentinel.diagnosis.reading import read_into
from grpo_sentinel.diagnosis.redact import redact
from grpo_sentinel.diagnosis.triage import judge
from grpo_sentinel.diagnosis.verdict import Diagnosis
from grpo_sentinel.diagnosis.view import LogView
from grpo_sentinel.history.logs.lines import Line, expand, follow


@click.command()
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs (schema grpo-sentinel.diagnosis/1).")
@click.option("--markdown", is_flag=True, help="Print Markdown for an issue report, secrets and paths redacted.")
@click.option("--follow", "watch", is_flag=True, help="Keep reading one growing log; print when the verdict changes.")
def diagnose(logs: tuple[str, ...], as_json: bool, markdown: bool, watch: bool) -> int:
    """Find the first cause in the logs of one run: files, directories, .gz, or - for standard input.

    Exit code 0: nothing wrong, 1: a cause, 2: usage, 4: the logs cannot decide.
    """
    names = expand(list(logs))
    if watch:
        if len(names) != 1 or names[0] == "-":
            raise click.UsageError(f"--follow takes one file, got {len(names)} logs")
        return _follow(names[0], _printer(as_json, markdown, indent=None))
    view = LogView()
    for name in names:
        for note in read_into(view, name):
            click.echo(f"grpo-sentinel: {name}: {note}", err=True)
    view.close()
    found = judge(view)
    click.echo(_printer(as_json, markdown, indent=2)(found))
    return {"none": 0, "undetermined": 4}.get(found.verdict.layer, 1)


def _printer(as_json: bool, markdown: bool, indent: int | None) -> Callable[[Diagnosis], str]:
    if as_json:
        return lambda found: json.dumps(found.as_json(), ensure_ascii=False, indent=indent)
    return _markdown if markdown else _text


def _follow(name: str, show: Callable[[Diagnosis], str]) -> int:
    view, last, judged = LogView(), "", -1
    try:
        for line in _with_pauses(name):
            if line is not None:
                view.feed(line)
                continue
            if view.lines == judged:
                continue
            judged = view.lines
            found = judge(view)
            key = f"{found.verdict.layer} {found.verdict.name} {found.verdict.step}"
            if key != last:
                click.echo(show(found))
                last = key
    except KeyboardInterrupt:
        return 0
    return 0


def _with_pauses(name: str) -> Iterator[Line | None]:
    """Lines as they come; None whenever there is nothing new for now."""
    for line in follow(name):
        yield line
        if line is None:
            time.sleep(0.5)


def _text(found: Diagnosis) -> str:
    verdict = found.verdict
    out = [f"{verdict.layer}{_where(found)}: {verdict.says} (confidence {verdict.confidence:.0%})"]
    out += [f"  evidence  {e.source}:{e.line}: {e.text}" for e in verdict.evidence]
    out += [f"  try       {text}" for text in verdict.tries]
    out += [f"  decide    {text}" for text in verdict.would_decide]
    out += [f"  then      {c.layer}: {c.says}" for c in found.chain]
    out += [f"  normal    {text}" for text in found.notes]
    formats = ", ".join(found.formats) or "no known format"
    out.append(f"  read      {found.lines} lines, {found.rows} rows of metrics ({formats})")
    return "\n".join(out)


def _where(found: Diagnosis) -> str:
    places = (("step", found.verdict.step), ("rank", found.verdict.rank))
    return "".join(f", {name} {value}" for name, value in places if value is not None)


def _markdown(found: Diagnosis) -> str:
    """Everything is redacted before it is quoted, so that a secret at the end of a line leaves the closing quote."""
    verdict = found.verdict
    out = [
        f"### Diagnosis: {verdict.layer}{_where(found)}",
        "",
        f"{redact(verdict.says)} (confidence {verdict.confidence:.0%})",
        "",
    ]
    out += [f"- `{redact(e.source)}:{e.line}` `{redact(e.text).replace('`', chr(39))}`" for e in verdict.evidence]
    for title, lines in (
        ("Try", verdict.tries),
        ("Would decide", verdict.would_decide),
        ("Followed", tuple(f"{c.layer}: {c.says}" for c in found.chain)),
        ("Normal", found.notes),
    ):
        if lines:
            out += ["", f"**{title}**", "", *(f"- {redact(text)}" for text in lines)]
    return "\n".join(out)
