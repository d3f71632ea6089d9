"""`grpo-sentinel incident`: list the bundles of evidence, show one, hand it on, run the rules over it again."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from grpo_sentinel.cli.runs import settings_of, settings_of_all
from grpo_sentinel.config import Config
from grpo_sentinel.daemon.places import belongs_to, state_dir
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.incidents.bundle import Bundle, open_bundle
from grpo_sentinel.incidents.places import ARCHIVE, archives, bundles, incidents_dir, recover, size_of
from grpo_sentinel.records import EventRecord, Finding, Frame
from grpo_sentinel.wording import counted


class NoIncident(SentinelError):
    """No bundle fits what the command names."""


def _config_option(command: Callable[..., int]) -> Callable[..., int]:
    text = "Settings of the sidecar, for its state directory."
    return click.option("--config", "config_path", metavar="FILE", help=text)(command)


@click.group(invoke_without_command=True)
@click.pass_context
def incident(context: click.Context) -> int:
    """The bundles of evidence that the sidecar wrote. ID: as `list` shows it, its beginning, a folder, or a tar.gz.

    Without a command: `list`.
    """
    return int(context.invoke(list_)) if context.invoked_subcommand is None else 0


@incident.command("list")
@click.option("--run-id", metavar="ID", help="Only those of this run and its restarts.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@_config_option
def list_(run_id: str | None, as_json: bool, config_path: str | None) -> int:
    """List incidents, the newest first."""
    from grpo_sentinel.cli.rendering import print_json

    roots = _roots(settings_of_all(config_path))
    found = [{**manifest, "path": str(path), "bytes": size_of(path)} for root in roots for path, manifest in _all(root)]
    if run_id is not None:
        found = [one for one in found if belongs_to(Path(str(one["incident"]["run_id"])), run_id)]
    found.sort(key=lambda one: -int(one["incident"]["opened_wall_ns"]))
    if as_json:
        print_json(found)
        return 0
    for one in found:
        about = one["incident"]
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(about["opened_wall_ns"] / 1e9))
        click.echo(
            f"{about['incident_id']}  {when}  {about['run_id']}  step {about['onset_step']}  {about['state']}  "
            f"{' '.join(str(about['title']).split())}  ({one['bytes'] / 1e6:.1f} MB)"
        )
    if not found:
        of = "" if run_id is None else f" of run {run_id}"
        click.echo(f"no incident{of} in {_named(roots)}")
    return 0


@incident.command(short_help="Print the report of an incident.")
@click.argument("name", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="Print the manifest and the findings as JSON.")
@_config_option
def show(name: str, as_json: bool, config_path: str | None) -> int:
    """Print the report of an incident, and where its bundle is: plain in a terminal, Markdown in a pipe or a file.

    Exit code 1 when the bundle is damaged.
    """
    from grpo_sentinel.cli.rendering import print_json

    path = find_bundle(settings_of_all(config_path), name)
    with open_bundle(path) as bundle:
        damage = bundle.damage()
        if as_json:
            print_json({**bundle.manifest, "path": str(path), "damage": damage, "told": bundle.findings()})
        else:
            text = _report(bundle)
            click.echo(_plain(text) if sys.stdout.isatty() else text)
            click.echo(f"bundle: {path}" + ("" if path.name.endswith(ARCHIVE) else f", page: {path / 'report.html'}"))
    for one in damage:
        click.echo(f"damaged: {one}", err=True)
    return 1 if damage else 0


@incident.command("export")
@click.argument("name", metavar="ID")
@click.option("--redact", is_flag=True, help="Leave out samples, tensors, logs and stacks; clean every other text.")
@click.option("-o", "--output", metavar="FILE.tar.gz", type=click.Path(path_type=Path), help="Where to write it.")
@_config_option
def export_(name: str, redact: bool, output: Path | None, config_path: str | None) -> int:
    """Write an incident as one tar.gz and print its path."""
    from grpo_sentinel.diagnosis.redact import redact as scrub
    from grpo_sentinel.incidents.export import export, export_redacted

    with _opened(config_path, name) as bundle:
        target = output or Path(f"{bundle.about.name}{'-redacted' if redact else ''}{ARCHIVE}")
        try:
            if redact:
                export_redacted(bundle, target, scrub)
            else:
                export(bundle, target)
        except OSError as error:
            raise SentinelError(f"cannot write {target}: {error.strerror or error}; choose another with -o") from error
    click.echo(str(target))
    return 0


@incident.command(short_help="Run the rules over an incident again.")
@click.argument("name", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@_config_option
def replay(name: str, as_json: bool, config_path: str | None) -> int:
    """Run the rules, as they are configured now, over the records of an incident, and print what they find.

    Exit code 1 when the root finding of the incident does not come again: a changed rule, or one that needs more
    history or heartbeats than a bundle holds.
    """
    from grpo_sentinel.cli.rendering import print_json

    with _opened(config_path, name) as bundle:
        source = bundle.source()
        config = settings_of(config_path, source.about.run_id)
        found = _judge(config, bundle)
    then, now = {one.rule for one in source.findings}, {one.rule for one in found}
    root = source.findings[0].rule if source.findings else ""
    if as_json:
        print_json({"findings": found, "not_again": sorted(then - now), "new": sorted(now - then), "root": root})
    else:
        _print_replay(found, sorted(then - now))
    return 0 if not root or root in now else 1


def _judge(config: Config, bundle: Bundle) -> list[Finding]:
    """Newest state of everything that the rules find in a bundle, in the order in which it fired."""
    from grpo_sentinel.incidents.replay import items
    from grpo_sentinel.rules import Engine, load_rules

    source = bundle.source()
    engine = Engine(load_rules(config.rules, halting=config.halting, strict=False), run_id=source.about.run_id)
    engine.configure(dict(source.trainer))
    found: dict[str, Finding] = {}
    for item in items(source):
        if isinstance(item, Frame):
            told = engine.frame(item)
        elif isinstance(item, EventRecord):
            told = engine.event(item)
        else:
            told = engine.sample(item)
        found.update({finding.finding_id: finding for finding in told})
    return list(found.values())


def _print_replay(found: list[Finding], missing: list[str]) -> None:
    from grpo_sentinel.incidents.report import chains, finding_line

    for root, chain in chains(tuple(found)):
        click.echo(finding_line(root))
        for one in chain:
            click.echo(f"  └ {finding_line(one)}")
    click.echo(counted(len(found), "finding"))
    if missing:
        click.echo(f"found then and not now: {', '.join(missing)}")


def _report(bundle: Bundle) -> str:
    try:
        return (bundle.path / "report.md").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return f"the report cannot be read: {error}"


def _plain(text: str) -> str:
    """Give a report as `incidents.report` writes it for a terminal: without the signs of Markdown and its escapes."""
    text = re.sub(r"(?<!\\)\*\*", "", text)
    return re.sub(r"\\([\\|`\[\]*_!])", r"\1", text).replace("&lt;", "<")


def _roots(configs: Sequence[Config]) -> list[Path]:
    roots = [incidents_dir(state_dir(config)) for config in configs]
    for root in roots:
        recover(root)
    return roots


def _named(roots: Sequence[Path]) -> str:
    return ", ".join(map(str, roots))


def _all(root: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every bundle with its manifest; one that is broken is named on stderr."""
    yield from bundles(root)
    for path in archives(root):
        try:
            with open_bundle(path) as bundle:
                yield path, bundle.manifest
        except SentinelError as error:
            click.echo(str(error), err=True)


def find_bundle(configs: Sequence[Config], name: str) -> Path:
    """Find the bundle that is meant: a path, or an id or folder name or the beginning of one. Raises `NoIncident`."""
    given = Path(name)
    if given.is_dir() or (given.is_file() and name.endswith(ARCHIVE)):
        return given
    roots = _roots(configs)
    paths = [path for root in roots for path in (*(bundle for bundle, _ in bundles(root)), *archives(root))]
    ids = {path: path.name.removesuffix(ARCHIVE).rpartition("-")[2] for path in paths}
    fits = [path for path in paths if name and (path.name.startswith(name) or ids[path].startswith(name))]
    exact = [path for path in fits if name in (path.name, ids[path])]
    if len(exact or fits) == 1:
        return (exact or fits)[0]
    if not fits:
        raise NoIncident(f"there is no incident {name} in {_named(roots)}; `grpo-sentinel incident list` shows them")
    raise NoIncident(f"{len(fits)} incidents begin with {name}: {', '.join(sorted(ids[path] for path in fits))}")


@contextmanager
def _opened(config_path: str | None, name: str) -> Iterator[Bundle]:
    with open_bundle(find_bundle(settings_of_all(config_path), name)) as bundle:
        yield bundle


__all__ = ["NoIncident", "find_bundle", "incident"]
