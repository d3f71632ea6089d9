"""The demo's assets are built offline, once, and the same seed gives the same bytes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

import assets  # isort: skip

pytestmark = pytest.mark.torch


def digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(assets, "POLICY_STEPS", 2)
    monkeypatch.setattr(assets, "REWARD_STEPS", 2)


def test_the_same_seed_builds_the_same_bytes(tmp_path, short):
    for name in ("one", "two"):
        assets.ensure(tmp_path / name, progress=lambda text, share: None)
    one, two = digests(tmp_path / "one"), digests(tmp_path / "two")
    assert {"policy/model.safetensors", "policy/tokenizer.json", "reward_model/model.safetensors", "train.jsonl"} <= set(one)
    assert one == two


def test_finished_assets_are_used_again_and_those_of_another_recipe_are_not(tmp_path, monkeypatch):
    built: list[Path] = []

    def build(out: Path, progress) -> None:
        out.mkdir(parents=True)
        built.append(out)

    monkeypatch.setattr(assets, "build", build)
    assets.ensure(tmp_path / "out")
    assets.ensure(tmp_path / "out")
    assert len(built) == 1
    monkeypatch.setattr(assets, "recipe", lambda: {"source": "another"})
    assets.ensure(tmp_path / "out")
    assert len(built) == 2
