"""On an empty machine every command says one clear sentence and gives the right exit code."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from run_support import cli

from grpo_sentinel.cli import _COMMANDS, main
from grpo_sentinel.cli import cli as root


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("status", 2, "there is no run in"),
        ("top", 2, "use `grpo-sentinel status`"),
        ("halt", 2, "there is no run in"),
        ("resume-point", 2, "give the trainer's output directory"),
        ("pins", 0, "no checkpoint is kept"),
        ("rings", 0, "there are no rings"),
        ("rings --remove", 2, "--remove needs RUN"),
        ("pins --remove", 2, "--remove needs RUN"),
        ("incident", 0, "no incident in"),
        ("incident list --run-id x", 0, "no incident of run x"),
        ("incident show x", 2, "there is no incident x"),
        ("report", 2, "there is no history at"),
        ("replay nofile", 2, "there is no nofile"),
        ("run --json", 2, "--json needs --once"),
        ("launch --run-id -- true", 2, "--run-id needs a value before --"),
        ("rules show nosuch", 2, "there is no rule named 'nosuch'"),
        ("rules test nofile", 2, "cannot read the cases nofile: No such file or directory;"),
        ("ingest nofile", 2, "cannot read the log nofile"),
        ("notify test", 2, "no channel is switched on"),
        ("status --config nofile.yaml", 2, "cannot read the configuration nofile.yaml: No such file or directory;"),
    ],
)
def test_nothing_there_is_one_sentence(
    words: str,
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == code
    printed = capsys.readouterr()
    text = printed.out + printed.err
    assert said in text
    assert text.count("\n") == 1
    assert "Traceback" not in text
    assert "[Errno" not in text


def test_one_look_says_where_no_run_was_found(tmp_path: Path) -> None:
    done = cli("run", "--once")
    assert done.returncode == 0
    assert done.stdout == f"no run was found in {tmp_path / 'rings'}\n"


def _every(command: click.Command, words: tuple[str, ...]) -> list[tuple[str, ...]]:
    if not isinstance(command, click.Group):
        return [words]
    context = click.Context(command)
    inside = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
    return [words, *(one for name, child in inside if child is not None for one in _every(child, (*words, name)))]


def test_the_help_of_every_command_fits_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    everything = _every(root, ())
    assert len(everything) > len(_COMMANDS)
    for words in everything:
        assert main([*words, "--help"]) == 0
        text = capsys.readouterr().out
        assert max(map(len, text.splitlines())) <= 80, words
        shortened = [line for line in text.splitlines() if re.search(r"^  [a-z-]+ .*\.\.\.$", line)]
        assert shortened == [], f"{words}: the short help of a command is cut"
