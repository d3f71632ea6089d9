"""`check data`: read every row once, judge it, report totals, counts and first examples (S1-S6).

Memory is bounded: one row at a time (a batch of them with a tokenizer), hashes of at most `MOST_REMEMBERED` rows, and
histograms of lengths.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.data_checks import (
    MOST_REMEMBERED,
    Judge,
    Judged,
    Limits,
    judge_rewards,
    prompt_hash,
    shown,
)
from grpo_sentinel.preflight.data_clean import CleanCopy
from grpo_sentinel.preflight.data_faults import KINDS, Tally
from grpo_sentinel.preflight.data_lengths import Lengths
from grpo_sentinel.preflight.data_shapes import Fields, joined, lookup, recognise, texts_of
from grpo_sentinel.preflight.data_sources import Row, expand, read_rows
from grpo_sentinel.preflight.data_tokens import Encoder
from grpo_sentinel.preflight.report import CheckReport, gravest_first
from grpo_sentinel.stats import Moments

_FIRST_ROWS = 64  # looked at to recognise the shape
_BATCH = 256

Progress = Callable[[str, int, int], None]
"""Told the file, the bytes of it that were read, and the rows of all files so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOptions:
    """What the caller asks for besides the files."""

    fields: Fields = field(default_factory=Fields)
    limits: Limits = field(default_factory=Limits)
    evaluation: tuple[str, ...] = ()
    tokenizer: Path | None = None
    write_clean: Path | None = None


def check_data(
    files: Iterable[str], options: DataOptions | None = None, progress: Progress | None = None
) -> CheckReport:
    """Check all rows of all files. Raises `SentinelError` when nothing can be read or no prompt is recognised."""
    options = options or DataOptions()
    sources = expand(list(files))
    encoder = Encoder(options.tokenizer) if options.tokenizer else None
    evaluation = (
        frozenset(_evaluation(expand(options.evaluation), options.fields)) if options.evaluation else frozenset()
    )
    check = _DataCheck(options, encoder, evaluation, progress)
    began = time.monotonic()
    if options.write_clean is None:
        check.read(sources, None)
    else:
        with CleanCopy(options.write_clean, (*sources, *options.evaluation)) as copy:
            check.read(sources, copy)
    return check.report(sources, time.monotonic() - began, len(evaluation))


def _evaluation(sources: Iterable[str], given: Fields) -> Iterator[int]:
    for source in sources:
        rows, fields = _recognised(source, read_rows(source), given)
        for row in rows:
            if row.value is not None and fields is not None:
                messages, _ = texts_of(lookup(row.value, fields.prompt))
                if messages:
                    yield prompt_hash(joined(messages))


def _recognised(source: str, rows: Iterator[Row], given: Fields) -> tuple[Iterator[Row], Fields | None]:
    """Look at the first rows; None when not one of them can be read."""
    first = list(itertools.islice(rows, _FIRST_ROWS))
    values = [row.value for row in first if row.value is not None]
    try:
        fields = recognise(values, given) if values else None
    except SentinelError as error:
        raise SentinelError(f"{source}: {error}") from error
    return itertools.chain(first, rows), fields


class _DataCheck:
    """What has been seen so far."""

    def __init__(
        self, options: DataOptions, encoder: Encoder | None, evaluation: frozenset[int], progress: Progress | None
    ) -> None:
        self._encoder = encoder
        self._progress = progress
        self._given = options.fields
        self._limit = options.limits.max_length or (encoder.limit if encoder else None)
        self._judge = Judge(
            options.limits, special_tokens=encoder.special_tokens if encoder else (), eval_hashes=evaluation
        )
        self._tally = Tally()
        self._rewards: list[float] = []
        self._moments = Moments()
        self._lengths = Lengths()
        self._prompts = Lengths()
        self._rows: dict[str, int] = {}
        self._shapes: dict[str, Fields] = {}
        self._total = self._bad = 0
        self._copy: CleanCopy | None = None

    def read(self, sources: Iterable[str], copy: CleanCopy | None) -> None:
        """Read all files to their ends."""
        self._copy = copy
        for source in sources:
            before = self._total
            rows, fields = _recognised(source, read_rows(source, self._advance(source)), self._given)
            if fields is not None:
                self._shapes[source] = fields
            batches = iter(lambda rows=rows: list(itertools.islice(rows, _BATCH)), [])  # type: ignore[misc]
            for batch in batches:
                self._batch(batch, fields)
            self._rows[source] = self._total - before

    def _advance(self, source: str) -> Callable[[int], None] | None:
        progress = self._progress
        return None if progress is None else lambda position: progress(source, position, self._total)

    def _batch(self, batch: list[Row], fields: Fields | None) -> None:
        judge = self._judge.judge
        judged = [judge(row.value, fields) if row.value is not None and fields is not None else None for row in batch]
        if self._encoder is not None:
            self._tokens(judged)
        for row, one in zip(batch, judged, strict=True):
            self._total += 1
            if one is None:
                self._count(row, [(row.fault or "unreadable", row.error, "")])
                continue
            if self._encoder is None:
                self._lengths.add(one.length)
                if self._limit is not None and one.length > self._limit:
                    one.faults.append(("too-long", f"{one.length:,} characters", ""))
            self._rewards += one.rewards
            self._count(row, one.faults)
        self._moments = self._moments.merge(Moments.of(self._rewards))
        self._rewards.clear()

    def _tokens(self, judged: list[Judged | None]) -> None:
        assert self._encoder is not None
        whole = [one for one in judged if one is not None and one.prompt]
        for one, tokens in zip(whole, self._encoder.encode([(one.prompt, one.response) for one in whole]), strict=True):
            self._lengths.add(tokens.total)
            self._prompts.add(tokens.prompt)
            one.faults += [(code, text, "") for code, text in tokens.faults]
            if self._limit is not None and tokens.total > self._limit:
                one.faults.append(("too-long", f"{tokens.total:,} tokens", ""))

    def _count(self, row: Row, faults: list[tuple[str, str, str]]) -> None:
        for code, text, detail in faults:
            example = shown(row.source, row.number, text) if self._tally.wants_example(code) else ""
            self._tally.add(code, example, detail)
        self._bad += bool(faults)
        if self._copy is not None:
            reasons = [code for code, _, _ in faults if KINDS[code].drop]
            if reasons:
                self._copy.drop(row, reasons)
            else:
                self._copy.keep(row)

    def report(self, sources: tuple[str, ...], seconds: float, evaluated: int) -> CheckReport:
        """Sum up. Raises `SentinelError` when there was not a single row."""
        if not self._total:
            raise SentinelError(f"{', '.join(sources)}: there is not one row in it; give a file with samples")
        for code, text, detail in judge_rewards(self._moments):
            self._tally.add(code, text, detail)
        return CheckReport(
            kind="data", subject=", ".join(sources), looked_at=self._looked_at(evaluated),
            not_seen=self._not_seen(evaluated),
            faults=gravest_first(list(self._tally.faults())), notes=self._encoder.notes() if self._encoder else (),
            facts=self._facts(), seconds=seconds,
        )  # fmt: skip

    def _looked_at(self, evaluated: int) -> tuple[str, ...]:
        shapes = {fields.shape: fields for fields in self._shapes.values()}
        read = [f"{len(self._rows):,} files, {self._total:,} rows, {self._bad:,} of them with a fault"]
        read += [f"shape {name}: fields {', '.join(fields.named())}" for name, fields in shapes.items()]
        if evaluated:
            read.append(f"{evaluated:,} prompts of the evaluation set")
        return tuple(read)

    def _not_seen(self, evaluated: int) -> tuple[str, ...]:
        have = {
            part
            for fields in self._shapes.values()
            for part in ("response", "answer", "reward")
            if getattr(fields, part)
        }
        out = [
            f"{part}s: no such field is recognised (--{part} FIELD)"
            for part in ("answer", "reward")
            if part not in have
        ]
        if self._encoder is None:
            out.append("tokens: lengths are in characters (--tokenizer DIR)")
        if self._limit is None:
            out.append("lengths against a limit (--max-length N)")
        if not evaluated:
            out.append("leakage into an evaluation set (--eval FILE)")
        if self._judge.forgetful:
            out.append(f"duplicates beyond the first {MOST_REMEMBERED:,} distinct rows")
        return tuple(out)

    def _facts(self) -> dict[str, object]:
        unit = "tokens" if self._encoder else "characters"
        facts: dict[str, Any] = {
            "rows": self._total, "rows_with_faults": self._bad, "rows_by_file": dict(self._rows),
            "faults": dict(self._tally.counts), "length_unit": unit, "lengths": self._lengths.summary(),
            "length_limit": self._limit,
        }  # fmt: skip
        if self._encoder:
            facts["prompt_lengths"] = self._prompts.summary()
        if self._moments.count:
            facts["rewards"] = {
                "count": int(self._moments.count), "mean": self._moments.mean, "std": self._moments.std(),
                "min": self._moments.low, "max": self._moments.high,
            }  # fmt: skip
        if self._copy is not None:
            facts["clean_copy"] = {
                "path": str(self._copy.path), "kept": self._copy.kept, "dropped": self._copy.dropped,
                "dropped_path": str(self._copy.dropped_path),
            }  # fmt: skip
        return facts


__all__ = ["DataOptions", "Progress", "check_data"]
