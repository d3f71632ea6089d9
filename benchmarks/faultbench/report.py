"""Score every stored run, write build/faultbench.json and the tables of docs/faultbench.md."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.faultbench import healthy, peers, score
from benchmarks.faultbench.fault import HARD, LOOP1, LOOP2
from benchmarks.faultbench.runs import ANOMALY, WATCHED
from benchmarks.faultbench.table import LAYERS, MECHANISMS, twin

BEGIN, END = "<!-- faultbench: begin -->", "<!-- faultbench: end -->"


def write(out: Path, repository: Path, rules_now: str) -> None:
    """Score what is stored and write JSON and table."""
    results = {}
    for place in sorted((out / "results").glob("*.json")):
        result = json.loads(place.read_text())
        results[result.get("key", place.stem)] = result
    have = peers.installed()
    rows, by_peer = _faulty(out, results, have)
    calm = _healthy(out, results, have)
    summary = _totals(rows, by_peer, calm)
    body = {
        "rules_now": rules_now, "rules_of_seeds": _rules_by_seed(rows), "peers": have, "totals": summary,
        "by_seed": {str(seed): score.totals([r for r in rows if r["seed"] == seed]) for seed in sorted({r["seed"] for r in rows})},
        "by_layer": {layer: score.totals([r for r in rows if r["layer"] == layer]) for layer in LAYERS},
        "by_trainer": {kind: score.totals([r for r in rows if r["trainer"] == kind]) for kind in sorted({r["trainer"] for r in rows})},
        "rows": rows, "healthy": calm,
    }  # fmt: skip
    place = repository / "build" / "faultbench.json"
    place.parent.mkdir(exist_ok=True)
    place.write_text(json.dumps(body, indent=1))
    page = repository / "docs" / "faultbench.md"
    if page.is_file():
        text = page.read_text()
        before, after = text.partition(BEGIN)[0], text.partition(END)[2]
        page.write_text(before + BEGIN + "\n\n" + tables(body) + "\n" + END + after)
    print(json.dumps(summary["sentinel"], indent=1))
    print(f"{place}: {len(rows)} faulty runs, {len(calm)} healthy ones")


def _faulty(out: Path, results: Mapping[str, Any], have: Mapping[str, str]) -> tuple[list[dict[str, Any]], dict[str, list[Any]]]:
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
    name: str, out: Path, results: Mapping[str, Any], key: str, result: Mapping[str, Any], control_key: str, control: Any,
    row: Mapping[str, Any], roots: Sequence[str], have: Mapping[str, str],
) -> dict[str, Any] | None:  # fmt: skip
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
            calm.append({
                "source": key, "trainer": "synthetic series", "steps": result["steps"], "rules": result["rules"], "found": result["found"],
                **{severity: counted[severity] for severity in ("critical", "warning", "note")},
            })  # fmt: skip
        elif result.get("mechanism", "").startswith(("healthy-", "healthy_twin")) and result["mode"] == WATCHED:
            steps = max(result["last_step"], result["history_step"])
            counted = Counter(f["severity"] for f in result["findings"])
            own = {
                name: len(peers.alerts(name, result, out / "runs" / key))
                for name in peers.PEERS[:4] if have.get(name, "built in")
            }  # fmt: skip
            calm.append({
                "source": key, "trainer": result["trainer"], "steps": steps, "rules": result["rules"],
                "found": dict(Counter(f"{f['severity']} {f['rule']}" for f in result["findings"])), "peers": own,
                **{severity: counted[severity] for severity in ("critical", "warning", "note")},
            })  # fmt: skip
    return calm


def _totals(rows: Sequence[Any], by_peer: Mapping[str, Sequence[Any]], calm: Sequence[Any]) -> dict[str, Any]:
    real = [one for one in calm if one["trainer"] != "synthetic series"]
    made = [one for one in calm if one["trainer"] == "synthetic series"]
    own = score.totals(rows)
    for name, runs in (("", calm), ("real_", real), ("synthetic_", made)):
        own |= {f"criticals_per_1000_{name}healthy": _rate(runs, "critical"), f"warnings_per_1000_{name}healthy": _rate(runs, "warning"),
                f"notes_per_1000_{name}healthy": _rate(runs, "note")}  # fmt: skip
    own |= {"real_healthy_steps": sum(one["steps"] for one in real), "synthetic_healthy_steps": sum(one["steps"] for one in made)}
    out = {"sentinel": own}
    for name, scored in by_peer.items():
        hard = [one["hard_within_1_step"] for one in scored if one["hard_within_1_step"] is not None]
        steps = sum(one["steps"] for one in real)
        out[name] = {
            "runs": len(scored), "detected": _share([one["detected"] for one in scored]), "right_layer": _share([one["right_layer"] for one in scored]),
            "hard_within_1_step": _share(hard),
            "poisoned_checkpoints": sum(one["poisoned"] for one in scored) if name == "detect_anomaly" else None,
            "alerts_per_1000_healthy": round(1000 * sum(one["peers"].get(name, 0) for one in real) / steps, 3)
            if steps and name != "detect_anomaly" else None,
        }  # fmt: skip
    return out


def _rate(runs: Sequence[Any], severity: str) -> float | None:
    steps = sum(one["steps"] for one in runs)
    return round(1000 * sum(one[severity] for one in runs) / steps, 4) if steps else None


def _share(values: Sequence[bool]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None


def _rules_by_seed(rows: Sequence[Any]) -> dict[str, list[str]]:
    out: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        out[str(row["seed"])].add(row["rules"])
    return {seed: sorted(rules) for seed, rules in sorted(out.items())}


# ---- the page


def tables(body: Mapping[str, Any]) -> str:
    """Write the tables of docs/faultbench.md."""
    parts = [_peers_table(body), _split_table("layer of the fault", body["by_layer"]), _split_table("trainer", body["by_trainer"]),
             _split_table("seed", body["by_seed"]), _healthy_table(body["healthy"]), _missed(body["rows"]), _mechanisms(body["rows"])]  # fmt: skip
    rules = "; ".join(f"seed {seed}: {', '.join(names)}" for seed, names in body["rules_of_seeds"].items())
    return "\n".join(parts) + f"\nRules in use (commit of the rules + digest of their files): {rules}.\n"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _peers_table(body: Mapping[str, Any]) -> str:
    lines = ["## In one table", "", "| | runs | detected | right layer | hard within 1 step | poisoned checkpoints | alerts per 1,000 real healthy steps |",
             "| --- | --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    for name, total in body["totals"].items():
        if name == "sentinel":
            healthy_rate = f"{total['criticals_per_1000_real_healthy']} critical, {total['warnings_per_1000_real_healthy']} warning"
        else:
            healthy_rate = "-" if total["alerts_per_1000_healthy"] is None else str(total["alerts_per_1000_healthy"])
        poisoned = total["poisoned_checkpoints"]
        version = body["peers"].get(name, "")
        lines.append(f"| {name.replace('sentinel', 'grpo-sentinel')} {version} | {total['runs']} | {_percent(total['detected'])} | {_percent(total['right_layer'])} | "
                     f"{_percent(total['hard_within_1_step'])} | {'-' if poisoned is None else poisoned} | {healthy_rate} |")  # fmt: skip
    return "\n".join(lines) + "\n"


def _split_table(title: str, split: Mapping[str, Any]) -> str:
    lines = [f"| {title} | runs | detected | right layer | right rank | hard within 1 step | median delay | poisoned checkpoints |",
             "| --- | --- | --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    for name, total in split.items():
        lines.append(f"| {name} | {total['runs']} | {_percent(total['detected'])} | {_percent(total['right_layer'])} | {_percent(total['right_rank'])} | "
                     f"{_percent(total['hard_within_1_step'])} | {total['median_delay_steps']} | {total['poisoned_checkpoints']} of {total['checkpoints']} |")  # fmt: skip
    return "\n".join(lines) + "\n"


def _healthy_table(calm: Sequence[Any]) -> str:
    lines = ["## Healthy runs", "", "| source | trainer | steps | critical | warning | note | rules that fired | rlwatch | rldoctor |",
             "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    shown = [one for one in calm if not one["source"].startswith("healthy_twin")]
    twins = [one for one in calm if one["source"].startswith("healthy_twin")]
    if twins:
        found: Counter[str] = Counter()
        for one in twins:
            found.update(one["found"])
        shown.append({"source": f"{len(twins)} healthy twins of the faulty runs", "trainer": "all", "steps": sum(t["steps"] for t in twins), "found": found,
                      **{s: sum(t[s] for t in twins) for s in ("critical", "warning", "note")},
                      "peers": {p: sum(t["peers"].get(p, 0) for t in twins) for p in ("rlwatch", "rldoctor")}})  # fmt: skip
    for one in shown:
        fired = ", ".join(f"{name.partition(' ')[2]} ({count})" for name, count in sorted(one["found"].items()))
        own = one.get("peers", {})
        lines.append(f"| {one['source'].removeprefix('healthy-').removesuffix('-s7')} | {one['trainer']} | {one['steps']} | {one['critical']} | {one['warning']} | {one['note']} | "
                     f"{fired or '-'} | {own.get('rlwatch', '-')} | {own.get('rldoctor', '-')} |")  # fmt: skip
    return "\n".join(lines) + "\n"


def _missed(rows: Sequence[Any]) -> str:
    lines = ["## Not as wanted", ""]
    for row in rows:
        where = f"`{row['mechanism']}` ({row['trainer']}, seed {row['seed']})"
        if not row["detected"]:
            lines.append(f"- {where}: missed.")
        elif not row["right_layer"]:
            lines.append(f"- {where}: root is {row['root_layer']} (`{row['root_rule']}`), wanted {' or '.join(row['expected_layers'])}.")
        elif row["right_rank"] is False:
            lines.append(f"- {where}: names rank {row['root_ranks']}, wanted {row['rank']}.")
        elif row["hard_within_1_step"] is False:
            lines.append(f"- {where}: hard, but {row['delay']} steps late.")
        if row["poisoned"]:
            lines.append(f"- {where}: {len(row['poisoned'])} of {row['checkpoints']} checkpoints hold a non-finite weight.")
    return "\n".join(lines if len(lines) > 2 else [*lines, "Nothing."]) + "\n"


def _mechanisms(rows: Sequence[Any]) -> str:
    lines = ["## Every mechanism", ""]
    for layer in LAYERS:
        lines += [f"### {layer.capitalize()}", "", "| mechanism | what is done | kind | trainers | detected | delay (steps) | root | right layer | right rank | rlwatch | rldoctor | log |",
                  "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"]  # fmt: skip
        grouped: dict[str, list[Any]] = defaultdict(list)
        for row in rows:
            if row["layer"] == layer:
                grouped[row["mechanism"]].append(row)
        for name in [name for name in MECHANISMS if name in grouped]:
            mine = grouped[name]
            delays = sorted({row["delay"] for row in mine if row["delay"] is not None})
            span = "-" if not delays else str(delays[0]) if len(delays) == 1 else f"{delays[0]} to {delays[-1]}"
            roots = Counter(str(row["root_rule"]) for row in mine if row["root_rule"]).most_common(2)
            ranked = [row["right_rank"] for row in mine if row["rank"] is not None]
            kind = mine[0]["kind"] + (", slow" if mine[0]["slow"] else "")
            seen = [_of([row["peers"][p]["detected"] for row in mine if p in row["peers"]]) for p in ("rlwatch", "rldoctor", "trl_log")]
            lines.append(f"| {name} | {mine[0]['what']} | {kind} | {', '.join(sorted({row['trainer'] for row in mine}))} | {_of([r['detected'] for r in mine])} | {span} | "
                         f"{', '.join(rule for rule, _ in roots) or '-'} | {_of([r['right_layer'] for r in mine])} | {_of([bool(r) for r in ranked])} | {' | '.join(seen)} |")  # fmt: skip
        lines.append("")
    return "\n".join(lines)


def _of(values: Sequence[bool]) -> str:
    return f"{sum(values)}/{len(values)}" if values else "-"


__all__ = ["LOOP1", "LOOP2", "healthy", "tables", "write"]
