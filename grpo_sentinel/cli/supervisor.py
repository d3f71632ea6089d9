"""Two children: the training command, which decides everything, and the sidecar, which decides nothing.

notice (launch.on_notice) ─▶ launch ─▶ a request to the run, as `grpo-sentinel halt` makes it; the second is passed on
signal ─▶ launch ─▶ command (its own process group)        command ends ─▶ sidecar lingers ─▶ SIGTERM ─▶ summary
                    sidecar (its own session)              sidecar dies ─▶ started again, at most a few times
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType

from grpo_sentinel.cli.sidecar import Sidecar, say
from grpo_sentinel.cli.summary import run_directory, was_halted, write_summary
from grpo_sentinel.cli.terminal import Terminal
from grpo_sentinel.clock import SystemClock
from grpo_sentinel.config import Config
from grpo_sentinel.daemon.launches import noted
from grpo_sentinel.daemon.past import Stage, stage_of
from grpo_sentinel.daemon.places import belongs_to, run_directories, state_dir
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.halting import HALTING
from grpo_sentinel.history import history_path
from grpo_sentinel.protocol.ended import PEACEFUL, write_ended
from grpo_sentinel.records import Action

_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
              signal.SIGCONT, signal.SIGWINCH)  # fmt: skip
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_LOOK_SECONDS = 0.1
_READ_SECONDS = 5.0  # within which a permanent sidecar has read the end of a run


def supervise(
    command: list[str],
    environment: dict[str, str],
    sidecar: Sidecar | None,
    *,
    config: Config,
    root: Path | None,
    run_id: str,
    halted_exit_code: int,
    config_path: str | None = None,
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
        with (
            noted(root, run_id, process.pid, command, sidecar=sidecar is not None and not sidecar.elder),
            Terminal(process) as terminal,
        ):
            signals.forward_to(process, told)
            if sidecar is not None:
                sidecar.start(process.pid)
            desk = _Notices(config, run_id, notices)
            while _still_runs(process):
                terminal.look()
                for number in desk.to_be_passed_on(signals.noticed()):
                    signals.pass_on(number)
                if sidecar is not None:
                    sidecar.look()
                if os.getpid() == 1:
                    _reap({process.pid} | ({sidecar.pid} if sidecar is not None else set()))
        told(max(0, -process.returncode), "command", max(0, process.returncode))
        if sidecar is not None:
            recorded = run_directory(root, run_id, started_ns) if root is not None else None
            if sidecar.elder and recorded is not None:
                history = history_path(state_dir(config, environment), socket.gethostname())
                read = partial(_is_read, recorded, history)
                _linger(max(config.launch.linger_seconds, _READ_SECONDS), signals, read)
            else:
                _linger(config.launch.linger_seconds if sidecar.running and recorded is not None else 0.0, signals)
            sidecar.end()
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    if root is None:
        if config.agent.enabled:
            say(f"run {run_id} ended with exit code {code}; nothing was watched, for want of a directory for its rings")
        return code
    halted = was_halted(root, run_id, started_ns)
    if halted and not code:
        by_notice = desk.asked_to_halt and config.launch.notice_exit_code is not None
        code = config.launch.notice_exit_code or 0 if by_notice else halted_exit_code
    write_summary(config, root, run_id, started_ns, code, halted=halted, say=say, config_path=config_path)
    return code


class _Notices:
    """Turns a scheduler's notices into requests, and gives back what the command must be told after all."""

    def __init__(self, config: Config, run_id: str, asked: Mapping[int, str]) -> None:
        self.asked_to_halt = False
        self._config = config
        self._run_id = run_id
        self._asked = asked
        self._overdue: list[tuple[float, int]] = []  # when the command is told, and of what

    def to_be_passed_on(self, noticed: Sequence[int]) -> list[int]:
        """Make the requests of new notices; gives those that could not be made, and those that took too long."""
        seconds = self._config.launch.notice_seconds
        out = []
        for number in noticed:
            if not self._ask(number, self._asked[number]):
                out.append(number)
            elif seconds is not None:
                self._overdue.append((time.monotonic() + seconds, number))
        while self._overdue and time.monotonic() >= self._overdue[0][0]:
            out.append(self._overdue.pop(0)[1])
            say(f"the command runs on {seconds:g} s after {signal.Signals(out[-1]).name}; it is passed on")
        return out

    def _ask(self, number: int, asked: str) -> bool:
        """Ask the run for what a notice stands for; False when nobody can be asked, which is said."""
        from grpo_sentinel.cli.halt import make_request

        name, action = signal.Signals(number).name, Action[asked.upper().replace("-", "_")]
        try:
            request_id = make_request(self._config, self._run_id, action, f"{name} from the scheduler")
        except (SentinelError, OSError) as error:
            say(f"{name} came and {asked} could not be asked for ({' '.join(str(error).split())}); it is passed on")
            return False
        say(f"{name} came: request {request_id}, {asked}; a second {name} is passed on to the command")
        self.asked_to_halt = self.asked_to_halt or action in HALTING
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


def _reap(ours: Collection[int]) -> None:
    """Take the exit codes of orphans, which come to a container's first process; `ours` are waited for elsewhere."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None or found.si_pid in ours:
            return
        os.waitpid(found.si_pid, os.WNOHANG)


def _linger(seconds: float, signals: _Signals, read: Callable[[], bool] = lambda: False) -> None:
    """Let the sidecar read the last words; a signal that means "end" cuts it short, and so does `read`."""
    limit = time.monotonic() + seconds
    signals.forward_to(None)
    while time.monotonic() < limit and not signals.ending and not read():
        time.sleep(0.05)


def _is_read(directory: Path, history: Path) -> bool:
    """Tell whether a permanent sidecar has the whole run in its history."""
    return stage_of(directory, SystemClock(), history) is Stage.STORED


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
