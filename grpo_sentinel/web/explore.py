"""Endpoints for looking closer: heat map of ranks, walk backwards, incidents, and signals with what they mean.

All are plain functions: the server runs them in threads, because they wait for the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from grpo_sentinel.catalog import signal_of, split_name
from grpo_sentinel.history import HistoryReader
from grpo_sentinel.history.codec import plain
from grpo_sentinel.records import Mode
from grpo_sentinel.web.answers import Refused, Strict, integer, mode_of, run_of
from grpo_sentinel.web.heat import Heat, by_signal, by_step
from grpo_sentinel.web.past import Past
from grpo_sentinel.web.state import WebState

MOST_RANKS = 256
MOST_COLUMNS = 240
MOST_ROWS = 16_384
"""Records, or groups of steps, that one map may read; with many ranks the groups are the longer."""

MOST_MINUTES, MOST_READINGS = 360, 10_000

_END = 2**62


class Explore:
    """The endpoints."""

    def __init__(self, state: WebState, past: Past) -> None:
        self._state = state
        self._past = past

    def heat(self, request: Request) -> Response:
        """Give the heat map; `by=signal` of the newest values, `by=step` of one signal over steps."""
        query = request.query_params
        snapshot, _ = self._past.find(query.get("run"))
        if snapshot is None:
            raise Refused(404, f"run {query.get('run')!r} is neither watched here nor in the history")
        ranks = sorted(snapshot.ranks)[:MOST_RANKS]
        if query.get("by", "signal") == "signal":
            return Strict(plain(by_signal({rank: snapshot.ranks[rank].values for rank in ranks})))
        if query.get("by") != "step":
            raise Refused(400, f"by: expected signal or step, got {query.get('by')!r}")
        signal = query.get("signal", "")
        if not signal:
            raise Refused(400, "signal is missing; give one of /api/v1/signals")
        columns = integer(request, "columns", 120, 2, MOST_COLUMNS)
        since, until = integer(request, "since", 0, 0, _END), integer(request, "until", _END, 0, _END)
        newest = max((status.last_step for status in snapshot.ranks.values()), default=0)
        mode = mode_of(request)
        with self._open() as reader:
            heat = _over_steps(reader, snapshot.run_id, ranks, signal, (since, min(until, newest)), columns, mode)
        return Strict(plain(heat))

    def signals(self, request: Request) -> Response:
        """List the signals that a run recorded, and what the catalogue says of them."""
        with self._open() as reader:
            names = reader.signals(run_of(request, self._state.snapshots(), reader))
        known = {split_name(name)[0]: signal_of(name) for name in names}
        about = {base: {"unit": one.unit, "help": one.help} for base, one in known.items() if one is not None}
        return Strict({"signals": names, "about": about})

    def readings(self, request: Request) -> Response:
        """Give one reading of one GPU or of the host over the last minutes, thinned by lowest and highest."""
        query = request.query_params
        entity, signal = query.get("entity", ""), query.get("signal", "")
        if not entity or not signal:
            raise Refused(400, "entity or signal is missing; /api/v1/status lists them under samples")
        minutes = integer(request, "minutes", 60, 1, MOST_MINUTES)
        snapshot, _ = self._past.find(query.get("run"))
        if snapshot is None:
            raise Refused(404, f"run {query.get('run')!r} is neither watched here nor in the history")
        since = snapshot.wall_ns - minutes * 60 * 10**9
        with self._open() as reader:
            samples = islice(reader.samples(snapshot.run_id, entity=entity, since_wall_ns=since), MOST_READINGS)
            points = [(sample.wall_ns, sample.values[signal]) for sample in samples if signal in sample.values]
        return Strict(plain(over_time(points)))

    def walk(self, request: Request) -> Response:
        """Give the walk backwards of a run: of every layer what was wrong, fine, and not seen."""
        run_id = request.query_params.get("run") or next(iter(self._state.snapshots()), "")
        found = self._state.walk(run_id) if self._state.walk is not None else None
        return Strict(plain(found or {"conclusion": "the walk needs a run that is watched", "layers": []}))

    def incidents(self, request: Request) -> Response:
        """List the incidents of a run, the newest first; a note says so where none are kept."""
        if self._state.incidents is None:
            return Strict({"incidents": [], "note": "Incidents are not kept here (incidents.enabled)."})
        run_id = request.query_params.get("run") or next(iter(self._state.snapshots()), "")
        return Strict({"incidents": plain(self._state.incidents.heads(run_id)), "note": ""})

    def incident(self, request: Request) -> Response:
        """Give one incident in full; see `WebState.incidents`."""
        if self._state.incidents is None:
            raise Refused(503, "incidents are not kept here (incidents.enabled)")
        name = request.query_params.get("name", "")
        found: Any = self._state.incidents.view(name)
        if found is None:
            raise Refused(404, f"there is no incident {name!r}; /api/v1/incidents lists them")
        return Strict(plain(found))

    def _open(self) -> HistoryReader:
        if self._state.history is None:
            raise Refused(503, "the history is switched off (sinks.history.enabled)")
        return self._state.history()


def over_time(points: Sequence[tuple[int, float]], most: int = 500) -> dict[str, list[Any]]:
    """Join neighbouring readings into at most `most` groups: seconds since the epoch, lowest, highest, not finite."""
    out: dict[str, list[Any]] = {"seconds": [], "low": [], "high": [], "nonfinite": []}
    size = max(1, -(-len(points) // most))
    for start in range(0, len(points), size):
        group = points[start : start + size]
        finite = [value for _, value in group if value - value == 0]
        out["seconds"].append(round(group[0][0] / 1e9, 3))
        out["low"].append(min(finite, default=None))
        out["high"].append(max(finite, default=None))
        out["nonfinite"].append(len(group) - len(finite))
    return out


def _over_steps(
    reader: HistoryReader, run_id: str, ranks: list[int], signal: str, span: tuple[int, int], columns: int, mode: Mode
) -> Heat:
    """Read the steps of `span` of all ranks, as closely as a bounded number of rows allows."""
    since, until = span
    window = {"since_step": since, "until_step": until, "max_points": columns}
    window["max_rows"] = MOST_ROWS // max(1, len(ranks))
    found = reader.lines(run_id, ranks, signal, mode=mode, **window)
    return by_step({line.rank: line for line in found}, columns)


__all__ = ["MOST_RANKS", "MOST_ROWS", "Explore"]
