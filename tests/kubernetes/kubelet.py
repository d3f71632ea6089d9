"""Plays the kubelet: a container is a process that is the first of its own pid namespace, ended as a pod is ended.

SIGTERM to the first process ─▶ grace period ─▶ SIGKILL to it, which ends all that is left in the namespace
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

_UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL")


def usable() -> str:
    """Say why no container can be played here; "" when one can."""
    if shutil.which("unshare") is None:
        return "unshare is not installed (Debian: util-linux)"
    done = subprocess.run([*_UNSHARE, "true"], capture_output=True, text=True, timeout=20, check=False)
    return "" if done.returncode == 0 else f"no pid namespace can be made here: {done.stderr.strip()}"


class Container:
    """One container; what it says on stderr is in `log`."""

    def __init__(self, log: Path, *command: object, env: dict[str, str] | None = None) -> None:
        self.log = log
        with log.open("ab") as file:
            self._outer = subprocess.Popen(
                [*_UNSHARE, *map(str, command)], stdout=file, stderr=file, stdin=subprocess.DEVNULL,
                env={**os.environ, **(env or {})}, start_new_session=True,
            )  # fmt: skip

    def __enter__(self) -> Container:
        return self

    def __exit__(self, *_: object) -> None:
        if self._outer.poll() is None:
            self._outer.kill()  # unshare takes its child along
        self._outer.wait(10)

    @property
    def first(self) -> int:
        """The first process, as it is named outside."""
        limit = time.monotonic() + 20
        while time.monotonic() < limit and self._outer.poll() is None:
            children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children").read_text().split()
            if children:
                assert _inside(int(children[0])) == 1
                return int(children[0])
            time.sleep(0.01)
        raise AssertionError(f"the container did not start: {self.said()}")

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self, seconds: float) -> int:
        """Exit code of the container, 128 + n for a signal."""
        code = self._outer.wait(seconds)
        return code if code >= 0 else 128 - code

    def stop(self, grace_seconds: float) -> tuple[int, float]:
        """End it as the kubelet does; gives exit code and how long it took."""
        started, first = time.monotonic(), self.first
        os.kill(first, signal.SIGTERM)
        try:
            self._outer.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            os.kill(first, signal.SIGKILL)
            self._outer.wait(10)  # unshare has no words of its own for a child that was killed
            return 128 + signal.SIGKILL, time.monotonic() - started
        return self.wait(10), time.monotonic() - started


def _inside(pid: int) -> int:
    """The pid that a process has in its own namespace."""
    line = next(one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("NSpid:"))
    return int(line.split()[-1])
