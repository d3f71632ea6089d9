"""The checks of `doctor`: each looks at one thing, imports nothing heavy, changes nothing and never raises."""

from __future__ import annotations

import ctypes
import enum
import errno
import importlib.metadata
import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from grpo_sentinel._version import __version__
from grpo_sentinel.collectors.cgroup import read_cgroup
from grpo_sentinel.collectors.nvml import nvidia_devices
from grpo_sentinel.config import Config
from grpo_sentinel.daemon.claim import read_note
from grpo_sentinel.daemon.places import ring_roots, run_directories, state_dir
from grpo_sentinel.daemon.port_holder import holder_of
from grpo_sentinel.daemon.reading import NAME
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.incidents.stacks import find_py_spy
from grpo_sentinel.protocol import Geometry, candidate_roots, choose_root, user_dir
from grpo_sentinel.protocol.places import squatted


class State(enum.Enum):
    """How a thing stands; only `missing` matters enough for exit code 1."""

    GOOD = "ok"
    NOTE = "note"
    BAD = "missing"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    name: str
    state: State
    found: str
    remedy: str = ""


_NEEDED = ("PyYAML", "psutil", "nvidia-ml-py", "prometheus-client", "pydantic", "click", "rich", "starlette", "uvicorn")
_TRAINER = ("torch", "trl", "transformers", "accelerate", "datasets", "peft", "deepspeed", "safetensors")
_RANKS = 8
_SHM = "/dev/shm"  # noqa: S108 - looked at, not written


def python(config: Config) -> list[Finding]:
    """Version of the interpreter and of ourselves."""
    version = platform.python_version()
    good = sys.version_info[:2] >= (3, 10)
    remedy = "" if good else "use Python 3.10 or newer"
    found = f"{version} ({sys.executable}), grpo-sentinel {__version__}"
    return [Finding("python", State.GOOD if good else State.BAD, found, remedy)]


def packages(config: Config) -> list[Finding]:
    """What the sidecar needs, and what of a trainer is installed here; nothing is imported."""
    versions = {name: _version(name) for name in (*_NEEDED, *_TRAINER)}
    missing = [name for name in _NEEDED if versions[name] is None]
    state = State.BAD if missing else State.GOOD
    remedy = f"pip install {' '.join(missing)}" if missing else ""
    out = [Finding("sidecar packages", state, _list(versions, _NEEDED), remedy)]
    trainer = State.GOOD if versions["torch"] else State.NOTE
    out.append(
        Finding(
            "trainer packages",
            trainer,
            _list(versions, _TRAINER),
            "" if versions["torch"] else "fine for a sidecar; the trainer's environment needs torch and grpo-sentinel",
        )
    )
    return out


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _list(versions: dict[str, str | None], names: tuple[str, ...]) -> str:
    have = [f"{name} {versions[name]}" for name in names if versions[name] is not None]
    lack = [name for name in names if versions[name] is None]
    return ", ".join(have) + (f"; not installed: {', '.join(lack)}" if lack else "")


def attachment(config: Config) -> list[Finding]:
    """The `.pth` file that lets `launch` attach without a line of code."""
    for directory in map(Path, sys.path):
        if (directory / "grpo_sentinel.pth").is_file() and directory.name in ("site-packages", "dist-packages"):
            return [Finding("zero-code attach", State.GOOD, f"{directory / 'grpo_sentinel.pth'} is active")]
    remedy = "install the package (in a checkout: pip install .), or call grpo_sentinel.attach(trainer) in the script"
    return [Finding("zero-code attach", State.BAD, "grpo_sentinel.pth is in no site-packages of this Python", remedy)]


def rings(config: Config) -> list[Finding]:
    """The directory of the rings and its room."""
    environment = dict(os.environ)
    if config.ring_dir is not None:
        environment["GRPO_SENTINEL_DIR"] = str(Path(config.ring_dir).expanduser())
    try:
        root = choose_root(environment)
    except SentinelError as error:
        return [
            Finding(
                "ring directory", State.BAD, str(error), "make room, or set GRPO_SENTINEL_DIR to a writable directory"
            )
        ]
    taken = [f"{one} {why}" for one in candidate_roots(environment) if (why := squatted(one)) is not None]
    if taken:
        remedy = "another user may have made it to keep you from being watched: have it removed by its owner or root"
        return [Finding("ring directory", State.NOTE, f"{root} is used, because {'; '.join(taken)}", remedy)]
    if _open_to_others(user_dir(root)):
        remedy = f"chmod o= {user_dir(root)}"
        return [Finding("ring directory", State.NOTE, f"{user_dir(root)} is open to other users", remedy)]
    room = shutil.disk_usage(root)
    needed = _RANKS * Geometry().total_bytes
    found = f"{root}, {room.free >> 20} MiB free of {room.total >> 20}"
    if room.free < needed:
        remedy = f"{_RANKS} ranks take {needed >> 20} MiB: in Docker give --shm-size=256m, or set GRPO_SENTINEL_DIR"
        return [Finding("ring directory", State.NOTE, found, remedy)]
    return [Finding("ring directory", State.GOOD, found)]


def _open_to_others(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & 0o007)
    except OSError:
        return False


def old_runs(config: Config) -> list[Finding]:
    """Runs whose rings still take room."""
    found = run_directories(ring_roots(config))
    size = sum(_size(directory) for directory in found)
    watched = [directory for directory in found if read_note(directory) is not None]
    state = State.NOTE if size > 256 << 20 else State.GOOD
    remedy = f"rm -r the ones you do not need in {user_dir(found[0].parent.parent)}" if state is State.NOTE else ""
    return [
        Finding(
            "runs", state, f"{len(found)} with rings ({size >> 20} MiB), {len(watched)} watched by a daemon", remedy
        )
    ]


def _size(directory: Path) -> int:
    try:
        return sum(file.stat().st_size for file in directory.iterdir())
    except OSError:
        return 0


def shared_memory(config: Config) -> list[Finding]:
    """The shared-memory file system, which containers make small."""
    try:
        room = shutil.disk_usage(_SHM)
    except OSError as error:
        return [Finding(_SHM, State.NOTE, f"not usable: {error.strerror}", "rings fall back to another directory")]
    small = room.total < 128 << 20
    remedy = "small for data loaders too: --shm-size, or an emptyDir with medium Memory" if small else ""
    return [
        Finding(_SHM, State.NOTE if small else State.GOOD, f"{room.free >> 20} MiB free of {room.total >> 20}", remedy)
    ]


def nvml(config: Config) -> list[Finding]:
    """Whether NVIDIA's library can be found; it is not initialised here."""
    if not config.collectors.nvml.enabled:
        return [Finding("NVML", State.NOTE, "switched off (collectors.nvml.enabled)")]
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")._name  # loaded, not initialised
    except OSError:
        library = None
    devices = nvidia_devices()
    if library is None:
        remedy = (
            "fine without GPUs; in a container use the NVIDIA runtime with the utility capability"
            if not devices
            else ("devices are there, the library is not: NVIDIA_DRIVER_CAPABILITIES=utility,compute for the container")
        )
        return [Finding("NVML", State.NOTE, "libnvidia-ml.so.1 not found: GPUs are not watched", remedy)]
    return [Finding("NVML", State.GOOD, f"{library}, devices: {', '.join(devices) or 'none visible'}")]


def memory_limit(config: Config) -> list[Finding]:
    """The cgroup's limit, which counts instead of the host's memory."""
    try:
        found = read_cgroup(None)
    except (OSError, ValueError) as error:
        return [Finding("memory limit", State.NOTE, f"cgroup not readable: {error}", "host totals are used")]
    if found is None or not found.limit_bytes:
        return [Finding("memory limit", State.GOOD, "no cgroup limit: host totals count")]
    used = f", {found.used_bytes / 2**30:.1f} GiB used" if found.used_bytes is not None else ""
    return [Finding("memory limit", State.GOOD, f"cgroup limit {found.limit_bytes / 2**30:.1f} GiB{used}")]


def stacks(config: Config) -> list[Finding]:
    """Means of seeing where a hung rank stands."""
    program = find_py_spy()
    scope = _yama()
    if program is None:
        remedy = "pip install py-spy, or '.[stacks]' in a checkout; until then ranks write their stacks by faulthandler"
        return [Finding("stacks", State.NOTE, "py-spy is not installed", remedy)]
    if scope >= 1 and os.geteuid() != 0:
        remedy = "sysctl kernel.yama.ptrace_scope=0, or give the sidecar CAP_SYS_PTRACE; else faulthandler is used"
        return [Finding("stacks", State.NOTE, f"{program}, but ptrace_scope is {scope}", remedy)]
    return [Finding("stacks", State.GOOD, f"{program}, ptrace permitted (scope {scope})")]


def _yama() -> int:
    try:
        return int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def state_directory(config: Config) -> list[Finding]:
    """Where history and pinned checkpoints go."""
    path = state_dir(config)
    existing = next((one for one in (path, *path.parents) if one.exists()), Path("/"))
    if not os.access(existing, os.W_OK | os.X_OK) or not existing.is_dir():
        remedy = "set state_dir or XDG_STATE_HOME to a writable directory; without it there is no history"
        return [Finding("state directory", State.BAD, f"{path} cannot be written", remedy)]
    free = shutil.disk_usage(existing).free
    low = free < 1 << 30
    remedy = "make room: the history alone may take sinks.history.max_bytes" if low else ""
    return [Finding("state directory", State.NOTE if low else State.GOOD, f"{path}, {free >> 30} GiB free", remedy)]


def port(config: Config) -> list[Finding]:
    """Whether page, API and /metrics find their port free."""
    if not config.http.enabled:
        return [
            Finding("port", State.NOTE, "HTTP is switched off (http.enabled): no page, no /metrics, no halt command")
        ]
    address = (config.http.host, config.http.port)
    try:
        with socket.socket(socket.AF_INET6 if ":" in config.http.host else socket.AF_INET) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            holder = holder_of(address[1])
            remedy = "the next sidecar takes another port and says so, or set http.port"
            return [
                Finding("port", State.NOTE, f"{address[0]}:{address[1]} is taken{holder and f' by {holder}'}", remedy)
            ]
        return [
            Finding("port", State.BAD, f"{address[0]}:{address[1]}: {error.strerror}", "set http.host and http.port")
        ]
    return [Finding("port", State.GOOD, f"{address[0]}:{address[1]} is free")]


def reading(config: Config) -> list[Finding]:
    """Whether other users of this node can read the runs: loopback is no border between them."""
    http = config.http
    if not http.enabled:
        return []
    given = http.read_token or http.read_token_file or os.environ.get(http.read_token_env or "", "")
    if http.open_reading and not given:
        remedy = "fine on a machine of your own; else http.open_reading: false, or http.read_token_file"
        return [Finding("reading", State.NOTE, "everybody on this node can read runs, findings and incidents", remedy)]
    place = "the token of the settings" if given else f"the token in {state_dir(config) / NAME}"
    return [Finding("reading", State.GOOD, f"page and API need {place}; /metrics is open")]


CHECKS: tuple[Callable[[Config], list[Finding]], ...] = (
    python, packages, attachment, rings, old_runs, shared_memory, nvml, memory_limit, stacks, state_directory, port,
    reading,
)  # fmt: skip
