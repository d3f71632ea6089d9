"""The helpers of tests/halting: fake trainers with real rings, and everything started ended by pid."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "halting"))

from run_support import Started


@pytest.fixture
def started() -> Iterator[Started]:
    with Started() as processes:
        yield processes
