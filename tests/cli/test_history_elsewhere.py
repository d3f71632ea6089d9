"""A run whose sidecar keeps its state in a place of its own is found without --config, and never called healthy."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from run_support import HERE, cli

from grpo_sentinel.cli import main
from grpo_sentinel.cli.resume_point import CANNOT_TELL
from grpo_sentinel.protocol import choose_root, user_dir

FAKE = HERE / "fake_trainer.py"


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run that was halted after harm, and what `launch` said of it."""
    place = tmp_path_factory.mktemp("elsewhere")
    config = place / "sentinel.yaml"
    config.write_text(json.dumps({
        "state_dir": str(place / "own-state"), "http": {"port": 0}, "launch": {"linger_seconds": 0.5},
        "collectors": {"nvml": {"enabled": False}},
    }))  # fmt: skip
    words = ("--output-dir", place / "out", "--save-steps", 2, "--bad-from", 7, "--lost-weights")
    environment = {"GRPO_SENTINEL_DIR": str(place / "rings"), "XDG_STATE_HOME": str(place / "usual")}
    done = cli("launch", "--config", config, "--run-id", "bad", "--", sys.executable, FAKE, *words, env=environment)
    assert done.returncode == 83, done.stderr
    return place, done.stderr


@pytest.fixture
def run(launched: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go where it lies, with the settings of nobody."""
    place, _ = launched
    monkeypatch.setenv("GRPO_SENTINEL_DIR", str(place / "rings"))
    monkeypatch.setenv("XDG_STATE_HOME", str(place / "usual"))
    return place


def said(capsys: pytest.CaptureFixture[str]) -> str:
    found = capsys.readouterr()
    return " ".join((found.out + found.err).split())


def test_every_command_finds_the_history_without_config(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 0
    told = said(capsys)
    assert "gradient critical" in told
    assert "halt-now by" in told
    assert main(["resume-point", str(run / "out")]) == 0
    found = capsys.readouterr()
    assert Path(found.out.strip()).name == "checkpoint-6", found.err
    for words in ([], ["bad"]):
        assert main(["resume-point", *words]) == 0
        assert capsys.readouterr().out == found.out
    assert main(["incident", "list", "--json"]) == 0
    (incident,) = json.loads(capsys.readouterr().out)
    assert main(["incident", "show", incident["incident"]["incident_id"]]) == 0
    assert main(["pins"]) == 0
    assert "checkpoint-6" in said(capsys)
    assert main(["report", "-o", "-"]) == 0
    assert "bad" in said(capsys)


def test_what_launch_says_to_type_names_the_configuration(launched: tuple[Path, str]) -> None:
    place, stderr = launched
    (line,) = [line for line in stderr.splitlines() if "`grpo-sentinel incident show" in line]
    assert f"--config {place / 'sentinel.yaml'}`" in line


def test_without_its_history_a_run_is_unknown_and_no_checkpoint_is_chosen(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "own-state").rename(run / "away")
    try:
        assert main(["status"]) == 0
        told = said(capsys)
        assert "findings: unknown: there is no history in" in told
        assert " ok" not in told
        assert "no finding is firing" not in told
        assert "request 1: halt-now by" in told
        assert "note by" not in told
        assert main(["status", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["unjudged"]
        assert main(["resume-point", str(run / "out")]) == CANNOT_TELL == 3
        found = capsys.readouterr()
        assert found.out == ""
        assert "run bad was watched" in found.err
        assert main(["resume-point"]) == 2
        assert capsys.readouterr().out == ""
    finally:
        (run / "away").rename(run / "own-state")


def test_after_a_reboot_the_list_of_state_directories_tells_where_the_history_is(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRPO_SENTINEL_DIR", str(tmp_path / "rings"))
    assert main(["resume-point", "bad"]) == 0
    assert Path(capsys.readouterr().out.strip()).name == "checkpoint-6"
    assert main(["status", "bad"]) == 0
    assert "gradient critical" in said(capsys)
    assert main(["incident", "list"]) == 0
    assert "bad" in said(capsys)


def test_after_a_reboot_the_kept_checkpoints_tell_where_the_history_is(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRPO_SENTINEL_DIR", str(tmp_path / "rings"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "fresh"))
    assert main(["resume-point", str(run / "out")]) == 0
    assert Path(capsys.readouterr().out.strip()).name == "checkpoint-6"
    (run / "own-state").rename(run / "away")
    try:
        assert main(["resume-point", str(run / "out")]) == CANNOT_TELL
        assert capsys.readouterr().out == ""
    finally:
        (run / "away").rename(run / "own-state")


def test_a_directory_that_nobody_watched_is_judged_by_its_numbers(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run / "out", tmp_path / "else" / "out")
    assert main(["resume-point", str(tmp_path / "else" / "out")]) == 0
    assert "findings could not be considered" in capsys.readouterr().err


def test_a_sidecar_with_other_settings_does_not_claim_a_run_that_is_over(run: Path) -> None:
    note = user_dir(choose_root()) / "bad" / ".history.json"
    before = note.read_bytes()
    assert main(["run", "--once"]) == 0
    assert note.read_bytes() == before
