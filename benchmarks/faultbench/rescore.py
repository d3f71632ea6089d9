"""Judge stored runs again: their records, which the bench's histories keep, through the rules as they are now.

Replaying gives what the daemon said of the same records. Two things it cannot give: what heartbeats told (rules of
scope `tick`), which is kept as it was told live, and a run that goes on where today's rules would not have halted it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_sentinel.cli.replaying import sources_of
from grpo_sentinel.history.sources import Item, Progress
from grpo_sentinel.records import EventRecord, Finding, Frame
from grpo_sentinel.rules import Engine, RuleSet, load_rules


def described(finding: Finding, first: Finding) -> dict[str, Any]:
    """What a result keeps of a finding; `first` is the version in which it was told first."""
    value = finding.value
    return {
        "rule": finding.rule,
        "layer": finding.layer,
        "severity": finding.severity.name.lower(),
        "step": first.step,
        "onset": finding.onset_step,
        "ranks": list(finding.ranks),
        "id": finding.finding_id,
        "root": finding.root_id,
        "message": finding.message[:200],
        "wall_ns": first.wall_ns,
        "signal": finding.signal,
        "value": None if value is None or value - value != 0 else value,
    }


def histories(out: Path) -> dict[str, Path]:
    """Which history holds which run."""
    found = {}
    for place in sorted(out.glob("state/*/history.sqlite")):
        database = sqlite3.connect(f"file:{place}?mode=ro", uri=True)
        try:
            found.update(dict.fromkeys((run for (run,) in database.execute("SELECT run_id FROM runs")), place))
        except sqlite3.Error:
            continue
        finally:
            database.close()
    return found


def replayed(result: Mapping[str, Any], history: Path, rules: RuleSet) -> list[dict[str, Any]]:
    """Findings of one stored run under `rules`."""
    (source,) = sources_of([str(history)], str(result["run_id"]))
    engine = Engine(rules, run_id=source.run_id)
    engine.configure(source.context)
    first: dict[str, Finding] = {}
    newest: dict[str, Finding] = {}
    for item in source.items(Progress()):
        for finding in _judged(engine, item):
            first.setdefault(finding.finding_id, finding)
            newest[finding.finding_id] = finding
    live = {rule.name for rule in rules if rule.scope == "tick"}
    kept = [finding for finding in result["findings"] if finding["rule"] in live]
    return kept + [described(finding, first[name]) for name, finding in newest.items()]


def _judged(engine: Engine, item: Item) -> Sequence[Finding]:
    if isinstance(item, Frame):
        return engine.frame(item)
    return engine.event(item) if isinstance(item, EventRecord) else engine.sample(item)


def rescore(out: Path, names: Sequence[str], in_use: str, tell: Callable[[str], None]) -> int:
    """Rewrite the findings of the results whose key begins with one of `names`; tells how many were found."""
    places, rules, done = histories(out), load_rules(), 0
    for place, result in _chosen(out, names):
        history = places.get(result["run_id"])
        if history is None:
            tell(f"{result['key']}: no records are kept")
            continue
        result["findings"] = replayed(result, history, rules)
        result["rules"] = in_use
        place.write_text(json.dumps(result, indent=1))
        done += 1
        tell(f"{result['key']}: {', '.join(f['rule'] for f in result['findings'][:4]) or 'nothing'}")
    return done


def _chosen(out: Path, names: Sequence[str]) -> Iterator[tuple[Path, dict[str, Any]]]:
    for place in sorted((out / "results").glob("*.json")):
        result = json.loads(place.read_text())
        if result.get("mode") == "watched" and result["key"].startswith(tuple(names)):
            yield place, result
