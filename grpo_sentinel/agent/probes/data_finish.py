"""Data layer, on the host: from the numbers of each row to counts, shares and the rows to blame, in Python floats.

A step's micro-batches are read one by one, and each record speaks for all of them so far: a `Tally` keeps their sums
and extremes, so that a micro-batch costs the same however many came before it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from grpo_sentinel.agent.probes.pack import Harvest, Part
from grpo_sentinel.agent.probes.versions import version_rows

Rows = Mapping[str, Sequence[float]]
_BLAMED = 16  # rows that are named per signal
_MASKS = ("prompt_mask", "completion_mask", "attention_mask")
_SUMS = (
    "oov", "nonbinary", "right_padded", "unknown", "ended", "truncated",
    "version_lag", "version_ahead", "version_spans",
)  # fmt: skip
_COUNTS = {
    "sum:oov": "data.out_of_vocabulary",
    "sum:nonbinary": "data.nonbinary_mask",
    "sum:right_padded": "data.right_padded_prompts",
    "min:id": "data.token_id_min",
    "max:id": "data.token_id_max",
    "sum:total": "data.tokens",
    "sum:empty": "data.empty_rows",
    "sum:empty_prompt": "data.empty_prompt_rows",
    "sum:completion": "data.completion_tokens",
    "sum:masked": "data.masked_completions",
    "max:version_lag": "data.version_lag_max",
    "sum:version_ahead": "data.version_ahead",
}
_MERGE: dict[str, Callable[[float, float], float]] = {"sum": operator.add, "min": min, "max": max}


@dataclass(frozen=True, slots=True)
class Meta:
    """How the vector of one micro-batch is laid out, and what the host knew."""

    columns: tuple[str, ...]  # one number per row each
    rows: int
    width: int  # of the completions' ids
    positions: int  # prompt and completion positions, padding included
    limits: dict[str, float]
    facts: dict[str, float]
    subjects: dict[str, str]
    so_far: Tally | None = None


@dataclass(slots=True)
class Tally:
    """Sums and extremes over the micro-batches of one step; its size does not grow with their number."""

    samples: int = 0
    positions: int = 0
    facts: dict[str, float] = field(default_factory=dict)
    subjects: dict[str, str] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)  # "sum:x", "min:x", "max:x"
    blamed: dict[str, list[int]] = field(default_factory=dict)

    def add(self, part: Part) -> None:
        """Add one micro-batch. What one of them does not know is unknown for all."""
        meta: Meta = part.meta
        for name, fact in meta.facts.items():
            self.facts[name] = self.facts.get(name, 0.0) + fact
        self.subjects.update(meta.subjects)
        self.limits = meta.limits
        self.positions += meta.positions
        if not meta.rows:
            return
        flat, size = part.values.tolist(), meta.rows
        rows = {name: flat[i * size : (i + 1) * size] for i, name in enumerate(meta.columns)}
        _derive(rows, meta)
        found = _reduced(rows, meta.limits.get("max_prompt_length"))
        self.numbers = _merged(self.numbers, found) if self.samples else found
        self._blame(rows, found)
        self.samples += size

    def _blame(self, rows: Rows, found: Mapping[str, float]) -> None:
        """Name the first rows behind each count."""
        for signal, column, count in (
            ("data.out_of_vocabulary", "oov", "sum:oov"),
            ("data.right_padded_prompts", "right_padded", "sum:right_padded"),
            ("data.version_ahead", "version_ahead", "sum:version_ahead"),
        ):
            if found.get(count):
                self._name(signal, [row for row, number in enumerate(rows[column]) if number])
        for signal, column, count in (
            ("data.empty_prompt_rows", "prompt_mask", "sum:empty_prompt"),
            ("data.masked_completions", "completion_mask", "sum:masked"),
            ("data.empty_rows", "total", "sum:empty"),
        ):
            if found.get(count):
                self._name(signal, [row for row, length in enumerate(rows[column]) if length == 0])

    def _name(self, signal: str, rows: Sequence[int]) -> None:
        names = self.blamed.setdefault(signal, [])
        names.extend(self.samples + row for row in rows[: _BLAMED - len(names)])

    def harvest(self) -> Harvest:
        """Turn what was added into signals; see the catalogue for each one's meaning."""
        values = dict(self.facts)
        values["data.samples"] = float(self.samples)
        dropped = values.get("data.stale_dropped")
        if dropped is not None and dropped + self.samples > 0:
            values["data.stale_dropped_ratio"] = dropped / (dropped + self.samples)
        values.update(
            {f"data.{name}": self.limits[name] for name in ("vocab_size", "group_size") if name in self.limits}
        )
        if self.samples:
            values.update(_counts(self.numbers, self.samples))
            values.update(_lengths(self.numbers, self.samples))
            values.update(_shares(self.numbers, self.samples, self.positions))
        samples = {signal: tuple(rows) for signal, rows in self.blamed.items()}
        return Harvest(values, samples=samples, subjects=dict(self.subjects))


def finish(parts: Sequence[Part]) -> Harvest:
    """Add the micro-batches to the step's tally (a new one without it) and give the signals of all."""
    tally = parts[-1].meta.so_far or Tally()
    for part in parts:
        tally.add(part)
    return tally.harvest()


def _derive(rows: dict[str, list[float]], meta: Meta) -> None:
    """Make the columns that follow from others."""
    prompt, completion, whole = rows.get("prompt_mask"), rows.get("completion_mask"), rows.get("attention_mask")
    if whole is not None:
        rows["total"] = whole
        if prompt is None and completion is not None:
            rows["prompt"] = [a - c for a, c in zip(whole, completion, strict=True)]
    elif prompt is not None and completion is not None:
        rows["total"] = [p + c for p, c in zip(prompt, completion, strict=True)]
    if prompt is not None:
        rows["prompt"] = prompt
        if "prompt_last" in rows:
            last = rows["prompt_last"]
            rows["right_padded"] = [float(n > 0 and not end) for n, end in zip(prompt, last, strict=True)]
    if any(name in rows for name in _MASKS):
        rows.setdefault("nonbinary", [])  # masks of bool have no other values
    if "version_old" in rows:
        versions = rows["version_old"], rows["version_new"], rows["version_count"]
        rows.update(version_rows(*versions, meta.limits["weight_version"]))
    limit = meta.limits.get("max_completion_length")
    if limit is not None and completion is not None and "ended" in rows:
        rows["truncated"] = _truncated(rows, meta, limit)


def _truncated(rows: Rows, meta: Meta, limit: float) -> list[float]:
    """Mark completions that reached the limit without an end.

    One that the trainer masked out whole for it counts as truncated as well, by its ids.
    """
    lengths, ended = rows["completion_mask"], rows["ended"]
    if not limit or meta.width < limit:
        return [float(n >= limit and not end) for n, end in zip(lengths, ended, strict=True)]
    pad = meta.limits.get("pad_id")
    anywhere, last = rows["end_anywhere"], rows["last_id"]
    return [
        float(not end and (n >= limit or (n == 0 and not any_end and (pad is None or one != pad))))
        for n, end, any_end, one in zip(lengths, ended, anywhere, last, strict=True)
    ]


def _reduced(rows: Rows, max_prompt_length: float | None) -> dict[str, float]:
    """Reduce one micro-batch to sums and extremes."""
    out = {f"sum:{name}": float(sum(rows[name])) for name in _SUMS if name in rows}
    if "id_min" in rows:
        out["min:id"], out["max:id"] = min(rows["id_min"]), max(rows["id_max"])
    if (total := rows.get("total")) is not None:
        out.update({"sum:total": float(sum(total)), "min:total": min(total), "max:total": max(total)})
        out["sum:empty"] = float(total.count(0))
    if (prompt := rows.get("prompt")) is not None:
        out.update({"sum:prompt": sum(prompt), "max:prompt": max(prompt)})
        if max_prompt_length:
            out["sum:prompt_clipped"] = float(sum(length >= max_prompt_length for length in prompt))
    if "version_lag" in rows:
        out["max:version_lag"] = max(rows["version_lag"])
    if "prompt_mask" in rows:
        out["sum:empty_prompt"] = float(rows["prompt_mask"].count(0))
    if (completion := rows.get("completion_mask")) is not None:
        out.update({"sum:completion": float(sum(completion)), "min:completion": min(completion)})
        out.update({"max:completion": max(completion), "sum:masked": float(completion.count(0))})
    return out


def _merged(before: Mapping[str, float], new: Mapping[str, float]) -> dict[str, float]:
    return {name: _MERGE[name[:3]](number, new[name]) for name, number in before.items() if name in new}


def _counts(numbers: Mapping[str, float], samples: int) -> dict[str, float]:
    out = {signal: numbers[name] for name, signal in _COUNTS.items() if name in numbers}
    if "sum:total" in numbers:
        mean = numbers["sum:total"] / samples
        out["data.sequence_length_imbalance"] = (numbers["max:total"] - numbers["min:total"]) / max(1.0, mean)
    return out


def _lengths(numbers: Mapping[str, float], samples: int) -> dict[str, float]:
    out = {}
    if "sum:prompt" in numbers:
        out["data.prompt_length_mean"] = numbers["sum:prompt"] / samples
        out["data.prompt_length_max"] = numbers["max:prompt"]
    if "sum:prompt_clipped" in numbers:
        out["data.prompt_clip_ratio"] = numbers["sum:prompt_clipped"] / samples
    if "sum:completion" in numbers:
        out["data.completion_length_mean"] = numbers["sum:completion"] / samples
        out["data.completion_length_min"] = numbers["min:completion"]
        out["data.completion_length_max"] = numbers["max:completion"]
    return out


def _shares(numbers: Mapping[str, float], samples: int, positions: int) -> dict[str, float]:
    out = {}
    tokens = numbers.get("sum:total")
    if tokens is not None and positions:
        out["data.pad_ratio"] = max(0.0, 1.0 - tokens / positions)
    if tokens and "sum:unknown" in numbers:
        out["data.unk_ratio"] = numbers["sum:unknown"] / tokens
    for name, signal in (
        ("sum:masked", "data.masked_completion_ratio"),
        ("sum:ended", "data.eos_ratio"),
        ("sum:truncated", "data.truncated_ratio"),
        ("sum:version_lag", "data.version_lag_mean"),
        ("sum:version_spans", "data.version_spans_ratio"),
    ):
        if name in numbers:
            out[signal] = numbers[name] / samples
    return out
