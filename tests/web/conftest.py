"""Make the shared makers of test data importable, and end by pid what a test has started."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

for folder in ("sinks", "halting"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / folder))

from run_support import Started  # noqa: E402


@pytest.fixture
def started() -> Iterator[Started]:
    with Started() as processes:
        yield processes
