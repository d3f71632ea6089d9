"""`launch` typed into a real shell on a real (pseudo) terminal: the keyboard is the trainer's, as without it."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

TRAINER = """
import os, signal, sys, time
signal.signal(signal.SIGINT, lambda *_: (print("interrupted", flush=True), sys.exit(7)))
print("trainer", "up", flush=True)
end = time.monotonic() + 60
for line in sys.stdin:
    print("heard", line.strip(), flush=True)
"""


class Shell:
    """An interactive bash with job control, spoken to through its terminal."""

    def __init__(self) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.environ["PS1"] = "ready> "
            os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
        self._text = ""
        self.until("ready> ")

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def until(self, what: str, timeout: float = 60.0) -> str:
        """Read to `what` and give what came before it."""
        limit = time.monotonic() + timeout
        while what not in self._text:
            left = limit - time.monotonic()
            assert left > 0, f"{what!r} never came; the terminal shows: {self._text[-2000:]}"
            if select.select([self._fd], [], [], left)[0]:
                self._text += os.read(self._fd, 65536).decode(errors="replace")
        before, self._text = self._text.split(what, 1)
        return before

    def close(self) -> None:
        os.kill(self.pid, signal.SIGHUP)  # the shell passes it on to its jobs
        os.close(self._fd)
        limit = time.monotonic() + 10
        while os.waitpid(self.pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > limit:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                return
            time.sleep(0.02)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.setenv("GRPO_SENTINEL_DIR", str(tmp_path))
    monkeypatch.setenv("TERM", "dumb")
    made = Shell()
    yield made
    made.close()


@pytest.fixture
def command(tmp_path: Path) -> str:
    trainer, config = tmp_path / "trainer.py", tmp_path / "sentinel.yaml"
    trainer.write_text(TRAINER)
    config.write_text(json.dumps({"http": {"port": 0}, "launch": {"linger_seconds": 0.1}}))
    return f"{sys.executable} -m grpo_sentinel.cli launch --config {config} -- {sys.executable} {trainer}\n"


def test_ctrl_c_reaches_the_trainer_once_and_its_exit_code_the_shell(shell: Shell, command: str) -> None:
    shell.type(command)
    shell.until("trainer up")
    shell.type("\x03")
    assert "interrupted" in shell.until("ready> ")
    shell.type("echo code $?\n")
    shell.until("code 7")


def test_the_keyboard_is_the_trainers_and_ctrl_z_gives_the_shell_back(shell: Shell, command: str) -> None:
    shell.type(command)
    shell.until("trainer up")
    shell.type("one\n")
    shell.until("heard one")
    shell.type("\x1a")
    assert "Stopped" in shell.until("ready> ")
    shell.type("echo shell $((40+2))\n")
    shell.until("shell 42")
    shell.type("fg\n")
    shell.until("launch")
    shell.type("two\n")
    shell.until("heard two")
    shell.type("\x04")
    shell.until("ready> ")
    shell.type("echo code $?\n")
    shell.until("code 0")
