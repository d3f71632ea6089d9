"""Writes down what torch's flight recorder knows of this rank's collectives: when the sidecar asks, and at exceptions.

The recorder keeps the newest collectives of NCCL and gloo in memory (TORCH_FR_BUFFER_SIZE, on by default in newer
versions). A thread waits in the kernel for the sidecar's question, so it costs nothing, and it answers while the
training thread hangs in a collective. The answer is JSON: torch's own dump files are pickles.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

from grpo_sentinel.protocol.collectives import answer_of, pipe_of

_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")  # the second before torch 2.10 or so
_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_MOST_BYTES = 512 << 10  # the file lies beside the rings
_END = b"."


def find_dump(environ: Mapping[str, str] = os.environ) -> Callable[..., bytes] | None:
    """Find torch's function that gives the recorder's contents as JSON; None where it is off or not built in."""
    if any(environ.get(name, "").strip() == "0" for name in _SIZES):
        return None
    with contextlib.suppress(ImportError):
        module = import_module("torch._C._distributed_c10d")
        return next((getattr(module, name) for name in _DUMPS if hasattr(module, name)), None)
    return None


def own_files(environ: Mapping[str, str] = os.environ) -> str:
    """What the files of torch's own dumps begin with, the rank follows; "" where the user has not said."""
    given = next((environ[name] for name in _FILES if environ.get(name)), "")
    return given and os.path.join(os.getcwd(), given)


class Collectives:
    """Answers the sidecar for one rank. Raises `OSError` when its pipe cannot be made."""

    def __init__(self, directory: Path, rank: int, dump: Callable[..., bytes]) -> None:
        self._pipe, self._answer, self._dump = pipe_of(directory, rank), answer_of(directory, rank), dump
        self._pipe.unlink(missing_ok=True)
        os.mkfifo(self._pipe, 0o600)
        self._descriptor = os.open(self._pipe, os.O_RDWR | os.O_CLOEXEC)  # reading too: a pipe that nobody ends
        self._thread = threading.Thread(target=self._wait, name="grpo-sentinel-collectives", daemon=True)
        self._thread.start()

    def write(self) -> None:
        """Write the answer anew, whole or not at all. Raises `OSError`."""
        data = self._dump(includeCollectives=True, onlyActive=False)
        if len(data) > _MOST_BYTES:
            data = self._dump(includeCollectives=True, onlyActive=True)
        if len(data) > _MOST_BYTES:
            data = json.dumps({"left_out": f"{len(data):,} bytes are more than {_MOST_BYTES:,}"}).encode()
        partial = self._answer.with_suffix(f".{os.getpid()}.partial")
        try:
            with open(partial, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                file.write(data)
            partial.replace(self._answer)
        finally:
            partial.unlink(missing_ok=True)

    def close(self) -> None:
        """Let the thread end and take the pipe away."""
        with contextlib.suppress(OSError):
            os.write(self._descriptor, _END)
            self._pipe.unlink(missing_ok=True)

    def _wait(self) -> None:
        while True:
            try:
                if _END in os.read(self._descriptor, 64):
                    return
                self.write()
            except OSError:  # a full /dev/shm: the next question may be luckier
                continue
            except Exception:  # noqa: BLE001 - another torch may answer otherwise; evidence must not cost training
                return


__all__ = ["Collectives", "find_dump", "own_files"]
