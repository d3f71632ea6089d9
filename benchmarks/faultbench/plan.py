"""Which runs a bench consists of, in the order in which they are made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from benchmarks.faultbench.fault import LOOP1, LOOP2, Mechanism
from benchmarks.faultbench.runs import ANOMALY, Job
from benchmarks.faultbench.table import twin


def jobs(
    rows: Sequence[Mechanism], trainers: Sequence[str], seeds: Iterable[int], *, peers: bool = True
) -> Iterator[Job]:
    """Give faulty runs with the healthy twins they are compared with, seed by seed.

    With `peers` every plain-loop mechanism that does not end its process by itself is run once more, at the first
    seed, without the agent and under `torch.autograd.set_detect_anomaly(True)`: that peer raises, so it needs a run
    of its own; it also shows which checkpoints are poisoned where nothing guards them.
    """
    made: set[str] = set()
    first = True
    for seed in seeds:
        mine = [(row, kind) for row in rows for kind in row.trainers if kind in trainers]
        for row, kind in mine:
            job = Job(mechanism=row, trainer=kind, seed=seed)
            yield job
            other = Job(mechanism=twin(row, kind), trainer=kind, seed=seed)
            if other.key not in made:
                made.add(other.key)
                yield other
        if first and peers:
            for row, kind in mine:
                if kind in (LOOP1, LOOP2) and row.layer != "memory":
                    yield Job(mechanism=row, trainer=kind, seed=seed, mode=ANOMALY)
        first = False
