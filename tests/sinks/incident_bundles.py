"""Real incident bundles on disk, made by the recorder itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sentinel_batches import batch, finding, record

from grpo_sentinel.clock import SystemClock
from grpo_sentinel.config import IncidentsConfig
from grpo_sentinel.incidents.recorder import IncidentRecorder


class Bundles:
    """One node's recorder; jobs run at once."""

    def __init__(self, state_dir: Path, *, archive: bool = False) -> None:
        self.clock = SystemClock()
        self.recorder = IncidentRecorder(
            state_dir,
            IncidentsConfig(archive=archive),
            node="node-a",
            submit=lambda _, job: job() or True,
            clock=self.clock,
        )

    def open(self, name: str = "nan_gradient") -> str:
        """Let an incident begin; gives the folder's name."""
        firing = finding(name, finding_id=name, wall_ns=self.clock.wall_ns())
        snapshot = replace(batch(record(1)).snapshot, findings=(firing,))
        self.recorder.update(snapshot, (firing,))
        folders = [path for path in self.recorder.root.iterdir() if not path.name.startswith(".")]
        return max(folders, key=lambda path: path.stat().st_mtime_ns).name

    def close(self) -> None:
        """Let the run end: the bundle is written for the last time."""
        self.recorder.complete("run-1")
