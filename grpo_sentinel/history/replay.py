"""Put a stored run together again: frames in order of step, as the rules engine saw them live."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from grpo_sentinel.records import Frame, Mode, StepRecord


def frames(records: Iterable[StepRecord], run_id: str) -> Iterator[Frame]:
    """Merge records that are ordered by step into one `Frame` per step and mode, training before evaluation.

    A rank that was seen before and has nothing for a step counts as missing there. Memory is that of one step.
    """
    seen: set[int] = set()
    step: int | None = None
    waiting: list[StepRecord] = []
    for record in records:
        if step is not None and record.step != step:
            yield from _close(waiting, run_id, seen)
            waiting = []
        step = record.step
        waiting.append(record)
    yield from _close(waiting, run_id, seen)


def _close(records: list[StepRecord], run_id: str, seen: set[int]) -> Iterator[Frame]:
    if len(records) == 1 and records[0].mode is Mode.TRAIN:  # one rank, one record a step: nothing to merge
        (only,) = records
        seen.add(only.rank)
        gone = tuple(sorted(seen - {only.rank})) if len(seen) > 1 else ()
        yield Frame(
            run_id=run_id, step=only.step, mode=Mode.TRAIN, wall_ns=only.wall_ns, ranks={only.rank: only.values},
            missing=gone,
        )  # fmt: skip
        return
    for mode in Mode:
        ranks: dict[int, dict[str, float]] = {}
        wall_ns = 0
        for record in sorted((r for r in records if r.mode is mode), key=lambda r: r.wall_ns):
            ranks.setdefault(record.rank, {}).update(record.values)
            wall_ns = record.wall_ns
        if not ranks:
            continue
        if mode is Mode.TRAIN:
            seen.update(ranks)
        missing = tuple(sorted(seen - ranks.keys())) if mode is Mode.TRAIN else ()
        yield Frame(run_id=run_id, step=records[0].step, mode=mode, wall_ns=wall_ns, ranks=ranks, missing=missing)
