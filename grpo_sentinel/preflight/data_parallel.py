"""`check data --jobs N`: parts of the files judged by processes of their own, merged in the order of rows.

Each process judges its rows and sends counts, first examples, histograms and one hash a row. Duplicates are sought
here, over all parts in order, so that the report is the one that a single process gives.
"""

from __future__ import annotations

import multiprocessing
import os
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.data_sources import Part, split

_PART_BYTES = 8 << 20
_WORTH_BYTES = 32 << 20  # below that starting processes costs more than it saves
_MOST_JOBS = 8
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Hashes:
    """Of every row that has a prompt: hash, number, and 1: a fault (before tokens) + 2: a fault; parallel arrays."""

    keys: array[int]
    numbers: array[int]
    faulty: bytearray


def jobs_for(sources: tuple[str, ...], wanted: int) -> int:
    """How many processes to use: what was asked for; with 0, the cores where the data is worth it."""
    if wanted:
        return wanted
    size = sum(Path(source).stat().st_size for source in sources if Path(source).is_file())
    cores = len(os.sched_getaffinity(0))
    return min(cores, _MOST_JOBS) if size >= _WORTH_BYTES else 1


def parts_of(sources: tuple[str, ...], part_bytes: int = _PART_BYTES) -> list[Part]:
    """All parts of all files, in order."""
    return [part for source in sources for part in split(source, part_bytes)]


class Workers(Generic[_Result]):
    """Processes forked from this one (so that hashes of text agree), each with what `work` refers to."""

    def __init__(self, jobs: int, work: Callable[[Part], _Result]) -> None:
        global _work
        _work = work
        self._jobs = jobs
        self._pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("fork"), initializer=_begin)

    def __enter__(self) -> Workers[_Result]:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=kind is not None)

    def results(self, parts: list[Part]) -> Iterator[tuple[Part, _Result]]:
        """Results in the order of the parts; a few are worked on ahead. Raises `SentinelError` when a process dies."""
        ahead = self._jobs + 2
        waiting = [(part, self._pool.submit(_run, part)) for part in parts[:ahead]]
        rest = iter(parts[ahead:])
        try:
            while waiting:
                part, future = waiting.pop(0)
                yield part, future.result()
                following = next(rest, None)
                if following is not None:
                    waiting.append((following, self._pool.submit(_run, following)))
        except BrokenProcessPool as error:
            raise SentinelError(
                "a process of --jobs died, perhaps for want of memory (dmesg says so); try --jobs 1"
            ) from error


_work: Callable[[Part], Any] | None = None


def _begin() -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core for each process


def _run(part: Part) -> Any:
    assert _work is not None
    return _work(part)


__all__ = ["Hashes", "Workers", "jobs_for", "parts_of"]
