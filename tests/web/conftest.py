"""Make the shared makers of test data importable, and end by pid what a test has started."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

for folder in ("sinks", "halting"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / folder))

from page_support import Shown, chromium  # noqa: E402
from run_support import Started  # noqa: E402


@pytest.fixture
def started() -> Iterator[Started]:
    with Started() as processes:
        yield processes


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as made:
        yield made


@pytest.fixture
def shown(tmp_path: Path) -> Shown:
    return Shown(tmp_path)
