"""Checkpoints made by transformers itself, once; every test breaks a copy of its own."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "sinks"))


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Output directory of a run of `transformers.Trainer`: checkpoint-2 and checkpoint-4."""
    pytest.importorskip("transformers")
    from checkpoints_made import train

    return train(tmp_path_factory.mktemp("made"))


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Callable[..., Path]:
    def make(step: int = 4, place: str = "out") -> Path:
        target = tmp_path / place / f"checkpoint-{step}"
        shutil.copytree(made / f"checkpoint-{step}", target)
        return target

    return make
