"""Loopback is open to everybody on a node: what a run shows is read with a token that only its owner has."""

from __future__ import annotations

import os
import pty
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from grpo_sentinel.cli.checkup import reading
from grpo_sentinel.config import Config
from grpo_sentinel.daemon.reading import NAME, page_link, read_token
from grpo_sentinel.scrub import scrub

GIVEN = "a-token-of-a-person"


def token(tmp_path: Path, said: list[str] | None = None, **http: object) -> str | None:
    told = [] if said is None else said
    return read_token(Config.model_validate({"http": http}), tmp_path / "state", lambda _, text: told.append(text))


def test_the_first_sidecar_makes_a_token_for_this_user_alone_and_the_next_ones_use_it(tmp_path: Path) -> None:
    first = token(tmp_path)
    assert first is not None
    assert len(first) >= 32
    path = tmp_path / "state" / NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert token(tmp_path) == first
    assert [file.name for file in path.parent.iterdir()] == [NAME]
    assert first not in scrub(f"somebody printed {first}")


def test_sidecars_that_start_at_once_agree_on_one_token(tmp_path: Path) -> None:
    for turn in range(50):  # of one process, as containers whose first process has pid 1
        place, found = tmp_path / str(turn), []
        threads = [threading.Thread(target=lambda at=place, to=found: to.append(token(at))) for _ in range(8)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(30)
        assert len(found) == 8
        assert set(found) == {token(place)}


def test_a_token_that_others_could_read_is_replaced(tmp_path: Path) -> None:
    before = token(tmp_path)
    (tmp_path / "state" / NAME).chmod(0o644)
    after = token(tmp_path)
    assert after != before
    assert stat.S_IMODE((tmp_path / "state" / NAME).stat().st_mode) == 0o600


@pytest.mark.parametrize("broken", ["link", "empty", "folder"])
def test_a_file_that_is_no_token_opens_nothing(tmp_path: Path, broken: str) -> None:
    path, said = tmp_path / "state" / NAME, []
    path.parent.mkdir()
    if broken == "link":
        (tmp_path / "elsewhere").write_text(GIVEN)
        path.symlink_to(tmp_path / "elsewhere")
    elif broken == "folder":
        path.mkdir()
    else:
        path.touch(0o600)
    found = token(tmp_path, said)
    assert found
    assert found != GIVEN
    assert bool(said) == (broken != "empty")


def test_a_file_goes_before_the_variable_and_both_before_the_own_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPO_SENTINEL_READ_TOKEN", "from-the-environment")
    assert token(tmp_path) == "from-the-environment"
    (tmp_path / "token").write_text(GIVEN + "\n")
    assert token(tmp_path, read_token_file=str(tmp_path / "token")) == GIVEN
    assert (
        token(tmp_path, read_token="from-the-settings", read_token_file=str(tmp_path / "token")) == "from-the-settings"
    )
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("content", [None, "", "short", "ä" * 30])
def test_a_token_file_of_no_use_is_said_and_opens_nothing(tmp_path: Path, content: str | None) -> None:
    said: list[str] = []
    if content is not None:
        (tmp_path / "token").write_text(content)
    found = token(tmp_path, said, read_token_file=str(tmp_path / "token"), open_reading=True)
    assert found
    assert found != content
    assert len(said) == 1
    assert "http.read_token_file" in said[0]


def test_reading_is_open_only_when_the_settings_say_so_and_no_token_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert token(tmp_path, open_reading=True) is None
    assert page_link("http://127.0.0.1:9477", None) == "http://127.0.0.1:9477/"
    monkeypatch.setenv("GRPO_SENTINEL_READ_TOKEN", GIVEN)
    assert token(tmp_path, open_reading=True) == GIVEN


def test_without_a_place_for_it_the_token_is_one_of_this_start(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no folder")
    said: list[str] = []
    assert token(tmp_path, said) != token(tmp_path)
    assert "cannot be used" in said[0]


def _stderr_of_a_sidecar(tmp_path: Path, *, terminal: bool) -> str:
    """What a sidecar says in its first seconds, on a terminal or into a file, as under a scheduler."""
    config = tmp_path / "sentinel.yaml"
    config.write_text("http: {port: 0}\ncollectors: {nvml: {enabled: false}}\n")
    ours, theirs = pty.openpty() if terminal else os.pipe()
    argv = [sys.executable, "-m", "grpo_sentinel.cli", "run", "--config", str(config)]
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env={**os.environ})
    os.close(theirs)
    said = ""
    try:
        while said.count("\n") < (2 if terminal else 1):
            said += os.read(ours, 4096).decode()
        process.terminate()
        assert process.wait(30) == 0
        while not terminal and (more := os.read(ours, 4096).decode()):
            said += more
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(10)
        os.close(ours)
    return said


def test_the_address_with_the_token_is_shown_to_a_terminal_and_to_no_log(tmp_path: Path) -> None:
    on_terminal = _stderr_of_a_sidecar(tmp_path, terminal=True)
    own = (tmp_path / "state" / "grpo-sentinel" / NAME).read_text().strip()
    assert f"/#token={own}" in on_terminal
    in_a_log = _stderr_of_a_sidecar(tmp_path, terminal=False)
    assert "page, API and /metrics on http://127.0.0.1:" in in_a_log
    assert own not in in_a_log


@pytest.mark.parametrize(
    ("http", "state", "said"),
    [
        ({}, "ok", "page and API need the token in "),
        ({"open_reading": True}, "note", "everybody on this node can read runs"),
        ({"open_reading": True, "read_token_file": "/x"}, "ok", "page and API need the token of the settings"),
    ],
)
def test_the_doctor_says_who_may_read(tmp_path: Path, http: dict[str, object], state: str, said: str) -> None:
    (found,) = reading(Config.model_validate({"http": http, "state_dir": str(tmp_path)}))
    assert (found.state.value, found.found[: len(said)]) == (state, said)
    assert bool(found.remedy) == (state == "note")
