"""Score every stored run, write build/faultbench.json and the tables of docs/faultbench.md."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.faultbench import peers, score
from benchmarks.faultbench.fault import HARD
from benchmarks.faultbench.page import tables
from benchmarks.faultbench.runs import ANOMALY, WATCHED
from benchmarks.faultbench.table import LAYERS, MECHANISMS, twin

BEGIN, END = "<!-- faultbench: begin -->", "<!-- faultbench: end -->"


def write(out: Path, repository: Path, rules_now: str) -> None:
    """Score what is stored and write JSON and table; another `out` keeps its JSON to itself and touches no page."""
    results = {}
    for place in sorted((out / "results").glob("*.json")):
        result = json.loads(place.read_text())
        results[result.get("key", place.stem)] = result
    have = peers.installed()
    rows, by_peer = _faulty(out, results, have)
    calm = _healthy(out, results, have)
    summary = _totals(rows, by_peer, calm)
    body = {
        "rules_now": rules_now,
        "rules_of_seeds": _rules_by_seed(rows),
        "peers": have,
        "totals": summary,
        "by_seed": {
            str(seed): score.totals([r for r in rows if r["seed"] == seed])
            for seed in sorted({r["seed"] for r in rows})
        },
        "by_layer": {layer: score.totals([r for r in rows if r["layer"] == layer]) for layer in LAYERS},
        "by_trainer": {
            kind: score.totals([r for r in rows if r["trainer"] == kind])
            for kind in sorted({r["trainer"] for r in rows})
        },
        "rows": rows,
        "healthy": calm,
    }
    own = out.resolve() != (repository / "build" / "faultbench").resolve()
    place = out / "faultbench.json" if own else repository / "build" / "faultbench.json"
    place.parent.mkdir(exist_ok=True)
    place.write_text(json.dumps(body, indent=1))
    page = repository / "docs" / "faultbench.md"
    if page.is_file() and not own:
        text = page.read_text()
        before, after = text.partition(BEGIN)[0], text.partition(END)[2]
        page.write_text(before + BEGIN + "\n\n" + tables(body) + "\n" + END + after)
    print(json.dumps(summary["sentinel"], indent=1))
    print(f"{place}: {len(rows)} faulty runs, {len(calm)} healthy ones")


def _faulty(
    out: Path, results: Mapping[str, Any], have: Mapping[str, str]
) -> tuple[list[dict[str, Any]], dict[str, list[Any]]]:
    rows = []
    by_peer: dict[str, list[Any]] = defaultdict(list)
    for key, result in results.items():
        mechanism = MECHANISMS.get(result.get("mechanism", ""))
        if mechanism is None or result["mode"] != WATCHED:
            continue
        control_key = f"{twin(mechanism, result['trainer']).name}-{result['trainer']}-s{result['seed']}"
        control = results.get(control_key)
        row = score.judge(mechanism, result, control)
        row["twin"] = control_key if control else None
        row["peers"] = {}
        for name in peers.PEERS:
            scored = _peer(name, out, results, key, result, control_key, control, row, mechanism.roots, have)
            if scored is not None:
                row["peers"][name] = scored
                by_peer[name].append(scored)
        rows.append(row)
    return rows, by_peer


def _peer(
    name: str,
    out: Path,
    results: Mapping[str, Any],
    key: str,
    result: Mapping[str, Any],
    control_key: str,
    control: Any,
    row: Mapping[str, Any],
    roots: Sequence[str],
    have: Mapping[str, str],
) -> dict[str, Any] | None:
    if not have.get(name, "built in"):
        return None
    hard = row["kind"] == HARD
    if name == "detect_anomaly":
        own = results.get(f"{key}-{ANOMALY}")
        if own is None:
            return None
        steps = list(own["anomaly"].values())
        found = [(min(steps), "nan in a backward function", "gradient", "critical")] if steps else []
        scored = peers.score(found, [], row["start"], roots, hard)
        scored["poisoned"] = sum(not finite for finite in own["checkpoints"].values())
        return scored
    found = peers.alerts(name, result, out / "runs" / key)
    usual = peers.alerts(name, control, out / "runs" / control_key) if control else []
    return peers.score(found, usual, row["start"], roots, hard)


def _healthy(out: Path, results: Mapping[str, Any], have: Mapping[str, str]) -> list[dict[str, Any]]:
    calm = []
    for key, result in results.items():
        if key.startswith("synthetic-"):
            counted = Counter()
            for name, count in result["found"].items():
                counted[name.partition(" ")[0]] += count
            calm.append(
                {
                    "source": key,
                    "trainer": "synthetic series",
                    "steps": result["steps"],
                    "rules": result["rules"],
                    "found": result["found"],
                    **{severity: counted[severity] for severity in ("critical", "warning", "note")},
                }
            )
        elif result.get("mechanism", "").startswith(("healthy-", "healthy_twin")) and result["mode"] == WATCHED:
            steps = max(result["last_step"], result["history_step"])
            counted = Counter(f["severity"] for f in result["findings"])
            said = {
                name: Counter(severity for *_, severity in peers.alerts(name, result, out / "runs" / key))
                for name in peers.PEERS[:4]
                if have.get(name, "built in")
            }
            calm.append(
                {
                    "source": key,
                    "trainer": result["trainer"],
                    "steps": steps,
                    "rules": result["rules"],
                    "found": dict(Counter(f"{f['severity']} {f['rule']}" for f in result["findings"])),
                    "peers": {name: sum(counts.values()) for name, counts in said.items()},
                    "peer_severities": {name: dict(counts) for name, counts in said.items()},
                    **{severity: counted[severity] for severity in ("critical", "warning", "note")},
                }
            )
    return calm


def _totals(rows: Sequence[Any], by_peer: Mapping[str, Sequence[Any]], calm: Sequence[Any]) -> dict[str, Any]:
    real = [one for one in calm if one["trainer"] != "synthetic series"]
    made = [one for one in calm if one["trainer"] == "synthetic series"]
    own = score.totals(rows)
    for name, runs in (("", calm), ("real_", real), ("synthetic_", made)):
        own |= {
            f"criticals_per_1000_{name}healthy": _rate(runs, "critical"),
            f"warnings_per_1000_{name}healthy": _rate(runs, "warning"),
            f"notes_per_1000_{name}healthy": _rate(runs, "note"),
        }
    own |= {
        "real_healthy_steps": sum(one["steps"] for one in real),
        "synthetic_healthy_steps": sum(one["steps"] for one in made),
    }
    out = {"sentinel": own}
    for name, scored in by_peer.items():
        hard = [one["hard_within_1_step"] for one in scored if one["hard_within_1_step"] is not None]
        steps = sum(one["steps"] for one in real) if name != "detect_anomaly" else 0  # never run without a fault
        out[name] = {
            "runs": len(scored),
            "detected": _share([one["detected"] for one in scored]),
            "right_layer": _share([one["right_layer"] for one in scored]),
            "hard_within_1_step": _share(hard),
            "poisoned_checkpoints": sum(one["poisoned"] for one in scored) if name == "detect_anomaly" else None,
            "alerts_per_1000_healthy": _per_1000(sum(one["peers"].get(name, 0) for one in real), steps),
            **{
                f"{severity}s_per_1000_healthy": _per_1000(
                    sum(one["peer_severities"].get(name, {}).get(severity, 0) for one in real), steps
                )
                for severity in ("critical", "warning")
            },
        }
    return out


def _rate(runs: Sequence[Any], severity: str) -> float | None:
    steps = sum(one["steps"] for one in runs)
    return round(1000 * sum(one[severity] for one in runs) / steps, 4) if steps else None


def _per_1000(count: int, steps: int) -> float | None:
    return round(1000 * count / steps, 3) if steps else None


def _share(values: Sequence[bool]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None


def _rules_by_seed(rows: Sequence[Any]) -> dict[str, list[str]]:
    out: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        out[str(row["seed"])].add(row["rules"])
    return {seed: sorted(rules) for seed, rules in sorted(out.items())}
