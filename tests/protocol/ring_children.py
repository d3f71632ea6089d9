"""What the child processes of the ring tests do: `python ring_children.py <function> <directory> [...]`."""

from __future__ import annotations

import atexit
import dataclasses
import os
import signal
import sys
from pathlib import Path

from grpo_sentinel.protocol import Geometry, RankReader, RankWriter, new_identity
from grpo_sentinel.protocol.layout import W_STATE
from grpo_sentinel.records import Phase

NAMES = [f"signal_{i}" for i in range(64)]


def say(text: object) -> None:
    print(text, flush=True)


def hear() -> str:
    return sys.stdin.readline().strip()


def open_writer(directory: str, **geometry: int) -> RankWriter:
    return RankWriter(Path(directory), new_identity(3, 3, 8, "run"), Geometry(**geometry))


def flood(directory: str, count: str) -> None:
    """Push records whose 64 values all equal their step, as fast as possible, into a small ring."""
    writer = open_writer(directory, slots=8, slot_bytes=1024)
    say("ready")
    hear()
    for step in range(1, int(count) + 1):
        writer.push(dict.fromkeys(NAMES, float(step)), step=step)
    writer.close()
    say("done")


def flood_forever(directory: str) -> None:
    writer = open_writer(directory, slots=64, slot_bytes=1024)
    for step in range(1, 101):
        writer.push(dict.fromkeys(NAMES, float(step)), step=step)
    say("ready")
    while True:
        step += 1
        writer.push(dict.fromkeys(NAMES, float(step)), step=step)
        writer.event("note", {"step": step}, step=step)
        writer.phase(Phase.FORWARD, step)


class DeadlyWords:
    """The words of a mapping that kill their own process when sequence `fatal` is about to be stored in a slot."""

    def __init__(self, words: memoryview, fatal: int) -> None:
        self._words, self._fatal = words, fatal

    def __getitem__(self, at: int) -> int:
        return self._words[at]

    def __setitem__(self, at: int, value: int) -> None:
        if at > W_STATE + 32 and value == self._fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        self._words[at] = value


def die_in_mid_write(directory: str, fatal: str) -> None:
    writer = open_writer(directory, slots=64, slot_bytes=1024)
    writer.event("note", {"last": "words"}, step=1)
    writer._words = DeadlyWords(writer._words, int(fatal))
    for step in range(1, int(fatal) + 1):
        writer.push(dict.fromkeys(NAMES, float(step)), step=step)


def hold(directory: str) -> None:
    """Keep a writer open until told."""
    writer = open_writer(directory)
    writer.push({"a": 1.0}, step=1)
    say("ready")
    hear()
    writer.close("told to")
    say("closed")
    hear()


def hold_elsewhere(directory: str) -> None:
    """Like `hold`, but as if in another pid namespace."""
    identity = dataclasses.replace(new_identity(3, 3, 8, "run"), pid_namespace=1)
    writer = RankWriter(Path(directory), identity)
    writer.phase(Phase.GENERATE, 5)
    say("ready")
    hear()


def hold_with_child(directory: str) -> None:
    """Keep a writer open, with a forked child that outlives us."""
    writer = open_writer(directory)
    pid = os.fork()
    if pid == 0:
        signal.pause()
    say(pid)
    hear()
    writer.close()


def fork_and_exit(directory: str) -> None:
    """Fork with the writer open; the child uses it in every way and leaves through atexit."""
    writer = open_writer(directory)
    writer.push({"a": 1.0}, step=1)
    atexit.register(writer.close, "at exit")
    pid = os.fork()
    if pid == 0:
        writer.push({"a": 2.0}, step=2)
        writer.event("note", {}, step=2)
        writer.phase(Phase.FORWARD, 2)
        sys.exit(0)
    os.waitpid(pid, 0)
    say("child gone")
    hear()
    writer.push({"a": 3.0}, step=3)
    say("pushed")
    hear()


def read_own(directory: str) -> None:
    """Read and probe one's own segment in every way, then stay."""
    writer = open_writer(directory)
    for _ in range(3):
        reader = RankReader(writer.path)
        say(f"{reader.liveness().value} {reader._probe.held()}")
        hear()
        reader.close()
    say("closed")
    hear()


def restart_beside_a_reader(directory: str) -> None:
    """Open a reader of a dead writer's segment, become its successor, then close the reader."""
    reader = RankReader(Path(directory) / "rank-00003.ring")
    reader.liveness()
    writer = open_writer(directory)
    say(reader.liveness().value)
    hear()
    reader.close()
    say("closed")
    hear()
    writer.close()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
