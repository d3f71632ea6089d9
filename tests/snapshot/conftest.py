"""Models as the checks before a run have them; incidents as their own tests make them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
for folder in ("preflight", "sinks", "incidents"):
    sys.path.insert(0, str(TESTS / folder))


@pytest.fixture(scope="session")
def policy_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    from models_made import policy

    return policy(tmp_path_factory.mktemp("policy"), steps=20)


@pytest.fixture(scope="session")
def answered_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    from models_made import data

    return str(data(tmp_path_factory.mktemp("answered") / "train.jsonl", responses=True))
