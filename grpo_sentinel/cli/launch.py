"""`grpo-sentinel launch -- COMMAND`: the training command with the agent switched on and the sidecar beside it.

Training comes first: whatever is wrong with the sentinel costs one line, and the command starts and runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import stat
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from grpo_sentinel.cli.salvage import salvage
from grpo_sentinel.cli.sidecar import Sidecar, say
from grpo_sentinel.cli.supervisor import supervise
from grpo_sentinel.config import Config
from grpo_sentinel.daemon.permanent import Permanent, permanent_of
from grpo_sentinel.daemon.places import ring_roots, state_dir
from grpo_sentinel.daemon.tidy import make_room
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.history import history_path
from grpo_sentinel.incidents.evidence import spool_dir
from grpo_sentinel.protocol import choose_root, sanitise_run_id
from grpo_sentinel.wording import counted


@click.command(context_settings={"allow_interspersed_args": False})  # what begins with - belongs to us up to COMMAND
@click.option("--config", "config_path", metavar="FILE", help="Settings (YAML); see config.example.yaml.")
@click.option("--no-daemon", is_flag=True, help="Switch the agent on, start no sidecar.")
@click.option("--run-id", metavar="ID", help="Name of the run; default: the scheduler's, else a new one.")
@click.option(
    "--log", "logs", multiple=True, metavar="FILE", help="Log of COMMAND, for incidents; else its own output."
)
@click.option("--halted-exit-code", type=click.IntRange(0, 255), metavar="N", help="Exit code of a halted run.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def launch(
    config_path: str | None,
    no_daemon: bool,
    run_id: str | None,
    logs: tuple[str, ...],
    halted_exit_code: int | None,
    command: tuple[str, ...],
) -> int:
    """Run COMMAND with the sidecar beside it: grpo-sentinel launch [options] -- torchrun ... train.py

    Signals go through to COMMAND. The exit code is COMMAND's own, 128+n when signal n ended it, or 83
    (launch.halted_exit_code) when it ended well because the sentinel had halted it.
    """
    for option, value in (("--config", config_path), ("--run-id", run_id), *(("--log", log) for log in logs)):
        if value == "--":
            raise click.UsageError(f"{option} needs a value before --")
    config, given = _settings(config_path)
    environment = dict(os.environ)
    run = sanitise_run_id(run_id or base_run_id(environment, command) or new_run_id())
    _make_room(config, environment, run, for_a_run=True)
    root = _root(config, environment)
    elder = None if root is None or no_daemon else _elder(root, config_path)
    if elder is not None:
        config_path = elder.config or None
        config, given = _settings(config_path)
        config = config.model_copy(update={"state_dir": elder.state_dir})
        say(
            f"run {run} is left to the permanent sidecar that is here (pid {elder.pid}{elder.url and f', {elder.url}'})"
        )
    environment.update(agent_environment(config, environment, run, root))
    sidecar = None
    if root is not None and not no_daemon:
        words = sidecar_command(run, root, given, [*map(os.path.abspath, logs), *own_output()])
        sidecar = Sidecar(words, None if elder is None else elder.folder)
    code = supervise(
        list(command),
        environment,
        sidecar,
        config=config,
        root=root,
        run_id=run,
        halted_exit_code=config.launch.halted_exit_code if halted_exit_code is None else halted_exit_code,
        config_path=None if config_path is None else str(Path(config_path).resolve()),
    )
    _make_room(config, environment, run, for_a_run=False)
    return code


def _elder(root: Path, config_path: str | None) -> Permanent | None:
    """Find the permanent sidecar that this run can be left to: whoever names other settings wants those to hold."""
    found = permanent_of(root)
    if found is None or config_path is None or _same(found.config, config_path):
        return found
    say(
        f"a permanent sidecar is here (pid {found.pid}) with other settings than {config_path}; this run gets one of "
        "its own"
    )
    return None


def _same(one: str, other: str) -> bool:
    return bool(one) and Path(one).resolve() == Path(other).resolve()


def _settings(path: str | None) -> tuple[Config, list[str]]:
    """Load the configuration, and give the words that the sidecar needs to load the same.

    Every mistake in it is said; what is valid holds, and nothing becomes more intrusive than what was asked for.
    """
    found = salvage(path)
    words = [] if path is None else ["--config", str(Path(path).resolve())]
    for mistake in found.mistakes:
        say(mistake)
    if found.mistakes:
        held = f"; to be safe it runs with {', '.join(found.held_back)}" if found.held_back else ""
        dry = " (dry run: rules only say what they would ask for)" if "halting.dry_run: true" in found.held_back else ""
        say(f"training starts, the sentinel runs with the settings that are valid{held}{dry}")
        words.append("--salvage")
    return found.config, words


def _make_room(config: Config, environment: Mapping[str, str], run_id: str, *, for_a_run: bool) -> None:
    """Remove the rings of runs that are over where it is time, or where there is no room; what has gone is said."""
    history = history_path(state_dir(config, environment), socket.gethostname())
    gone = make_room(ring_roots(config, environment), history, spared=run_id, for_a_run=for_a_run)
    if gone:
        names = ", ".join(one.name for one in gone[:3]) + (f" and {len(gone) - 3} more" if gone[3:] else "")
        say(f"rings of {counted(len(gone), 'ended run')} removed: {names}")


def _root(config: Config, environment: Mapping[str, str]) -> Path | None:
    """Choose where rings live; None when nothing can hold them, which is said."""
    chosen = dict(environment)
    if config.ring_dir is not None:
        chosen["GRPO_SENTINEL_DIR"] = str(Path(config.ring_dir).expanduser())
    try:
        return choose_root(chosen).absolute()
    except SentinelError as error:
        text = " ".join(str(error).split())
        remedy = ", or remove what `grpo-sentinel rings` lists." if "KiB free;" in text else "."
        say(f"{text.removesuffix('.')}{remedy} Training starts unwatched; gate and step vote work")
        return None


def base_run_id(environment: Mapping[str, str], command: Sequence[str]) -> str:
    """Find the name that launcher or scheduler give the job, the same on every node; "" when there is none."""
    if environment.get("GRPO_SENTINEL_RUN_ID", "").strip():
        return environment["GRPO_SENTINEL_RUN_ID"].strip()
    for index, word in enumerate(command):
        name, _, value = word.partition("=")
        if name in ("--rdzv-id", "--rdzv_id"):
            value = value or (command[index + 1] if index + 1 < len(command) else "")
            if value and value != "none":
                return value
    for key in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "RAY_JOB_ID"):
        text = environment.get(key, "").strip()
        if text and text != "none":
            return text
    return ""


def new_run_id() -> str:
    """Make a name that sorts by time."""
    return f"run-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def agent_environment(config: Config, environment: Mapping[str, str], run_id: str, root: Path | None) -> dict[str, str]:
    """Say to the agent, by environment variables, what the configuration says; what the user set there wins."""
    given = environment.get("GRPO_SENTINEL_SETTINGS", "")
    settings = config.agent.model_dump(mode="json")
    settings["samples"] = config.incidents.samples
    settings["spool"] = str(spool_dir(state_dir(config, environment)).absolute())
    if given.strip():
        try:
            settings.update(json.loads(given))
        except (ValueError, TypeError):
            say(f"GRPO_SENTINEL_SETTINGS is not a JSON object and is ignored: {given[:80]!r}")
    out = {
        "GRPO_SENTINEL": "1" if config.agent.enabled and environment.get("GRPO_SENTINEL") != "0" else "0",
        "GRPO_SENTINEL_RUN_ID": run_id,
        "GRPO_SENTINEL_SETTINGS": json.dumps(settings),
    }
    if root is not None:
        out["GRPO_SENTINEL_DIR"] = str(root)
    return out


def own_output() -> list[str]:
    """Name the files that stdout and stderr go to, as under Slurm or `> train.log`; [] for terminals and pipes."""
    found = []
    for number in (1, 2):
        with contextlib.suppress(OSError):
            path, opened = os.readlink(f"/proc/self/fd/{number}"), os.fstat(number)
            if stat.S_ISREG(opened.st_mode) and os.path.samestat(opened, os.stat(path)):  # not one that was deleted
                found.append(path)
    return list(dict.fromkeys(found))


def sidecar_command(run_id: str, root: Path, given: Sequence[str] = (), logs: Sequence[str] = ()) -> list[str]:
    """Spell out the sidecar of one launched run; `given` are the words of its configuration."""
    words = [sys.executable, "-m", "grpo_sentinel.cli", "run", "--run-id", run_id, "--root", str(root)]
    return [*words, *(word for log in logs for word in ("--log", log)), *given]
