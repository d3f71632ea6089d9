"""Findings as lines of a CSV file: the whole of a sink that lives outside grpo-sentinel.

    sinks:
      external:
        csv_findings: {path: /var/log/findings.csv}

The sidecar calls `make`, `write`, `tick`, `health`, `problem` and `close` from one thread that is this sink's own, so
nothing here needs a lock, may be slow, and may raise: a `write` that raises is tried again, then counted as lost.
"""

from __future__ import annotations

import csv
from pathlib import Path

from grpo_sentinel.errors import ConfigError
from grpo_sentinel.sinks import SinkContext
from grpo_sentinel.views import SinkBatch

COLUMNS = ("wall_ns", "run_id", "node", "state", "severity", "layer", "rule", "ranks", "onset_step", "message")


def make(context: SinkContext) -> CsvFindings:
    """Make the sink; what stands under its name in sinks.external is `context.settings`."""
    path = context.settings.get("path")
    if not isinstance(path, str):
        raise ConfigError(f"sinks.external.csv_findings.path: expected a file, got {path!r}; name one")
    return CsvFindings(Path(path))


class CsvFindings:
    """Appends one line for each finding that fires or resolves."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = not path.exists() or path.stat().st_size == 0
        self._file = path.open("a", newline="", encoding="utf-8", errors="backslashreplace")
        self._writer = csv.writer(self._file)
        self._lines = 0
        if new:
            self._writer.writerow(COLUMNS)
            self._file.flush()

    def write(self, batch: SinkBatch) -> None:
        """Take one batch."""
        for one in batch.findings:
            ranks = " ".join(map(str, one.ranks))
            self._writer.writerow(
                (one.wall_ns, one.run_id, batch.node, one.state.value, one.severity.name.lower(), one.layer, one.rule,
                 ranks, one.onset_step, one.message)
            )  # fmt: skip
            self._lines += 1
        if batch.findings:
            self._file.flush()

    def health(self) -> dict[str, float]:
        """Shown in /metrics as grpo_sentinel_daemon_sink_csv_findings_lines_total."""
        return {"lines_total": self._lines}

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()
