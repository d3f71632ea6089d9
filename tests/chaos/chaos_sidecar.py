"""The real sidecar of one slot of the series, as shipped but for a free port and short patience; killed and started."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from grpo_sentinel.history import HistoryReader
from grpo_sentinel.incidents.places import bundles, incidents_dir
from grpo_sentinel.records import Finding

SETTINGS = {
    "http": {"port": 0},
    "collectors": {"nvml": {"enabled": False}},
    "sinks": {"history": {"flush_seconds": 0.2}},
    "halting": {"cooldown_seconds": 0},
    "rules": {
        "disabled": ["starts_at_uniform"],  # TRL's policy is random here, and would be the root of all
        "override": {
            "rank_silent": {"parameters": {"floor_seconds": 8.0, "first_seconds": 25.0, "idle_seconds": 8.0}},
            "rank_late": {"parameters": {"floor_seconds": 5.0, "first_seconds": 5.0}},
        },
    },
}
"""A hang is one after 8 s here and after 30 s by default: the series would take a day."""


class Sidecar:
    """One `grpo-sentinel run` over a root of rings; ended by its pid."""

    def __init__(self, folder: Path) -> None:
        self.rings, self.state, self._log = folder / "rings", folder / "state", folder / "sidecar.log"
        folder.mkdir(parents=True, exist_ok=True)
        self.config = folder / "sentinel.yaml"
        places = {"ring_dir": str(self.rings), "state_dir": str(self.state)}
        self.config.write_text(json.dumps({**SETTINGS, **places}))
        self.rings.mkdir(exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        argv = [sys.executable, "-m", "grpo_sentinel.cli", "run"]
        argv += ["--config", str(self.config), "--root", str(self.rings)]
        environment = {**os.environ, "GRPO_SENTINEL_DIR": str(self.rings), "OMP_NUM_THREADS": "1"}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True, env=environment)

    def kill(self) -> None:
        """End it as the out-of-memory killer would."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
            self.kill()

    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.is_file() else ""

    def findings(self, run: str) -> list[Finding]:
        with contextlib.suppress(Exception), HistoryReader(self.state / "history.sqlite") as reader:
            return list(reader.findings(run))
        return []

    def requests(self, run: str) -> list[Any]:
        with contextlib.suppress(Exception), HistoryReader(self.state / "history.sqlite") as reader:
            return list(reader.requests(run))
        return []

    def bundles(self, run: str) -> list[Path]:
        """Bundles of a run whose writing has ended."""
        found = []
        with contextlib.suppress(OSError, ValueError):
            for path, manifest in bundles(incidents_dir(self.state)):
                if manifest["incident"]["run_id"] == run:
                    found.append(path)
        return found

    def settle(self, run: str, wants_bundle: bool, seconds: float) -> None:
        """Wait until all there is to be said of an ended run is on disk: findings that no longer change, the bundle."""
        limit, last, since = time.monotonic() + seconds, None, time.monotonic()
        while time.monotonic() < limit:
            now = [(one.finding_id, one.root_id, one.ranks, one.state) for one in self.findings(run)]
            if now != last:
                last, since = now, time.monotonic()
            told = bool(self.bundles(run)) or not wants_bundle
            if told and time.monotonic() - since > 2.5:
                return
            time.sleep(0.1)
