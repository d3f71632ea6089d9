"""A run directory per test, writers and readers, and real child processes that are ended by pid."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ring_support import SMALL, Child

from grpo_sentinel.protocol import Geometry, RankReader, RankWriter, new_identity


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    started: list[Child] = []

    def start(name: str, *arguments: object) -> Child:
        started.append(Child(name, *(str(argument) for argument in arguments)))
        return started[-1]

    yield start
    for one in started:
        one.end()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., tuple[RankWriter, RankReader]]]:
    """Make a writer in this test's directory and a reader of it."""
    made: list[RankWriter | RankReader] = []

    def build(geometry: Geometry | None = SMALL, rank: int = 3) -> tuple[RankWriter, RankReader]:
        writer = RankWriter(tmp_path, new_identity(rank, rank, 8, "run"), geometry)
        reader = RankReader(writer.path)
        made.extend((writer, reader))
        return writer, reader

    yield build
    for one in made:
        one.close()
