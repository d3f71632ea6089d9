"""What the page shows of incidents: read from their bundles and put into plain data, the newest few kept at hand."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo_sentinel.catalog import SIGNALS, split_name
from grpo_sentinel.history.codec import plain
from grpo_sentinel.incidents.bundle import Bundle
from grpo_sentinel.incidents.digest import QUESTIONS, Digest, Point, plots_for
from grpo_sentinel.incidents.places import MANIFEST, bundles
from grpo_sentinel.incidents.report import chains, facts, first_wrong, value_rows, walk_rows

MOST_POINTS = 400  # per line of a plot: more than a plot of that size has pixels to show
MOST_RANKS = 8  # lines in one plot
_KEPT = 4


class IncidentViews:
    """Reads the folder of bundles; safe to use from several threads."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._made: OrderedDict[str, tuple[int, dict[str, Any]]] = OrderedDict()  # name -> when written, view

    def heads(self, run_id: str) -> Sequence[dict[str, Any]]:
        """List the incidents of a run, the newest first."""
        found = [
            {"name": path.name, **manifest["incident"]}
            for path, manifest in bundles(self._root)
            if manifest["incident"].get("run_id") == run_id
        ]
        return sorted(found, key=lambda head: -int(head.get("opened_wall_ns", 0)))

    def view(self, name: str) -> dict[str, Any] | None:
        """Give one incident in full; None when there is none of that name. Raises `SentinelError` for a damaged one."""
        path = next((path for path, _ in bundles(self._root) if path.name == name), None)  # never a path from outside
        if path is None:
            return None
        with self._lock:  # one reading at a time: a bundle may hold some 10,000 records
            written = (path / MANIFEST).stat().st_mtime_ns
            known = self._made.get(name)
            if known is None or known[0] != written:
                known = self._made[name] = written, _view(Bundle(path))
            self._made.move_to_end(name)
            while len(self._made) > _KEPT:
                self._made.popitem(last=False)
            return known[1]


def _view(bundle: Bundle) -> dict[str, Any]:
    source = bundle.source()
    digest = Digest(plotted=plots_for(source.findings))
    for record in source.records():
        digest.add(record)
    return {
        "name": source.about.name,
        "about": plain(source.about),
        "facts": facts(source),
        "chains": [{"root": plain(root), "followers": plain(rest)} for root, rest in chains(source.findings)],
        "first_wrong": first_wrong(source).replace("**", ""),
        "walk": {"head": ["layer", "findings", *QUESTIONS], "rows": walk_rows(source, digest)},
        "values": {"head": ["signal", "before the onset", "newest", "worst rank"],
                   "rows": value_rows(source.about, digest)},
        "plots": [_plot(name, lines) for name, lines in digest.series.items()],
        "folder": str(bundle.path),
        "missing": dict(source.missing),
    }  # fmt: skip


def _plot(name: str, lines: dict[int, list[Point]]) -> dict[str, Any]:
    known = SIGNALS.get(split_name(name)[0])
    ranks = sorted(lines)[:MOST_RANKS]
    return {
        "signal": name,
        "unit": known.unit if known else "",
        "ranks": ranks,
        "lines": [plain(thin(lines[rank])) for rank in ranks],
        "left_out": len(lines) - len(ranks),
    }


def thin(line: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """Keep at most `most` points; of every group its first, smallest and largest, and one that is not finite."""
    if len(line) <= most:
        return list(line)
    size = -(-4 * len(line) // most)
    out: list[Point] = []
    for start in range(0, len(line), size):
        group = line[start : start + size]
        finite = [point for point in group if point[1] - point[1] == 0]
        bad = next((point for point in group if point[1] - point[1] != 0), None)
        ends = {min(finite, key=lambda p: p[1]), max(finite, key=lambda p: p[1])} if finite else set()
        out.extend(sorted({group[0], *ends} if bad is None else {bad, *ends}, key=lambda point: point[0]))
    return out


__all__ = ["IncidentViews", "thin"]
