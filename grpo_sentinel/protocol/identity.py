"""Who this process is: run id, pid with its start time and namespace, boot id."""

from __future__ import annotations

import os
import re
import socket
import time
import zlib
from collections.abc import Mapping
from pathlib import Path

from grpo_sentinel.records import RankIdentity

_LONGEST_RUN_ID = 120


def sanitise_run_id(text: str) -> str:
    """Turn any text into a name for a directory: letters, digits, `.`, `_`, `-`; a changed one ends in its CRC.

    A name stays as it is, so launcher, sidecar and agent may all do this. The count of a restart (`-r2`) stays behind
    what was shortened: the run before it is found by its name.
    """
    base, restart = re.fullmatch(r"(?s)(.*?)(-r[0-9]{1,9})?", text).groups("")  # type: ignore[union-attr]
    clean = re.sub(r"[^A-Za-z0-9._-]+", "-", base).lstrip(".-")
    if not clean or clean != base or len(clean) > _LONGEST_RUN_ID:
        crc = f"-{zlib.crc32(base.encode('utf-8', 'backslashreplace')):08x}"
        clean = (clean or "run")[: _LONGEST_RUN_ID - len(crc)] + crc
    return clean + restart


def restart_count(environ: Mapping[str, str]) -> int:
    """How often the launcher has started this job anew (torchrun or Slurm), 0 for the first time."""
    for key in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"):
        text = environ.get(key, "")
        if text.isdigit() and int(text):
            return int(text)
    return 0


def derive_run_id(environ: Mapping[str, str] = os.environ) -> str:
    """Name the run, the same on every rank: given, else torchrun's, Slurm's or Ray's, else from the launching process.

    From the first restart on it ends in `-r<count>`, so a restarted run is a run of its own.
    """
    base = _base_run_id(environ)
    count = restart_count(environ)
    return sanitise_run_id(f"{base}-r{count}" if count else base)


def run_id_is_given(environ: Mapping[str, str] = os.environ) -> bool:
    """Tell whether the environment names the run; else the name is made from host and process, one per node."""
    return bool(_given_run_id(environ))


def derive_parent_run_id(environ: Mapping[str, str] = os.environ) -> str:
    """Name the run that this one continues: given, else the one before the restart, else ""."""
    given = environ.get("GRPO_SENTINEL_PARENT_RUN_ID", "")
    count = restart_count(environ)
    if given or not count:
        return sanitise_run_id(given) if given else ""
    base = _base_run_id(environ)
    return sanitise_run_id(f"{base}-r{count - 1}" if count > 1 else base)


def _given_run_id(environ: Mapping[str, str]) -> str:
    for key in ("GRPO_SENTINEL_RUN_ID", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "RAY_JOB_ID"):
        text = environ.get(key, "").strip()
        if text and not (key == "TORCHELASTIC_RUN_ID" and text == "none"):
            return text
    return ""


def _base_run_id(environ: Mapping[str, str]) -> str:
    given = _given_run_id(environ)
    if given:
        return given
    # Ranks of one node share their parent, the launcher; a lone process is its own launcher.
    pid = os.getppid() if "LOCAL_RANK" in environ or "RANK" in environ else os.getpid()
    return f"{socket.gethostname()}-{pid}-{start_ticks(pid)}"


def parse_stat(text: str) -> tuple[str, int]:
    """Take state (field 3) and start time in ticks (field 22) out of /proc/<pid>/stat. Raises `ValueError`."""
    fields = text.rpartition(")")[2].split()  # the command before it may hold spaces and brackets
    if len(fields) < 20:
        raise ValueError("stat: too few fields")
    return fields[0], int(fields[19])


def start_ticks(pid: int) -> int:
    """Start time of a process in clock ticks since boot, 0 when it cannot be read."""
    try:
        return parse_stat(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace"))[1]
    except (OSError, ValueError):
        return 0


def process_began_ns() -> int:
    """Wall time at which this process began, in ns; 0 when it cannot be told."""
    ticks = start_ticks(os.getpid())
    lived = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time_ns() - round(lived * 1e9) if ticks else 0


def pid_namespace() -> int:
    """Inode of this process's pid namespace, 0 when it cannot be read."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def boot_id() -> str:
    """Identity of this boot of the host, "" when it cannot be read."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def new_identity(
    rank: int, local_rank: int, world_size: int, run_id: str, parent_run_id: str = "", role: str = "trainer"
) -> RankIdentity:
    """Describe the calling process as the writer of a segment."""
    pid = os.getpid()
    return RankIdentity(
        run_id=sanitise_run_id(run_id),
        parent_run_id=sanitise_run_id(parent_run_id) if parent_run_id else "",
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        role=role[:64],
        host=socket.gethostname()[:256],
        pid=pid,
        pid_start_ticks=start_ticks(pid),
        pid_namespace=pid_namespace(),
        boot_id=boot_id(),
        created_wall_ns=time.time_ns(),
    )
