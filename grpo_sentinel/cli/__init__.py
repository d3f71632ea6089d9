"""`grpo-sentinel`: one file per command, loaded when it is called.

Whatever goes wrong, a person sees one sentence: a `SentinelError` with its own exit code, anything unexpected as exit
code 70 with the path of a crash log.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

import click

from grpo_sentinel._version import __version__
from grpo_sentinel.errors import SentinelError

_COMMANDS: dict[str, tuple[str, str]] = {
    "launch": ("grpo_sentinel.cli.launch:launch", "Run a training command with the sidecar beside it."),
    "run": ("grpo_sentinel.cli.run:run", "Run the sidecar alone."),
    "status": ("grpo_sentinel.cli.status:status", "Show ranks, layers, findings and requests of a run."),
    "top": ("grpo_sentinel.cli.top:top", "Watch a run live in the terminal."),
    "halt": ("grpo_sentinel.cli.halt:halt", "Ask a run to save a checkpoint and stop."),
    "checkpoint": ("grpo_sentinel.cli.halt:checkpoint", "Ask a run to save a checkpoint."),
    "capture": ("grpo_sentinel.cli.halt:capture", "Take evidence of a run that goes on."),
    "check": ("grpo_sentinel.cli.check:check", "Check data, reward, environment, settings or a checkpoint."),
    "resume-point": ("grpo_sentinel.cli.resume_point:resume", "Print the checkpoint that a restart should use."),
    "pins": ("grpo_sentinel.cli.pins:pins", "List and remove the checkpoints that were kept aside."),
    "rings": ("grpo_sentinel.cli.rings:rings", "List and remove the rings of runs that are over."),
    "incident": ("grpo_sentinel.cli.incident:incident", "List, show, export and replay incident bundles."),
    "report": ("grpo_sentinel.cli.report:report", "Write a report of a run as one HTML file or as Markdown."),
    "reproduce": ("grpo_sentinel.cli.reproduce:reproduce", "Run the captured step of an incident again."),
    "replay": ("grpo_sentinel.cli.replay:replay", "Run the rules over past runs, ours or a trainer's own logs."),
    "rules": ("grpo_sentinel.cli.rules:rules", "List, show, test and calibrate the rules."),
    "ingest": ("grpo_sentinel.cli.ingest:ingest", "Watch a run that has no agent, by following its log."),
    "snapshot": ("grpo_sentinel.cli.snapshot:snapshot", "Prove a fix: save one step, compare it with another."),
    "diagnose": ("grpo_sentinel.cli.diagnose:diagnose", "Name the first cause of a run from its logs."),
    "notify": ("grpo_sentinel.cli.notify:notify", "Try the channels of alerts and messages."),
    "doctor": ("grpo_sentinel.cli.doctor:doctor", "Say what is installed, permitted and missing, and the remedy."),
}

CRASH_EXIT_CODE = 70  # EX_SOFTWARE of sysexits.h


class _LazyGroup(click.Group):
    """Commands from the table above; `--help` imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, invoke_without_command=True)
@click.version_option(__version__, prog_name="grpo-sentinel", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Watch GRPO training runs: name what breaks, on which rank and step, and halt while a checkpoint is still good."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and give its exit code. Never raises and never prints a traceback."""
    _fill_standard_streams()
    try:
        code = cli.main(list(arguments) if arguments is not None else None, "grpo-sentinel", standalone_mode=False)
        sys.stdout.flush()  # here, where a reader that has gone (`| head -1`) is no trouble
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # since click 8.2; before, click prints the help and gives 0
            click.echo(error.format_message(), err=True)
            return error.exit_code
        _complain(f"{error.format_message()} (see `{_path_of(error)} --help`)")
        return error.exit_code
    except SentinelError as error:
        for sentence in getattr(error, "mistakes", (str(error),)):
            _complain(sentence)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return 130
    except BrokenPipeError:
        return _leave_pipe()
    except SystemExit as error:  # click and rich leave so, with 1, when the reader of a pipe has gone
        if not (type(sys.stdout).__name__.endswith("PacifyFlushWrapper") or _is_broken_pipe(error)):
            raise
        return _leave_pipe()
    except Exception as error:  # noqa: BLE001 - the last line of defence: no traceback reaches a user
        _complain(f"this is a bug: {type(error).__name__}: {error}; {_crash_log()}")
        return CRASH_EXIT_CODE


def _fill_standard_streams() -> None:
    """Open the null device where a standard stream was closed (`>&-`), or the next file opened would become it."""
    import os

    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
        setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))


def _path_of(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    return context.command_path if context is not None else "grpo-sentinel"


def _complain(text: str) -> None:
    """One line on stderr; a stderr that is gone is no reason to fail differently."""
    try:
        click.echo(f"grpo-sentinel: {' '.join(text.split())}", err=True)
    except OSError:
        return


def _is_broken_pipe(error: SystemExit) -> bool:
    return isinstance(error.__context__, BrokenPipeError)


def _leave_pipe() -> int:
    """End well when the reader has gone: point stdout nowhere, or the interpreter's last flush would complain."""
    import os

    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


def _own_arguments(arguments: list[str]) -> list[str]:
    """Leave out the command that `launch` runs: it is the user's, and may hold what is nobody's business."""
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _crash_log() -> str:
    """Write the traceback to a file of its own and say where."""
    import os
    import tempfile
    import traceback

    from grpo_sentinel.scrub import scrub

    text = f"grpo-sentinel {__version__}, Python {sys.version}\n{' '.join(_own_arguments(sys.argv))}\n\n"
    text = scrub(text + traceback.format_exc())
    try:
        descriptor, path = tempfile.mkstemp(prefix="grpo-sentinel-crash-", suffix=".log")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as error:
        return f"the crash log could not be written: {error.strerror}"
    return f"please report it with {path}"
