"""A log that is followed goes on whatever a rotation does to its file, and no line is read in halves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from grpo_sentinel.history.logs.lines import Line, follow


def read(lines: Iterator[Line | None]) -> list[str]:
    """Everything up to the first moment with nothing new."""
    out = []
    for line in lines:
        if line is None:
            return out
        out.append(line.text)
    return out


def test_a_torn_line_waits_for_its_rest(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text("one\ntw")
    lines = follow(log)
    assert read(lines) == ["one"]
    with log.open("a") as file:
        file.write("o\n{'loss': 0.1")
    assert read(lines) == ["two"]
    with log.open("a") as file:
        file.write("}\n")
    assert read(lines) == ["{'loss': 0.1}"]


def test_a_log_that_is_renamed_is_read_to_its_end_and_then_the_one_that_has_its_name(tmp_path: Path) -> None:
    log, old = tmp_path / "run.log", tmp_path / "run.log.1"
    log.write_text("one\n")
    lines = follow(log)
    assert read(lines) == ["one"]
    log.rename(old)
    assert read(lines) == []  # nobody has made a new one
    with old.open("a") as file:
        file.write("two\ntor")  # the trainer still writes where it wrote before
    assert read(lines) == ["two"]
    log.touch()
    assert read(lines) == []
    log.write_text("three\n")
    assert read(lines) == ["tor", "three"]
    with log.open("a") as file:
        file.write("four\n")
    assert read(lines) == ["four"]


def test_a_log_that_is_cut_back_is_read_from_its_start(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text("one\ntwo\nthr")
    lines = follow(log)
    assert read(lines) == ["one", "two"]
    with log.open("r+") as file:
        file.truncate(0)
        file.write("new\n")
    assert read(lines) == ["new"]
