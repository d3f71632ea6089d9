"""What the collectors look at in tests: GPUs that a fake NVML library shows, and ranks that write real rings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

ONE_GPU = {
    "memory_total": 85_520_809_984,
    "memory_used": 40_000_000_000,
    "memory_reserved": 500_000_000,
    "utilization": 97,
    "memory_utilization": 40,
    "temperature": 64,
    "field82": 71,
    "power_milliwatts": 650_000,
    "power_limit_milliwatts": 700_000,
    "energy_millijoules": 123_456,
    "sm_megahertz": 1980,
    "memory_megahertz": 2619,
    "clock_events": 4,
    "ecc_corrected": 3,
    "ecc_uncorrected": 0,
    "remap_pending": 0,
    "remap_failed": 0,
    "pcie_replays": 2,
    "slices": 0,
    "processes": "1234:39000000000",
}


class GpuWorld:
    """What the fake library shows; a key of None is left out, which makes that figure unsupported."""

    def __init__(self, directory: Path) -> None:
        self._state, self._events = directory / "state", directory / "events"
        self._values: dict[str, object] = {"count": 2}
        self._values |= {f"{gpu}.{name}": value for gpu in (0, 1) for name, value in ONE_GPU.items()}
        self.set()

    def set(self, values: dict[str, object] | None = None) -> None:
        self._values |= values or {}
        lines = [f"{key}={value}\n" for key, value in self._values.items() if value is not None]
        draft = self._state.with_suffix(".new")
        draft.write_text("".join(lines), encoding="ascii")
        draft.replace(self._state)

    def xid(self, gpu: int, number: int) -> None:
        with self._events.open("a", encoding="ascii") as file:
            file.write(f"{gpu} {number}\n")


class RankProcess:
    """A rank in a process of its own that does what it is told, one line at a time; see `rank_process.py`."""

    def __init__(self, directory: Path, rank: int, slots: int) -> None:
        environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "rank_process.py"), str(directory), str(rank), str(slots)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._expect("ready")

    def tell(self, *words: object) -> None:
        """Have it carry out one command and wait until it has."""
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        self._expect("done")

    def _expect(self, word: str) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line == word, f"rank process said {line!r}"

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait(10)
