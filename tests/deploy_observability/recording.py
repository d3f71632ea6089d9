"""The recorded run (see record_run.py), shifted in time and written as OpenMetrics for `promtool tsdb create-blocks-from`."""

from __future__ import annotations

import functools
import gzip
import json
from pathlib import Path
from typing import Any

RECORDING = Path(__file__).with_name("recorded_run.json.gz")
SUFFIXES = {"counter": "_total", "info": "_info"}
COPY = ('node="vm"', 'node="other"')  # the same run on a second node, under ranks of its own: a fleet of two


@functools.lru_cache(maxsize=1)
def recorded() -> dict[str, Any]:
    return json.loads(gzip.decompress(RECORDING.read_bytes()))


def recorded_names() -> set[str]:
    return {series.partition("{")[0] for series in recorded()["series"]}


def openmetrics(end_seconds: float) -> tuple[str, float, float]:
    """Give the text, and the times of its first and last sample."""
    data = recorded()
    shift = end_seconds - data["times"][-1]
    times = [at + shift for at in data["times"]]
    by_family: dict[str, list[str]] = {}
    for series, values in data["series"].items():
        name, _, labels = series.partition("{")
        family = _family(name, data["families"])
        if name.endswith("_timestamp_seconds"):
            values = [None if value is None else value + shift for value in values]
        for one in _copies(name, labels):
            rows = (
                f"{one} {_number(value)} {at:.3f}"
                for at, value in zip(times, values, strict=False)
                if value is not None
            )
            by_family.setdefault(family, []).extend(rows)
    out = []
    for family, rows in by_family.items():
        kind, help_text = data["families"][family]
        out += [f"# HELP {family} {help_text}", f"# TYPE {family} {kind}", *rows]
    instances = "\n".join(
        f'up{{job="grpo-sentinel",instance="{node}:9477"}} 1 {at:.3f}' for node in ("vm", "other") for at in times
    )
    return "\n".join([*out, "# TYPE up gauge", instances, "# EOF", ""]), times[0], times[-1]


def _copies(name: str, labels: str) -> list[str]:
    if not labels:
        return [f'{name}{{job="grpo-sentinel",instance="{node}:9477"}}' for node in ("vm", "other")]
    inner = f'job="grpo-sentinel",instance="NODE:9477",{labels}'
    other = (
        inner.replace(*COPY)
        .replace('rank="1"', 'rank="3"')
        .replace('rank="0"', 'rank="2"')
        .replace("GPU-0000000", "GPU-1000000")
    )
    return [f"{name}{{{inner}".replace("NODE", "vm"), f"{name}{{{other}".replace("NODE", "other")]


def _family(name: str, families: dict[str, Any]) -> str:
    if name in families:
        return name
    return next(base for base in (name.removesuffix("_total"), name.removesuffix("_info")) if base in families)


def _number(value: float | str) -> str:
    return (
        {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}.get(value, str(value)) if isinstance(value, str) else repr(value)
    )
