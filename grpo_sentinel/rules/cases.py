"""Tests of rules as data: series in, findings out. Every built-in rule has one case that fires and one that is silent.

    cases:
      - rule: grad_nonfinite
        fires: {series: {gradient.nonfinite_tensors: "0x5 1"}, expect: {step: 6, onset: 6}}
        silent: {series: {gradient.nonfinite_tensors: "0x9"}}

A series is a line of tokens: `v` or `vxN` (N times v), `a..bxN` (N values from a to b), `m~sxN` (N draws of a Gaussian,
the same in every run), `_xN` (no value); one token without a count holds for all steps. Other keys of a case: `ranks`
(default 1; a series may be a mapping rank -> line), `mode`, `context` (trainer configuration), `seconds` (per step),
`missing` ({step: [ranks]}), `events`, `samples` (entity -> series), `ticks`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from grpo_sentinel.errors import ConfigError
from grpo_sentinel.records import EventRecord, Finding, Frame, Heartbeat, Liveness, Mode, Phase, Sample
from grpo_sentinel.rules.engine import Engine
from grpo_sentinel.rules.load import read_mapping
from grpo_sentinel.rules.rule import RuleSet

_START_NS = 1_700_000_000_000_000_000
_EXPECTED = ("step", "onset", "ranks", "subject", "root", "message", "finding_id")


@dataclass(frozen=True, slots=True)
class Case:
    """One case of one rule; `name` says which file and which kind."""

    name: str
    rule: str
    fires: bool
    body: Mapping[str, Any]


def read_cases(text: str, source: str) -> list[Case]:
    """Read a file of cases; raises `ConfigError` naming the entry that is wrong."""
    entries = read_mapping(text, source).get("cases")
    if not isinstance(entries, list):
        raise ConfigError(f"{source}: expected a list `cases`")
    out = []
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict) or "rule" not in entry:
            raise ConfigError(f"{source}: cases[{index}] needs a `rule`")
        for kind in ("fires", "silent"):
            bodies = entry.get(kind, [])
            for number, body in enumerate(bodies if isinstance(bodies, list) else [bodies]):
                name = f"{source}: {entry['rule']} {kind}" + (f" {number + 1}" if number else "")
                out.append(Case(name, entry["rule"], kind == "fires", body))
    return out


def run_case(case: Case, rules: RuleSet) -> list[str]:
    """Play a case through all rules; gives what was not as expected, nothing when it passed."""
    found = [finding for finding in play(case.body, rules) if finding.rule == case.rule]
    if not case.fires:
        return [
            f"{case.name}: expected silence, got {finding.message!r} at step {finding.step}" for finding in found[:1]
        ]
    if not found:
        return [f"{case.name}: expected a finding, got none"]
    seen: dict[str, Any] = {
        "step": found[0].step,
        "onset": found[0].onset_step,
        "ranks": list(found[-1].ranks),
        "subject": found[-1].subject,
        "root": found[-1].root_id.partition(":")[0],
        "message": found[-1].message,
        "finding_id": found[0].finding_id,
    }
    problems = []
    for key, wanted in case.body.get("expect", {}).items():
        if key not in _EXPECTED:
            raise ConfigError(f"{case.name}: expect.{key} is unknown; known are {', '.join(_EXPECTED)}")
        if seen[key] != wanted and not (key == "message" and str(wanted) in seen[key]):
            problems.append(f"{case.name}: expected {key} {wanted!r}, got {seen[key]!r}")
    return problems


def play(body: Mapping[str, Any], rules: RuleSet) -> list[Finding]:
    """Run one body through a new engine; gives all findings in order."""
    engine = Engine(rules, run_id="case")
    engine.configure(body.get("context", {}))
    out: list[Finding] = []
    events = [_event(entry, number) for number, entry in enumerate(body.get("events", []))]
    for frame in frames(body):
        out += engine.frame(frame)
        for event in [event for event in events if event.step == frame.step]:
            out += engine.event(event)
            events.remove(event)
    for event in events:
        out += engine.event(event)
    for entity, series in body.get("samples", {}).items():
        for number, values in enumerate(_rows(series)):
            wall_ns = _START_NS + number * 5_000_000_000
            out += engine.sample(Sample(source="case", entity=entity, wall_ns=wall_ns, values=values))
    for entry in body.get("ticks", []):
        out += engine.tick(_START_NS + round(entry["at"] * 1e9), _states(entry["ranks"]))
    return out


def frames(body: Mapping[str, Any]) -> Iterator[Frame]:
    """Make the frames of a case."""
    ranks = int(body.get("ranks", 1))
    series: Mapping[str, Any] = body.get("series", {})
    rows: list[list[dict[str, float]]] = []
    for rank in range(ranks):
        own = {name: line[rank] if isinstance(line, Mapping) else line for name, line in series.items()}
        rows.append(_rows(own))
    first = int(body.get("first_step", 1))
    for number in range(max((len(row) for row in rows), default=0)):
        step = first + number
        missing = tuple(body.get("missing", {}).get(step, ()))
        yield Frame(
            run_id="case",
            step=step,
            mode=Mode.EVALUATION if body.get("mode") == "evaluation" else Mode.TRAIN,
            wall_ns=_START_NS + round(step * float(body.get("seconds", 1.0)) * 1e9),
            ranks={rank: row[number] for rank, row in enumerate(rows) if number < len(row) and rank not in missing},
            missing=missing,
        )


def values_of(line: Any, seed: str = "") -> list[float | None]:
    """Read one series line; None where it has no value."""
    draw = random.Random(f"{seed} {line}")  # noqa: S311 - a reproducible test series
    out: list[float | None] = []
    for token in str(line).split():
        body, _, count = token.rpartition("x") if "x" in token else (token, "", "1")
        times = int(count)
        if body == "_":
            out += [None] * times
        elif ".." in body:
            start, _, end = body.partition("..")
            a, b = float(start), float(end)
            out += [a + (b - a) * i / max(1, times - 1) for i in range(times)]
        elif "~" in body:
            mean, _, spread = body.partition("~")
            out += [draw.gauss(float(mean), float(spread)) for _ in range(times)]
        else:
            out += [float(body)] * times
    return out


def _rows(series: Mapping[str, Any]) -> list[dict[str, float]]:
    columns = {name: values_of(line, name) for name, line in series.items()}
    length = max((len(column) for column in columns.values()), default=0)
    out: list[dict[str, float]] = []
    for number in range(length):
        row: dict[str, float] = {}
        for name, column in columns.items():
            value = column[0] if len(column) == 1 else (column[number] if number < len(column) else None)
            if value is not None:
                row[name] = value
        out.append(row)
    return out


def _event(entry: Mapping[str, Any], number: int) -> EventRecord:
    return EventRecord(
        run_id="case",
        rank=int(entry.get("rank", 0)),
        sequence=number,
        step=int(entry.get("step", 1)),
        wall_ns=_START_NS + int(entry.get("step", 1)) * 1_000_000_000,
        kind=str(entry["kind"]),
        body=entry.get("body", {}),
    )


def _states(ranks: Mapping[int, Mapping[str, Any]]) -> dict[int, Any]:
    """Heartbeats of a tick: `{0: {step: 4, phase: vote, since: 12.5, liveness: alive, stopped: false}}`."""
    out: dict[int, Any] = {}
    for rank, entry in ranks.items():
        since = _START_NS + round(float(entry.get("since", 0.0)) * 1e9)
        beat = Heartbeat(
            step=int(entry.get("step", 1)),
            phase=Phase[str(entry.get("phase", "forward")).upper().replace("-", "_")],
            phase_since_wall_ns=since,
            updated_wall_ns=since,
        )
        out[rank] = SimpleNamespace(
            heartbeat=beat,
            liveness=Liveness(entry.get("liveness", "alive")),
            stopped=bool(entry.get("stopped", False)),
        )
    return out
