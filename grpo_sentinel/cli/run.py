"""`grpo-sentinel run`: the sidecar alone, in the foreground."""

from __future__ import annotations

import glob
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.scrub import learn_environment, learn_settings, scrub

if TYPE_CHECKING:
    from grpo_sentinel.config import Config
    from grpo_sentinel.halting.processes import ProcessMark


@click.command()
@click.option("--config", "config_path", metavar="FILE", help="Settings (YAML); see config.example.yaml.")
@click.option("--once", is_flag=True, help="Look once, write the history, print what was seen, exit.")
@click.option("--json", "as_json", is_flag=True, help="With --once: print JSON.")
@click.option("--run-id", metavar="ID", help="Watch this run and its restarts only; default: all of this user.")
@click.option("--run-dir", metavar="DIR", help="Watch the run in this directory only.")
@click.option("--root", metavar="DIR", help="Where rings live; default: ring_dir, $GRPO_SENTINEL_DIR, /dev/shm, ...")
@click.option(
    "--log", "logs", multiple=True, metavar="FILE", help="Log of the trainer, of which incidents keep the tail."
)
@click.option("--launcher-pid", type=int, hidden=True, help="The command that `launch` runs; asked to end in need.")
@click.option("--supervisor-pid", type=int, hidden=True, help="The `launch` that started this sidecar.")
@click.option("--salvage", "faulty", is_flag=True, hidden=True, help="Use what is valid; `launch` said the mistakes.")
def run(
    config_path: str | None,
    once: bool,
    as_json: bool,
    run_id: str | None,
    run_dir: str | None,
    root: str | None,
    logs: tuple[str, ...],
    launcher_pid: int | None,
    supervisor_pid: int | None,
    faulty: bool,
) -> int:
    """Watch runs, judge them, ask trainers to halt, and serve page, API and /metrics until SIGTERM."""
    from grpo_sentinel.cli.runs import settings
    from grpo_sentinel.config import Config
    from grpo_sentinel.daemon.daemon import Daemon
    from grpo_sentinel.daemon.places import state_dir
    from grpo_sentinel.daemon.whereabouts import list_state_dir

    if as_json and not once:
        raise click.UsageError("--json needs --once; for a sidecar that runs, `grpo-sentinel status --json`")
    config = settings(config_path, root, faulty=faulty)
    if logs:
        named = (*config.incidents.log_files, *map(glob.escape, logs))
        config = config.model_copy(update={"incidents": config.incidents.model_copy(update={"log_files": named})})
    if run_dir is not None and not Path(run_dir).is_dir():
        raise SentinelError(f"--run-dir {run_dir} is not a directory; give the directory of a run or leave it out")
    learn_environment(os.environ)
    learn_settings(config.model_dump(mode="json"))
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Scrubbed("grpo-sentinel: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for noisy in ("uvicorn", "uvicorn.error", "uvicorn.access", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    if launcher_pid is not None:  # the terminal is the training's: no line about a machine that has no GPU
        logging.getLogger("grpo_sentinel.collectors").setLevel(logging.WARNING)
        config = config.model_copy(update={"http": config.http.model_copy(update={"fixed_port": False})})
    if config.sinks.history.enabled:
        list_state_dir(state_dir(Config()), state_dir(config))
    daemon = Daemon(
        config,
        run_dir=Path(run_dir) if run_dir is not None else None,
        run_id=run_id,
        launcher=_named(launcher_pid),
        supervisor=_named(supervisor_pid),
        open_page=show_link,
        config_file=None if config_path is None else Path(config_path),
    )
    if once:
        return _look_once(daemon, as_json, config, run_id)
    stop = threading.Event()
    _end_on_signals(stop)
    daemon.run(stop)
    return 0


def show_link(link: str) -> None:
    """Show the address that opens the page on a terminal only: it holds the token, and logs are read by others."""
    if sys.stderr.isatty():
        click.echo(f"grpo-sentinel: open {link}", err=True)


def _named(pid: int | None) -> ProcessMark | None:
    """Describe the process with a pid; one that is gone already is described as one that does not run."""
    from grpo_sentinel.halting.processes import ProcessMark, mark_of

    return None if pid is None else mark_of(pid) or ProcessMark(pid=pid, start_ticks=0, pid_namespace=0)


class _Scrubbed(logging.Formatter):
    """Lines without secrets, tracebacks included."""

    def format(self, record: logging.LogRecord) -> str:
        """Give a record as text."""
        return scrub(super().format(record))


def _look_once(daemon: object, as_json: bool, config: Config, run_id: str | None) -> int:
    from grpo_sentinel.cli.rendering import print_json, print_snapshot
    from grpo_sentinel.cli.runs import no_such_run
    from grpo_sentinel.daemon.daemon import Daemon
    from grpo_sentinel.daemon.places import belongs_to, ring_roots, run_directories

    assert isinstance(daemon, Daemon)
    try:
        snapshots = daemon.once()
    finally:
        daemon.close()
    roots = ring_roots(config)
    found = run_directories(roots)
    if run_id is not None and not snapshots and not any(belongs_to(directory, run_id) for directory in found):
        raise no_such_run(run_id, found, roots)
    if as_json:
        print_json({"runs": list(snapshots.values())})
    elif not snapshots:
        click.echo(f"no run was found in {', '.join(map(str, roots))}")
    else:
        for snapshot in snapshots.values():
            print_snapshot(snapshot, "looked at once")
    return 0


def _end_on_signals(stop: threading.Event) -> None:
    """The first SIGTERM or SIGINT ends the loop cleanly, a second one at once."""

    def ask(number: int, _frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, ask)
