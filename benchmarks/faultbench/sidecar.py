"""The real daemon (`grpo-sentinel run`) for all runs of a bench, and its history to read findings from."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from grpo_sentinel.history import HistoryReader
from grpo_sentinel.records import Finding


class Sidecar:
    """One daemon with rings and state of its own, as shipped but for a free port; ended by its pid."""

    def __init__(self, state: Path) -> None:
        shm = Path("/dev/shm")
        self.rings = Path(tempfile.mkdtemp(prefix="faultbench-", dir=shm if os.access(shm, os.W_OK) else None))
        state.mkdir(parents=True, exist_ok=True)
        self.history = state / "history.sqlite"
        config = state / "sentinel.yaml"
        settings = [f"ring_dir: {self.rings}", f"state_dir: {state}", "http: {port: 0}", "incidents: {enabled: false}"]
        config.write_text("\n".join([*settings, "sinks: {history: {flush_seconds: 0.2}}"]) + "\n")
        self._log = (state / "daemon.log").open("ab")
        argv = [sys.executable, "-m", "grpo_sentinel.cli", "run", "--config", str(config), "--root", str(self.rings)]
        self._process = subprocess.Popen(
            argv,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
            env={**os.environ, "GRPO_SENTINEL_DIR": str(self.rings)},
        )
        self._reader: HistoryReader | None = None

    def reader(self) -> HistoryReader | None:
        """Open the history as soon as it is there."""
        if self._reader is None and self.history.is_file():
            with contextlib.suppress(Exception):
                self._reader = HistoryReader(self.history)
        return self._reader

    def last_step(self, run: str) -> int:
        """Newest step of a run that the history holds."""
        reader = self.reader()
        if reader is None:
            return 0
        rows = reader.query("SELECT MAX(step) FROM records WHERE run=?", (reader.run_key(run),))
        return int(rows[0][0] or 0)

    def findings(self, run: str) -> list[Finding]:
        reader = self.reader()
        return [] if reader is None else reader.findings(run)

    def first_told(self, run: str) -> dict[str, Finding]:
        """Each finding as it was first told, by id."""
        out: dict[str, Finding] = {}
        reader = self.reader()
        for finding in [] if reader is None else reader.transitions(run):
            out.setdefault(finding.finding_id, finding)
        return out

    def requests(self, run: str) -> list[dict[str, Any]]:
        reader = self.reader()
        if reader is None:
            return []
        return [{"state": r.state.name, "by": r.requested_by, "step": r.step} for r in reader.requests(run)]

    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        if self.alive():
            self._process.terminate()
            try:
                self._process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._reader is not None:
            self._reader.close()
        self._log.close()
        for _ in range(3):
            shutil.rmtree(self.rings, ignore_errors=True)
            if not self.rings.exists():
                break
            time.sleep(0.1)
