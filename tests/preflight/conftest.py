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


@pytest.fixture(scope="session")
def policy_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny policy that has learned a little; tests change copies."""
    pytest.importorskip("transformers")
    from models_made import policy

    return policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="session")
def reward_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    from models_made import reward_model

    return reward_model(tmp_path_factory.mktemp("reward_model"))


@pytest.fixture(scope="session")
def prompts_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    from models_made import data

    return str(data(tmp_path_factory.mktemp("prompts") / "train.jsonl"))


@pytest.fixture(scope="session")
def answered_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    from models_made import data

    return str(data(tmp_path_factory.mktemp("answered") / "train.jsonl", responses=True))
