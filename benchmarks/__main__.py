"""Runs the benchmarks named on the command line, or all; one that fails is said and the rest go on."""

from __future__ import annotations

import sys
import traceback
from importlib import import_module

from benchmarks.record import BENCH_JSON, record

BENCHMARKS = {
    "push": "benchmarks.bench_push",
    "agent": "benchmarks.bench_agent",
    "ring": "benchmarks.bench_ring",
    "probes": "benchmarks.bench_probes",
    "collect": "benchmarks.bench_collect",
    "rules": "benchmarks.bench_rules",
    "healthy": "benchmarks.healthy",
    "replay": "benchmarks.bench_replay",
    "diagnose": "benchmarks.bench_diagnose",
    "daemon": "benchmarks.bench_daemon",
    "halt": "benchmarks.bench_halt",
    "dead-sinks": "benchmarks.bench_dead_sinks",
    "scrape": "benchmarks.bench_scrape",
    "page": "benchmarks.bench_page",
    "check-data": "benchmarks.bench_check_data",
}
"""Name -> module with `main(record)`; see `benchmarks.record.record` for what it is handed."""


def main(names: list[str]) -> int:
    """Run and return the exit code: 0 when every benchmark ran to its end and kept its promise, else 1."""
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    failed = []
    for name in names or BENCHMARKS:
        print(f"-- {name}", flush=True)
        try:
            import_module(BENCHMARKS[name]).main(record)
        except Exception:  # noqa: BLE001 - the other figures are still wanted
            traceback.print_exc()
            failed.append(name)
    print(f"figures are in {BENCH_JSON}")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
