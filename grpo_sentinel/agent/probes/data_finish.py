"""Data layer, on the host: from the numbers of each row to counts, shares and the rows to blame, in Python floats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grpo_sentinel.agent.probes.pack import Harvest, Part

Rows = Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class Meta:
    """How the vector of one micro-batch is laid out, and what the host knew."""

    columns: tuple[str, ...]  # one number per row each
    rows: int
    positions: int  # prompt and completion positions, padding included
    limits: dict[str, float]
    facts: dict[str, float]
    subjects: dict[str, str]


def finish(parts: Sequence[Part]) -> Harvest:
    """Join the micro-batches' rows and turn them into signals; see the catalogue for each one's meaning."""
    values: dict[str, float] = {}
    subjects: dict[str, str] = {}
    for part in parts:
        for name, fact in part.meta.facts.items():
            values[name] = values.get(name, 0.0) + fact
        subjects.update(part.meta.subjects)
    rows = _joined([part for part in parts if part.meta.rows])
    limits = parts[-1].meta.limits
    values["data.samples"] = float(sum(part.meta.rows for part in parts))
    values.update({f"data.{name}": limits[name] for name in ("vocab_size", "group_size") if name in limits})
    if values["data.samples"]:
        values.update(_counts(rows))
        values.update(_lengths(rows, limits.get("max_prompt_length")))
        values.update(_shares(rows, values, sum(part.meta.positions for part in parts)))
    return Harvest(values, samples=_blamed(rows), subjects=subjects)


def _joined(parts: Sequence[Part]) -> dict[str, list[float]]:
    """Put the rows of all micro-batches one after the other; a column that one of them lacks is unknown."""
    if not parts:
        return {}
    cut = []
    for part in parts:
        numbers, size = part.values.tolist(), part.meta.rows
        cut.append({name: numbers[i * size : (i + 1) * size] for i, name in enumerate(part.meta.columns)})
    shared = [name for name in cut[0] if all(name in columns for columns in cut)]
    return {name: [number for columns in cut for number in columns[name]] for name in shared}


def _counts(rows: Rows) -> dict[str, float]:
    totals = {"oov": "out_of_vocabulary", "nonbinary": "nonbinary_mask", "right_padded": "right_padded_prompts"}
    out = {f"data.{signal}": float(sum(rows[name])) for name, signal in totals.items() if name in rows}
    if "id_min" in rows:
        out["data.token_id_min"] = min(rows["id_min"])
        out["data.token_id_max"] = max(rows["id_max"])
    if (total := _total(rows)) is not None:
        out["data.tokens"] = float(sum(total))
        out["data.empty_rows"] = float(total.count(0))
        out["data.sequence_length_imbalance"] = (max(total) - min(total)) / max(1.0, sum(total) / len(total))
    if "prompt_mask" in rows:
        out["data.empty_prompt_rows"] = float(rows["prompt_mask"].count(0))
    if "completion_mask" in rows:
        out["data.completion_tokens"] = float(sum(rows["completion_mask"]))
        out["data.masked_completions"] = float(rows["completion_mask"].count(0))
    return out


def _lengths(rows: Rows, max_prompt_length: float | None) -> dict[str, float]:
    out = {}
    if (prompt := _prompt(rows)) is not None:
        out["data.prompt_length_mean"] = sum(prompt) / len(prompt)
        out["data.prompt_length_max"] = max(prompt)
        if max_prompt_length:
            out["data.prompt_clip_ratio"] = sum(length >= max_prompt_length for length in prompt) / len(prompt)
    if "completion_mask" in rows:
        completion = rows["completion_mask"]
        out["data.completion_length_mean"] = sum(completion) / len(completion)
        out["data.completion_length_min"] = min(completion)
        out["data.completion_length_max"] = max(completion)
    return out


def _shares(rows: Rows, counts: Mapping[str, float], positions: int) -> dict[str, float]:
    out = {}
    samples, tokens = counts["data.samples"], counts.get("data.tokens")
    if tokens is not None and positions:
        out["data.pad_ratio"] = max(0.0, 1.0 - tokens / positions)
    if tokens and "unknown" in rows:
        out["data.unk_ratio"] = sum(rows["unknown"]) / tokens
    if "data.masked_completions" in counts:
        out["data.masked_completion_ratio"] = counts["data.masked_completions"] / samples
    for name, signal in (("ended", "data.eos_ratio"), ("truncated", "data.truncated_ratio")):
        if name in rows:
            out[signal] = sum(rows[name]) / samples
    return out


def _total(rows: Rows) -> Sequence[float] | None:
    if "attention_mask" in rows:
        return rows["attention_mask"]
    if "prompt_mask" in rows and "completion_mask" in rows:
        return [p + c for p, c in zip(rows["prompt_mask"], rows["completion_mask"], strict=True)]
    return None


def _prompt(rows: Rows) -> Sequence[float] | None:
    if "prompt_mask" in rows or "attention_mask" not in rows or "completion_mask" not in rows:
        return rows.get("prompt_mask")
    return [a - c for a, c in zip(rows["attention_mask"], rows["completion_mask"], strict=True)]


def _blamed(rows: Rows, limit: int = 16) -> dict[str, tuple[int, ...]]:
    """List the first rows behind each count."""
    wrong: dict[str, list[int]] = {}
    for name, signal in (("oov", "data.out_of_vocabulary"), ("right_padded", "data.right_padded_prompts")):
        wrong[signal] = [row for row, number in enumerate(rows.get(name, ())) if number]
    empty = {"data.empty_prompt_rows": rows.get("prompt_mask"), "data.masked_completions": rows.get("completion_mask")}
    for signal, lengths in {**empty, "data.empty_rows": _total(rows)}.items():
        wrong[signal] = [row for row, length in enumerate(lengths or ()) if length == 0]
    return {signal: tuple(found[:limit]) for signal, found in wrong.items() if found}
