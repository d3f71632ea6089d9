"""`check data`: read every row once, judge it, report totals, counts and first examples (S1-S6).

Memory is bounded: one row at a time (a batch of them with a tokenizer), hashes of at most `MOST_REMEMBERED` rows, and
histograms of lengths.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.data_answers import OneAnswer
from grpo_sentinel.preflight.data_blocks import Block, Row, unpacked
from grpo_sentinel.preflight.data_checks import (
    Judge,
    Judged,
    Limits,
    judge_rewards,
    shown,
)
from grpo_sentinel.preflight.data_clean import CleanCopy
from grpo_sentinel.preflight.data_faults import KINDS, Tally
from grpo_sentinel.preflight.data_groups import Groups
from grpo_sentinel.preflight.data_leakage import Evaluated
from grpo_sentinel.preflight.data_lengths import Lengths, Rewards
from grpo_sentinel.preflight.data_parallel import Workers, jobs_for
from grpo_sentinel.preflight.data_repeats import MOST_REMEMBERED, Repeats
from grpo_sentinel.preflight.data_shapes import (
    Fields,
    Messages,
    joined,
    lookup,
    recognise,
    split_conversation,
    texts_of,
)
from grpo_sentinel.preflight.data_sources import expand, has_types, read_blocks
from grpo_sentinel.preflight.data_tokens import Encoder
from grpo_sentinel.preflight.report import CheckReport, gravest_first
from grpo_sentinel.wording import counted

_FIRST_ROWS = 64  # looked at to recognise the shape
_BATCH = 128  # small enough that texts and tokens of one batch stay in the cache

_Batch = tuple[list[Row], list[Judged | None]]

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
    jobs: int = 1  # processes; 0 = by size and cores. A clean copy is written by one


def check_data(
    files: Iterable[str], options: DataOptions | None = None, progress: Progress | None = None
) -> CheckReport:
    """Check all rows of all files. Raises `SentinelError` when nothing can be read or no prompt is recognised."""
    options = options or DataOptions()
    sources = expand(list(files))
    encoder = Encoder(options.tokenizer) if options.tokenizer else None
    evaluated = _evaluated(expand(options.evaluation) if options.evaluation else (), options.fields)
    check = _DataCheck(options, encoder, evaluated, progress)
    began = time.monotonic()
    tokenized = encoder is not None
    jobs = 1 if options.write_clean is not None else jobs_for(sources, options.jobs, tokenized=tokenized)
    with _uncollected():
        if jobs > 1:
            check.read_parallel(sources, jobs)
        elif options.write_clean is None:
            check.read(sources, None)
        else:
            with CleanCopy(options.write_clean, (*sources, *options.evaluation)) as copy:
                check.read(sources, copy)
    return check.report(sources, time.monotonic() - began, len(evaluated.prompts))


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Switch the cyclic collector off: rows hold no cycles, and walking transformers' heap took a tenth of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _evaluated(sources: Iterable[str], given: Fields) -> Evaluated:
    out = Evaluated()
    for source in sources:
        blocks, fields = _recognised(source, read_blocks(source), given)
        for row in _rows_of(blocks):
            if row.value is not None and fields is not None:
                messages = _prompt(row.value, fields)
                if messages:
                    out.add(messages)
    return out


def _prompt(row: Mapping[str, Any], fields: Fields) -> Messages:
    messages, _ = texts_of(lookup(row, fields.prompt))
    if not fields.response and fields.prompt == "messages":
        messages, _ = split_conversation(messages)
    return messages


def _rows_of(blocks: Iterable[Block]) -> Iterator[Row]:
    return (row for block in blocks for row in block.rows())


def _recognised(source: str, blocks: Iterator[Block], given: Fields) -> tuple[Iterator[Block], Fields | None]:
    """Look at the first rows; None when not one of them can be read."""
    first: list[Block] = []
    rows: list[Row] = []
    for block in blocks:
        first.append(block)
        rows += itertools.islice(block.rows(), _FIRST_ROWS - len(rows))
        if len(rows) >= _FIRST_ROWS:
            break
    values = [row.value for row in rows if row.value is not None]
    try:
        fields = replace(recognise(values, given), typed=has_types(source)) if values else None
    except SentinelError as error:
        raise SentinelError(f"{source}: {error}") from error
    return itertools.chain(first, blocks), fields


@dataclass(frozen=True, slots=True)
class _Task:
    """A block for a process of --jobs, with the fields of its file."""

    block: Block
    fields: Fields | None

    def packed(self) -> tuple[Any, bytes]:
        """What `_DataCheck.work` takes."""
        block = self.block
        fields = None if self.fields is None else asdict(self.fields)
        return (type(block).__name__, block.source, block.number, fields), block.packed()

    def prompt(self, number: int) -> str:
        """The prompt of one row, decoded again for an example."""
        row = next((row for row in self.block.rows() if row.number == number), None)
        if row is None or row.value is None or self.fields is None:
            return ""
        return joined(_prompt(row.value, self.fields))


@dataclass(slots=True)
class _Apart:
    """What only all rows together can be judged by: of every row that has a prompt hash, number, 1: a fault (before
    tokens) + 2: a fault, and where it may be one of a group (prompt, reward), in parallel lists; and all rewards."""

    keys: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    faulty: list[int] = field(default_factory=list)
    scores: list[tuple[int, float] | None] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)

    def lists(self) -> tuple[list[Any], ...]:
        """The lists themselves, in the order of the fields: `asdict` would copy them number by number."""
        return self.keys, self.numbers, self.faulty, self.scores, self.rewards


class _DataCheck:
    """What has been seen so far."""

    def __init__(
        self, options: DataOptions, encoder: Encoder | None, evaluated: Evaluated, progress: Progress | None
    ) -> None:
        self._encoder = encoder
        self._progress = progress
        self._given = options.fields
        self._limit = options.limits.max_length or (encoder.limit if encoder else None)
        self._evaluated = evaluated
        self._options = options
        self._repeats = Repeats()
        self._judge = self._new_judge(self._repeats)
        self._tally = Tally()
        self._rewards = Rewards()
        self._groups = Groups()
        self._answers = OneAnswer()
        self._lengths = Lengths()
        self._prompts = Lengths()
        self._rows: dict[str, int] = {}
        self._shapes: dict[str, Fields] = {}
        self._total = self._bad = self._only_repeated = 0  # rows: all, with a fault, with no other than a duplicate
        self._copy: CleanCopy | None = None
        self._all_kept = options.limits.repeats >= 1  # whatever repeats, also in a clean copy
        self._apart: _Apart | None = None  # gathered instead of judged, in a process of --jobs

    def _new_judge(self, repeats: Repeats | None) -> Judge:
        special = self._encoder.special_tokens if self._encoder else ()
        return Judge(self._options.limits, special_tokens=special, evaluated=self._evaluated, repeats=repeats)

    def read(self, sources: Iterable[str], copy: CleanCopy | None) -> None:
        """Read all files to their ends."""
        self._copy = copy
        for source in sources:
            blocks, fields = _recognised(source, read_blocks(source, self._advance(source)), self._given)
            self.read_source(source, _rows_of(blocks), fields)

    def read_source(self, source: str, rows: Iterator[Row], fields: Fields | None) -> None:
        """Read rows of one file, batch by batch."""
        before = self._total
        if fields is not None:
            self._shapes[source] = fields
        judge = self._judge.judge
        batches = iter(lambda: list(itertools.islice(rows, _BATCH)), [])
        judged = (
            (rows, [judge(row.value, fields) if row.value is not None and fields is not None else None for row in rows])
            for rows in batches
        )
        for batch, ready in judged if self._encoder is None else self._tokenized(judged):
            self._note(batch, ready)
        self._rows[source] = self._rows.get(source, 0) + self._total - before

    def read_parallel(self, sources: Iterable[str], jobs: int) -> None:
        """Read all files to their ends and have several processes judge them; duplicates are sought here."""
        with Workers[_Task](jobs, self._work) as workers:
            for task, done in workers.results(self._tasks(sources)):
                self._merge(task, done)

    def _tasks(self, sources: Iterable[str]) -> Iterator[_Task]:
        for source in sources:
            self._rows.setdefault(source, 0)
            blocks, fields = _recognised(source, read_blocks(source, self._advance(source)), self._given)
            if fields is not None:
                self._shapes[source] = fields
            for block in blocks:
                yield _Task(block, fields)

    def _work(self, header: Any, content: bytes) -> dict[str, Any]:
        """Judge one task, in a process of --jobs: everything that is counted begins at zero."""
        kind, source, number, named = header
        fields = None if named is None else Fields(**{**named, "required": tuple(named["required"])})
        one = _DataCheck(self._options, self._encoder, self._evaluated, None)
        one._judge = one._new_judge(None)
        one._apart = _Apart()
        one.read_source(source, unpacked(kind, source, number, content).rows(), fields)
        return {
            "tally": asdict(one._tally), "lengths": one._lengths.as_json(), "prompts": one._prompts.as_json(),
            "total": one._total, "bad": one._bad, "apart": one._apart.lists(), "answers": one._answers.as_json(),
            "groups": [one._groups.listed, one._groups.listed_flat],
        }  # fmt: skip

    def _merge(self, task: _Task, done: dict[str, Any]) -> None:
        source = task.block.source
        self._tally.merge(Tally(**done["tally"]))
        self._lengths.merge(Lengths.from_json(done["lengths"]))
        self._prompts.merge(Lengths.from_json(done["prompts"]))
        self._total += done["total"]
        self._bad += done["bad"]
        self._rows[source] += done["total"]
        self._answers.merge(done["answers"])
        self._groups.listed += done["groups"][0]
        self._groups.listed_flat += done["groups"][1]
        apart = _Apart(*done["apart"])
        self._rewards.add(apart.rewards)
        for key, number, faulty, score in zip(apart.keys, apart.numbers, apart.faulty, apart.scores, strict=True):
            code = self._repeats.code(key, bool(faulty & 1))
            if score is not None and code != "duplicate":
                self._groups.add_one(*score)
            if code:
                text = task.prompt(number) if self._tally.wants_example(code) else ""
                self._tally.add(code, shown(source, number, text))
                self._bad += not faulty & 2
                self._only_repeated += code == "duplicate" and not faulty & 2

    def _advance(self, source: str) -> Callable[[int], None] | None:
        progress = self._progress
        return None if progress is None else lambda position: progress(source, position, self._total)

    def _tokenized(self, judged: Iterator[_Batch]) -> Iterator[_Batch]:
        """Hand batches on with their tokens counted. A thread beside the judging took a quarter more CPU time."""
        for one in judged:
            self._tokens(one[1])
            yield one

    def _note(self, batch: list[Row], judged: list[Judged | None]) -> None:
        self._total += len(batch)
        rewards: list[float] = []
        for row, one in zip(batch, judged, strict=True):
            if one is None:
                self._count(row, [(row.fault or "unreadable", row.error, "")])
                continue
            if self._encoder is None:
                self._lengths.add(one.length)
                if self._limit is not None and one.length > self._limit:
                    one.faults.append(("too-long", f"{one.length:,} characters", ""))
            rewards += one.rewards
            score = self._grouped(one)
            if self._apart is not None and one.key is not None:
                self._apart.keys.append(one.key)
                self._apart.numbers.append(row.number)
                self._apart.faulty.append(one.faulty + 2 * bool(one.faults))
                self._apart.scores.append(score)
            elif score is not None and not any(code == "duplicate" for code, _, _ in one.faults):
                self._groups.add_one(*score)
            if one.faults or self._copy is not None:
                self._count(row, one.faults)
        if self._apart is not None:
            self._apart.rewards += rewards
        else:
            self._rewards.add(rewards)

    def _grouped(self, one: Judged) -> tuple[int, float] | None:
        """Note answer and group of a row; gives hash and reward of one that is a group only with others."""
        if one.asked is not None and not self._answers.differ:
            self._answers.add(one.asked, one.answer)
        if one.group:
            self._groups.add_list(one.rewards)
        elif one.asked is not None and one.response and len(one.rewards) == 1:
            return one.asked, one.rewards[0]
        return None

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
        self._only_repeated += len(faults) == 1 and faults[0][0] == "duplicate"
        if self._copy is not None:
            reasons = [
                code for code, _, _ in faults if KINDS[code].drop and not (code == "duplicate" and self._all_kept)
            ]
            if reasons:
                self._copy.drop(row, reasons)
            else:
                self._copy.keep(row)

    def report(self, sources: tuple[str, ...], seconds: float, evaluated: int) -> CheckReport:
        """Sum up. Raises `SentinelError` when there was not a single row."""
        if not self._total:
            raise SentinelError(f"{', '.join(sources)}: there is not one row in it; give a file with samples")
        for code, text, detail in judge_rewards(self._rewards.moments()):
            self._tally.add(code, text, detail)
        if why := self._answers.fault():
            self._tally.add("constant-answer", why)
        notes = (*(self._encoder.notes() if self._encoder else ()), *self._renamed())
        if "constant-reward" not in self._tally.counts:
            if why := self._groups.fault():
                self._tally.add("flat-groups", why)
            elif why := self._groups.note():
                notes = (*notes, why)
        if self._repeats.count and (why := self._repeats.note(self._total, self._options.limits.repeats)):
            self._bad -= self._only_repeated
            once = (
                "; the clean copy holds one of each, --repeats 1 keeps all" if self._copy and not self._all_kept else ""
            )
            notes = (*notes, f"{why} (first {self._tally.take('duplicate')[0]}){once}")
        return CheckReport(
            kind="data", subject=", ".join(sources), looked_at=self._looked_at(evaluated),
            not_seen=self._not_seen(evaluated),
            faults=gravest_first(list(self._tally.faults())), notes=notes, facts=self._facts(), seconds=seconds,
        )  # fmt: skip

    def _renamed(self) -> tuple[str, ...]:
        """Fields that are prompts to us and not to TRL."""
        names = {fields.prompt for fields in self._shapes.values() if fields.shape in ("plain", "conversational")}
        return tuple(f"prompts stand in the field {name}: TRL wants prompt (rename_column)" for name in sorted(names))

    def _looked_at(self, evaluated: int) -> tuple[str, ...]:
        shapes = {fields.shape: fields for fields in self._shapes.values()}
        read = [f"{counted(len(self._rows), 'file')}, {counted(self._total, 'row')}, {self._bad:,} with a fault"]
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
        if self._repeats.forgetful:
            out.append(f"duplicates beyond the first {MOST_REMEMBERED:,} distinct rows")
        if media := {fields.media for fields in self._shapes.values() if fields.media}:
            out.append(
                f"duplicates and leakage: {', '.join(sorted(media))} would have to be compared, not the text alone"
            )
        return tuple(out)

    def _facts(self) -> dict[str, object]:
        unit = "tokens" if self._encoder else "characters"
        facts: dict[str, Any] = {
            "rows": self._total, "rows_with_faults": self._bad, "rows_by_file": dict(self._rows),
            "faults": {code: self._tally.counts[code] for code in KINDS if code in self._tally.counts},
            "length_unit": unit, "lengths": self._lengths.summary(), "length_limit": self._limit,
        }  # fmt: skip
        if self._encoder:
            facts["prompt_lengths"] = self._prompts.summary()
        rewards = self._rewards.moments()
        if rewards.count:
            facts["rewards"] = {
                "count": int(rewards.count), "mean": rewards.mean, "std": rewards.std(),
                "min": rewards.low, "max": rewards.high,
            }  # fmt: skip
        if self._groups.count:
            facts["groups"] = {"count": self._groups.count, "all_equal": self._groups.flat}
        if self._copy is not None:
            facts["clean_copy"] = {
                "path": str(self._copy.path), "kept": self._copy.kept, "dropped": self._copy.dropped,
                "dropped_path": str(self._copy.dropped_path),
            }  # fmt: skip
        return facts


__all__ = ["DataOptions", "Progress", "check_data"]
