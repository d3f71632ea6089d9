"""The tables of docs/faultbench.md, from the body of build/faultbench.json."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.faultbench.table import LAYERS, MECHANISMS

_SPLIT = ("runs", "detected", "right layer", "right rank", "hard within 1 step", "median delay", "poisoned checkpoints")
_PEER = ("", "runs", "detected", "right layer", "hard within 1 step", "poisoned checkpoints",
         "alerts per 1,000 real healthy steps")  # fmt: skip
_CALM = ("source", "trainer", "steps", "critical", "warning", "note", "rules that fired", "rlwatch", "rldoctor")
_EVERY = ("mechanism", "what is done", "kind", "trainers", "detected", "delay (steps)", "root", "right layer",
          "right rank", "rlwatch", "rldoctor", "log")  # fmt: skip


def tables(body: Mapping[str, Any]) -> str:
    """Write all tables."""
    used = {f"seed {seed}": names for seed, names in body["rules_of_seeds"].items()}
    used["healthy runs"] = sorted({one["rules"] for one in body["healthy"]})
    rules = "; ".join(f"{which}: {', '.join(names)}" for which, names in used.items())
    parts = [
        _peers(body),
        _split("layer of the fault", body["by_layer"]),
        _split("trainer", body["by_trainer"]),
        _split("seed", body["by_seed"]),
        _healthy(body["healthy"]),
        _missed(body["rows"]),
        *(_mechanisms(layer, body["rows"]) for layer in LAYERS),
        f"Rules in use (commit of the rules, digest of their files): {rules}.\n",
    ]
    return "\n".join(parts)


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> str:
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |"]
    lines += [f"| {' | '.join(str(cell) for cell in row)} |" for row in rows]
    return (f"{title}\n\n" if title else "") + "\n".join(lines) + "\n"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _or_dash(value: Any) -> Any:
    return "-" if value is None else value


def _peers(body: Mapping[str, Any]) -> str:
    rows = []
    for name, total in body["totals"].items():
        alerts = _or_dash(total.get("alerts_per_1000_healthy"))
        if name == "sentinel":
            critical, warning = total["criticals_per_1000_real_healthy"], total["warnings_per_1000_real_healthy"]
            alerts = f"{critical} critical, {warning} warning"
        shown = f"{name.replace('sentinel', 'grpo-sentinel')} {body['peers'].get(name, '')}".strip()
        shares = [_percent(total[key]) for key in ("detected", "right_layer", "hard_within_1_step")]
        rows.append([shown, total["runs"], *shares, _or_dash(total["poisoned_checkpoints"]), alerts])
    return _table(_PEER, rows, "## In one table")


def _split(title: str, split: Mapping[str, Any]) -> str:
    rows = []
    for name, total in split.items():
        shares = [_percent(total[key]) for key in ("detected", "right_layer", "right_rank", "hard_within_1_step")]
        poisoned = f"{total['poisoned_checkpoints']} of {total['checkpoints']}"
        rows.append([name, total["runs"], *shares, _or_dash(total["median_delay_steps"]), poisoned])
    return _table((title, *_SPLIT), rows)


def _healthy(calm: Sequence[Any]) -> str:
    shown = [one for one in calm if not one["source"].startswith("healthy_twin")]
    twins = [one for one in calm if one["source"].startswith("healthy_twin")]
    if twins:
        found: Counter[str] = Counter()
        for one in twins:
            found.update(one["found"])
        counts = {kind: sum(one[kind] for one in twins) for kind in ("critical", "warning", "note", "steps")}
        own = {name: sum(one["peers"].get(name, 0) for one in twins) for name in ("rlwatch", "rldoctor")}
        source = f"{len(twins)} healthy twins of the faulty runs"
        shown.append({"source": source, "trainer": "all", "found": found, "peers": own, **counts})
    rows = []
    for one in shown:
        fired = ", ".join(f"{name.partition(' ')[2]} ({count})" for name, count in sorted(one["found"].items()))
        own = one.get("peers", {})
        name = one["source"].removeprefix("healthy-").removesuffix("-s7")
        counts = [one[kind] for kind in ("steps", "critical", "warning", "note")]
        peers = [own.get(peer, "-") for peer in ("rlwatch", "rldoctor")]
        rows.append([name, one["trainer"], *counts, fired or "-", *peers])
    return _table(_CALM, rows, "## Healthy runs")


def _missed(rows: Sequence[Any]) -> str:
    lines = []
    for row in rows:
        where = f"`{row['mechanism']}` ({row['trainer']}, seed {row['seed']})"
        wanted = " or ".join(row["expected_layers"])
        if not row["detected"]:
            lines.append(f"- {where}: missed.")
        elif not row["right_layer"]:
            lines.append(f"- {where}: root is {row['root_layer']} (`{row['root_rule']}`), wanted {wanted}.")
        elif row["right_rank"] is False:
            lines.append(f"- {where}: names rank {row['root_ranks'] or 'not known'}, wanted {row['rank']}.")
        elif row["hard_within_1_step"] is False:
            lines.append(f"- {where}: hard, but {row['delay']} steps late.")
        if row["poisoned"]:
            lines.append(f"- {where}: {len(row['poisoned'])} of {row['checkpoints']} checkpoints are poisoned.")
    return "## Not as wanted\n\n" + "\n".join(lines or ["Nothing."]) + "\n"


def _mechanisms(layer: str, rows: Sequence[Any]) -> str:
    grouped: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        if row["layer"] == layer:
            grouped[row["mechanism"]].append(row)
    out = [_mechanism(name, grouped[name]) for name in MECHANISMS if name in grouped]
    return _table(_EVERY, out, f"## Every mechanism: {layer}")


def _mechanism(name: str, mine: Sequence[Any]) -> list[Any]:
    delays = sorted({row["delay"] for row in mine if row["delay"] is not None})
    span = "-" if not delays else str(delays[0]) if len(delays) == 1 else f"{delays[0]} to {delays[-1]}"
    roots = Counter(row["root_rule"] for row in mine if row["root_rule"]).most_common(2)
    ranked = [bool(row["right_rank"]) for row in mine if row["rank"] is not None]
    kind = mine[0]["kind"] + (", slow" if mine[0]["slow"] else "")
    trainers = ", ".join(sorted({row["trainer"] for row in mine}))
    seen = [
        _of([row["peers"][peer]["detected"] for row in mine if peer in row["peers"]])
        for peer in ("rlwatch", "rldoctor", "trl_log")
    ]
    named = ", ".join(rule for rule, _ in roots) or "-"
    right = _of([row["right_layer"] for row in mine])
    found = _of([row["detected"] for row in mine])
    return [name, mine[0]["what"], kind, trainers, found, span, named, right, _of(ranked), *seen]


def _of(values: Sequence[bool]) -> str:
    return f"{sum(values)}/{len(values)}" if values else "-"
