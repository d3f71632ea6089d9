"""Two children: the training command, which decides everything, and the sidecar, which decides nothing.

notice (launch.on_notice) ─▶ launch ─▶ a request to the run, as `grpo-sentinel halt` makes it; the second is passed on
signal ─▶ launch ─▶ command (its own process group)        command ends ─▶ sidecar lingers ─▶ SIGTERM ─▶ summary
                    sidecar (its own session)              sidecar dies ─▶ started again, at most a few times
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from types import FrameType

import click

from grpo_sentinel.cli.summary import was_halted, write_summary
from grpo_sentinel.cli.terminal import Terminal
from grpo_sentinel.config import Config
from grpo_sentinel.daemon.places import belongs_to, run_directories
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.protocol.ended import PEACEFUL, write_ended
from grpo_sentinel.records import Action

_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
              signal.SIGCONT, signal.SIGWINCH)  # fmt: skip
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_LOOK_SECONDS = 0.1
_RESTARTS = 3  # in a row: a sidecar that has run for a while since earns them anew, over runs of weeks
_STEADY_SECONDS = 60.0
_CLOSE_SECONDS = 15.0


class Sidecar:
    """The daemon as a child; its death never touches training."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._launcher_pid = 0
        self._restarts = 0
        self._started = 0.0
        self._due = 0.0

    def start(self, launcher_pid: int) -> None:
        """Start it beside the command with pid `launcher_pid`; a failure is said."""
        self._launcher_pid = launcher_pid
        self._started = time.monotonic()
        environment = {key: value for key, value in os.environ.items() if key != "GRPO_SENTINEL"}
        try:
            self._process = subprocess.Popen(
                [*self._command, "--launcher-pid", str(launcher_pid)],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C ends the training first; the sidecar watches how it ends
                env=environment,
            )
        except OSError as error:
            say(f"the sidecar could not be started ({error.strerror}); training goes on unwatched")

    def look(self) -> None:
        """Start it again if it died, at most a few times in a row."""
        process = self._process
        if process is None or process.poll() is None:
            return
        now = time.monotonic()
        if self._due:
            if now >= self._due:
                self._due = 0.0
                self.start(self._launcher_pid)
            return
        if now - self._started >= _STEADY_SECONDS:
            self._restarts = 0
        if self._restarts >= _RESTARTS:
            say(f"the sidecar ended ({describe(process.returncode)}) {_RESTARTS + 1} times; training goes on unwatched")
            self._process = None
            return
        self._restarts += 1
        self._due = now + 0.5 * self._restarts
        say(f"the sidecar ended ({describe(process.returncode)}); it is started again, training goes on")

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def end(self) -> None:
        """Ask it to end, wait a bounded time, then kill it."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            say(f"the sidecar did not end within {_CLOSE_SECONDS:g} s and was killed")
            self._process.kill()
            self._process.wait()


def supervise(
    command: list[str],
    environment: dict[str, str],
    sidecar: Sidecar | None,
    *,
    config: Config,
    root: Path | None,
    run_id: str,
    halted_exit_code: int,
) -> int:
    """Run `command` to its end and give the exit code of `launch`."""
    started_ns = time.time_ns()
    notices = {getattr(signal, f"SIG{name}"): asked for name, asked in config.launch.on_notice.items()}
    with _Signals(notices) as signals:
        try:
            process = subprocess.Popen(command, env=environment, preexec_fn=_own_group)
        except OSError as error:
            say(f"{command[0]} cannot be started: {error.strerror}; give a command after --")
            return 127 if isinstance(error, FileNotFoundError) else 126
        told = partial(_note_end, root, run_id, process.pid)
        with Terminal(process) as terminal:
            signals.forward_to(process, told)
            if sidecar is not None:
                sidecar.start(process.pid)
            while _still_runs(process):
                terminal.look()
                for number in signals.noticed():
                    if not _ask(config, run_id, number, notices[number]):
                        signals.pass_on(number)
                if sidecar is not None:
                    sidecar.look()
        told(max(0, -process.returncode), "command", max(0, process.returncode))
        if sidecar is not None:
            _linger(config.launch.linger_seconds if sidecar.running else 0.0, signals)
            sidecar.end()
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    if root is None:
        return code
    halted = was_halted(root, run_id, started_ns)
    write_summary(config, root, run_id, started_ns, code, halted=halted, say=say)
    return halted_exit_code if halted and code == 0 else code


def _ask(config: Config, run_id: str, number: int, asked: str) -> bool:
    """Ask the run for what a notice stands for; False when nobody can be asked, which is said."""
    from grpo_sentinel.cli.halt import make_request

    name = signal.Signals(number).name
    try:
        request_id = make_request(config, run_id, Action[asked.upper().replace("-", "_")], f"{name} from the scheduler")
    except (SentinelError, OSError) as error:
        say(f"{name} came and {asked} could not be asked for ({' '.join(str(error).split())}); it is passed on")
        return False
    say(f"{name} came: request {request_id}, {asked}; a second {name} is passed on to the command")
    return True


def _note_end(root: Path | None, run_id: str, pid: int, number: int, by: str, code: int = 0) -> None:
    """Write into the run's directories that a signal is passed on, or how the command ended: no rank dies of that."""
    for directory in run_directories([root]) if root is not None else ():
        if belongs_to(directory, run_id):
            write_ended(directory, number, by, pid, code)


def _own_group() -> None:
    os.setpgid(0, 0)


def _still_runs(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(_LOOK_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    return False


def _linger(seconds: float, signals: _Signals) -> None:
    """Let the sidecar read the last words; a signal that means "end" cuts it short."""
    limit = time.monotonic() + seconds
    signals.forward_to(None)
    while time.monotonic() < limit and not signals.ending:
        time.sleep(0.05)


class _Signals:
    """Passes signals on to the command while one runs, and remembers that one asked for the end."""

    def __init__(self, notices: Collection[int] = ()) -> None:
        self.ending = False
        self._notices = set(notices)  # signals that are a request the first time they come
        self._noticed: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._told: Callable[[int, str], None] | None = None
        self._early: list[int] = []
        self._before: dict[int, object] = {}

    def forward_to(
        self, process: subprocess.Popen[bytes] | None, told: Callable[[int, str], None] | None = None
    ) -> None:
        """Send what comes from now on, and what came before it had started, to `process`; `told` hears of it first."""
        self._process, self._told = process, told
        early, self._early = self._early, []
        for number in early:
            self._take(number, None)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        process = self._process
        if process is None:
            self.ending = self.ending or number in _ENDING
            self._early.append(number)
            return
        if number in self._notices:
            self._notices.discard(number)
            self._noticed.append(number)
            return
        self.pass_on(number)

    def noticed(self) -> list[int]:
        """Hand over the notices that have come since the last call."""
        noticed, self._noticed = self._noticed, []
        return noticed

    def pass_on(self, number: int) -> None:
        """Send a signal to the command."""
        process = self._process
        if process is None:
            return
        if self._told is not None and number in PEACEFUL:
            self._told(number, "launcher")
        with contextlib.suppress(OSError):
            process.send_signal(number)

    def __enter__(self) -> _Signals:
        for number in _PASSED_ON:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup stays nohup
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]


def describe(code: int) -> str:
    """Put an exit code or a signal into words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def say(text: str) -> None:
    """One line to the terminal, never in the way of training."""
    with contextlib.suppress(OSError):
        click.echo(f"grpo-sentinel: {text}", err=True)
