"""One pass over all rows: judged one by one, added up, and compared with each other where only all can tell.

Memory is bounded: one row at a time (a batch of them with a tokenizer), hashes of at most `MOST_REMEMBERED` rows, and
histograms of lengths. With --jobs other processes judge blocks of rows; duplicates and groups are sought here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from grpo_sentinel.preflight.data_blocks import Block, Row, unpacked
from grpo_sentinel.preflight.data_checks import Judge, Judged, Limits, shown
from grpo_sentinel.preflight.data_clean import CleanCopy
from grpo_sentinel.preflight.data_faults import KINDS
from grpo_sentinel.preflight.data_leakage import Evaluated
from grpo_sentinel.preflight.data_parallel import Workers
from grpo_sentinel.preflight.data_repeats import Repeats
from grpo_sentinel.preflight.data_rows import prompt_of, recognised, rows_of
from grpo_sentinel.preflight.data_shapes import Fields, joined
from grpo_sentinel.preflight.data_sources import read_blocks
from grpo_sentinel.preflight.data_tokens import Encoder
from grpo_sentinel.preflight.data_totals import Totals

_BATCH = 128  # small enough that texts and tokens of one batch stay in the cache

_Batch = tuple[list[Row], list[Judged | None]]

Progress = Callable[[str, int, int], None]
"""Told the file, the bytes of it that were read, and the rows of all files so far."""


@dataclass(frozen=True, slots=True)
class _Task:
    """A block for a process of --jobs, with the fields of its file."""

    block: Block
    fields: Fields | None

    def packed(self) -> tuple[Any, bytes]:
        """What `Pass._work` takes."""
        block = self.block
        fields = None if self.fields is None else asdict(self.fields)
        return (type(block).__name__, block.source, block.number, fields), block.packed()

    def prompt(self, number: int) -> str:
        """The prompt of one row, decoded again for an example."""
        row = next((row for row in self.block.rows() if row.number == number), None)
        if row is None or row.value is None or self.fields is None:
            return ""
        return joined(prompt_of(row.value, self.fields))


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


class Pass:
    """Reads all rows once, judges them, and adds up; `totals` is what has been seen so far."""

    def __init__(
        self, limits: Limits, given: Fields, encoder: Encoder | None, evaluated: Evaluated, progress: Progress | None
    ) -> None:
        self.limits, self._given = limits, given
        self.encoder = encoder
        self._progress = progress
        self.limit = limits.max_length or (encoder.limit if encoder else None)
        self._evaluated = evaluated
        self.repeats = Repeats()
        self._judge = self._new_judge(self.repeats)
        self.copy: CleanCopy | None = None
        self.all_kept = limits.repeats >= 1  # whatever repeats, also in a clean copy
        self._apart: _Apart | None = None  # gathered instead of judged, in a process of --jobs
        self.totals = Totals()

    def _new_judge(self, repeats: Repeats | None) -> Judge:
        special = self.encoder.special_tokens if self.encoder else ()
        return Judge(self.limits, special_tokens=special, evaluated=self._evaluated, repeats=repeats)

    def read(self, sources: Iterable[str], copy: CleanCopy | None) -> None:
        """Read all files to their ends."""
        self.copy = copy
        for source in sources:
            blocks, fields = recognised(source, read_blocks(source, self._advance(source)), self._given)
            self.read_source(source, rows_of(blocks), fields)

    def read_source(self, source: str, rows: Iterator[Row], fields: Fields | None) -> None:
        """Read rows of one file, batch by batch."""
        before = self.totals.total
        if fields is not None:
            self.totals.shapes[source] = fields
        judge = self._judge.judge
        batches = iter(lambda: list(itertools.islice(rows, _BATCH)), [])
        judged = (
            (rows, [judge(row.value, fields) if row.value is not None and fields is not None else None for row in rows])
            for rows in batches
        )
        for batch, ready in judged if self.encoder is None else self._tokenized(judged):
            self._note(batch, ready)
        self.totals.rows[source] = self.totals.rows.get(source, 0) + self.totals.total - before

    def read_parallel(self, sources: Iterable[str], jobs: int) -> None:
        """Read all files to their ends and have several processes judge them; duplicates are sought here."""
        with Workers[_Task](jobs, self._work) as workers:
            for task, done in workers.results(self._tasks(sources)):
                self._merge(task, done)

    def _tasks(self, sources: Iterable[str]) -> Iterator[_Task]:
        for source in sources:
            self.totals.rows.setdefault(source, 0)
            blocks, fields = recognised(source, read_blocks(source, self._advance(source)), self._given)
            if fields is not None:
                self.totals.shapes[source] = fields
            for block in blocks:
                yield _Task(block, fields)

    def _work(self, header: Any, content: bytes) -> dict[str, Any]:
        """Judge one task, in a process of --jobs: everything that is counted begins at zero."""
        kind, source, number, named = header
        fields = None if named is None else Fields(**{**named, "required": tuple(named["required"])})
        one = Pass(self.limits, self._given, self.encoder, self._evaluated, None)
        one._judge = one._new_judge(None)
        one._apart = _Apart()
        one.read_source(source, unpacked(kind, source, number, content).rows(), fields)
        return {"totals": one.totals.as_json(), "apart": one._apart.lists()}

    def _merge(self, task: _Task, done: dict[str, Any]) -> None:
        source = task.block.source
        self.totals.merge(done["totals"])
        apart = _Apart(*done["apart"])
        self.totals.rewards.add(apart.rewards)
        for key, number, faulty, score in zip(apart.keys, apart.numbers, apart.faulty, apart.scores, strict=True):
            code = self.repeats.code(key, bool(faulty & 1))
            if score is not None and code != "duplicate":
                self.totals.groups.add_one(*score)
            if code:
                text = task.prompt(number) if self.totals.tally.wants_example(code) else ""
                self.totals.tally.add(code, shown(source, number, text))
                self.totals.bad += not faulty & 2
                self.totals.only_repeated += code == "duplicate" and not faulty & 2

    def _advance(self, source: str) -> Callable[[int], None] | None:
        progress = self._progress
        return None if progress is None else lambda position: progress(source, position, self.totals.total)

    def _tokenized(self, judged: Iterator[_Batch]) -> Iterator[_Batch]:
        """Hand batches on with their tokens counted. A thread beside the judging took a quarter more CPU time."""
        for one in judged:
            self._tokens(one[1])
            yield one

    def _note(self, batch: list[Row], judged: list[Judged | None]) -> None:
        totals = self.totals
        totals.total += len(batch)
        rewards: list[float] = []
        for row, one in zip(batch, judged, strict=True):
            if one is None:
                self._count(row, [(row.fault or "unreadable", row.error, "")])
                continue
            if self.encoder is None:
                totals.lengths.add(one.length)
                if self.limit is not None and one.length > self.limit:
                    one.faults.append(("too-long", f"{one.length:,} characters", ""))
            rewards += one.rewards
            score = self._grouped(one)
            if self._apart is not None and one.key is not None:
                self._apart.keys.append(one.key)
                self._apart.numbers.append(row.number)
                self._apart.faulty.append(one.faulty + 2 * bool(one.faults))
                self._apart.scores.append(score)
            elif score is not None and not any(code == "duplicate" for code, _, _ in one.faults):
                totals.groups.add_one(*score)
            if one.faults or self.copy is not None:
                self._count(row, one.faults)
        if self._apart is not None:
            self._apart.rewards += rewards
        else:
            totals.rewards.add(rewards)

    def _grouped(self, one: Judged) -> tuple[int, float] | None:
        """Note answer and group of a row; gives hash and reward of one that is a group only with others."""
        if one.asked is not None and not self.totals.answers.differ:
            self.totals.answers.add(one.asked, one.answer)
        if one.group:
            self.totals.groups.add_list(one.rewards)
        elif one.asked is not None and one.response and len(one.rewards) == 1:
            return one.asked, one.rewards[0]
        return None

    def _tokens(self, judged: list[Judged | None]) -> None:
        assert self.encoder is not None
        whole = [one for one in judged if one is not None and one.prompt]
        for one, tokens in zip(whole, self.encoder.encode([(one.prompt, one.response) for one in whole]), strict=True):
            self.totals.lengths.add(tokens.total)
            self.totals.prompts.add(tokens.prompt)
            one.faults += [(code, text, "") for code, text in tokens.faults]
            if self.limit is not None and tokens.total > self.limit:
                one.faults.append(("too-long", f"{tokens.total:,} tokens", ""))

    def _count(self, row: Row, faults: list[tuple[str, str, str]]) -> None:
        for code, text, detail in faults:
            example = shown(row.source, row.number, text) if self.totals.tally.wants_example(code) else ""
            self.totals.tally.add(code, example, detail)
        self.totals.bad += bool(faults)
        self.totals.only_repeated += len(faults) == 1 and faults[0][0] == "duplicate"
        if self.copy is not None:
            reasons = [
                code for code, _, _ in faults if KINDS[code].drop and not (code == "duplicate" and self.all_kept)
            ]
            if reasons:
                self.copy.drop(row, reasons)
            else:
                self.copy.keep(row)


__all__ = ["Pass", "Progress"]
