"""Whatever the format: rows come in blocks, several processes report what one does, and none outlives its parent."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rows_made import every_format, every_table, good, tokenizer, write

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.data import DataOptions, check_data
from grpo_sentinel.preflight.data_checks import Limits


@pytest.fixture
def small_blocks(monkeypatch: Any) -> list[int]:
    """Blocks so small that every file has many; gives the list of processes that are forked."""
    from grpo_sentinel.preflight import data_tables, data_text

    monkeypatch.setattr(data_text, "BLOCK_BYTES", 4_000)
    monkeypatch.setattr(data_text, "BLOCK_ROWS", 40)
    monkeypatch.setattr(data_tables, "BLOCK_ROWS", 40)
    forked: list[int] = []
    fork = os.fork

    def counted() -> int:
        pid = fork()
        forked.append(pid)
        return pid

    monkeypatch.setattr(os, "fork", counted)
    return forked


def report_of(files: list[str], options: DataOptions) -> str:
    return json.dumps({**check_data(files, options).to_json(), "seconds": 0}, default=str)


def same_with_several_processes(files: list[str], options: DataOptions, forked: list[int]) -> None:
    for path in files:
        one = report_of([path], options)
        assert forked == []
        assert report_of([path], replace(options, jobs=3)) == one, path
        assert len(forked) == (3 if "cut.parquet" not in path else 1), path
        forked.clear()
    assert report_of(files, replace(options, jobs=2)) == report_of(files, options)
    forked.clear()


def test_several_processes_report_to_the_last_digit_what_one_does_whatever_the_format(
    tmp_path: Path, small_blocks: list[int], monkeypatch: Any
) -> None:
    held = write(tmp_path / "eval.jsonl", [{"prompt": "what is 77, then?"}])
    options = DataOptions(limits=Limits(reward_low=0, reward_high=1, max_length=300), evaluation=(held,))
    files = every_format(tmp_path)
    same_with_several_processes(files, options, small_blocks)
    texts = []
    for jobs in (1, 2):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(Path(files[1]).read_bytes())))
        texts.append(report_of(["-"], replace(options, jobs=jobs)))
    assert (texts[0], len(small_blocks)) == (texts[1], 2)
    assert json.loads(texts[0])["facts"]["faults"]["leakage"] == 1


@pytest.mark.torch
def test_several_processes_report_what_one_does_on_tables_and_with_a_tokenizer(
    tmp_path: Path, small_blocks: list[int]
) -> None:
    files = every_table(tmp_path)
    same_with_several_processes(files, DataOptions(limits=Limits(max_length=300)), small_blocks)
    same_with_several_processes(files[:1], DataOptions(tokenizer=tokenizer(tmp_path / "tok")), small_blocks)


def test_a_process_of_jobs_that_dies_is_one_sentence(tmp_path: Path, monkeypatch: Any, small_blocks: list[int]) -> None:
    from grpo_sentinel.preflight import data_pass

    path = write(tmp_path / "a.jsonl", good(400))
    monkeypatch.setattr(data_pass, "unpacked", lambda *_: os._exit(9))
    with pytest.raises(SentinelError, match="--jobs 1"):
        check_data([path], DataOptions(jobs=2))


def test_processes_of_jobs_end_with_their_parent_however_it_ends(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"prompt": f"what is {n}? " + "x" * 3000} for n in range(20_000)])
    for how in (signal.SIGKILL, signal.SIGINT):
        parent = subprocess.Popen(
            [sys.executable, "-m", "grpo_sentinel.cli", "check", "data", path, "--jobs", "2"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while len(children := psutil.Process(parent.pid).children()) < 2 and parent.poll() is None:
            assert time.monotonic() < deadline
        os.kill(parent.pid, how)
        _, told = parent.communicate(timeout=60)
        gone, alive = psutil.wait_procs(children, timeout=30)
        assert (alive, len(gone)) == ([], 2)
        assert "Traceback" not in told


def test_what_a_process_of_jobs_refuses_and_a_file_that_goes_away_are_one_sentence(
    tmp_path: Path, monkeypatch: Any, small_blocks: list[int]
) -> None:
    from grpo_sentinel.preflight import data_pass

    def refuse(*_: Any) -> Any:
        raise SentinelError("this cannot be judged; give something else")

    path = write(tmp_path / "a.jsonl", good(400))
    nothing = write(tmp_path / "b.jsonl", [{"colour": "red"}])
    with pytest.raises(SentinelError, match="no prompt is recognised"):
        check_data([path, nothing], DataOptions(jobs=2))
    monkeypatch.setattr(data_pass, "unpacked", refuse)
    with pytest.raises(SentinelError, match="cannot be judged"):
        check_data([path], DataOptions(jobs=2))
    assert psutil.Process().children() == []


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(st.binary(max_size=30).filter(lambda line: b"\n" not in line), max_size=40), size=st.integers(1, 60),
    form=st.sampled_from(["a.jsonl", "a.jsonl.gz", "a.csv", "a.json"]),
)  # fmt: skip
def test_blocks_of_a_file_hold_every_row_once_with_its_number_and_survive_being_packed(
    tmp_path: Path, lines: list[bytes], size: int, form: str
) -> None:
    from grpo_sentinel.preflight import data_text
    from grpo_sentinel.preflight.data_blocks import unpacked
    from grpo_sentinel.preflight.data_sources import read_blocks

    path = tmp_path / form
    content = b"\n".join([{"a.csv": b"a,b", "a.json": b"[{}"}.get(form, b"{}"), *lines])
    path.write_bytes(gzip.compress(content) if form.endswith(".gz") else content)
    found = []
    with pytest.MonkeyPatch.context() as patch:
        for block_bytes in (1 << 20, size):
            patch.setattr(data_text, "BLOCK_BYTES", block_bytes)
            blocks = list(read_blocks(str(path)))
            again = [unpacked(type(one).__name__, one.source, one.number, one.packed()) for one in blocks]
            found += [[(row.number, row.value, row.error, row.fault) for block in side for row in block.rows()]
                      for side in (blocks, again)]  # fmt: skip
    assert found[0] == found[1] == found[2] == found[3]
    if form == "a.jsonl":
        numbers = [number for number, line in enumerate([b"{}", *lines], 1) if line.strip()]
        assert [row[0] for row in found[0]] == numbers


@pytest.mark.torch
def test_progress_through_a_table_grows_with_its_rows_to_the_size_of_the_file(
    tmp_path: Path, small_blocks: list[int]
) -> None:
    for path in map(Path, every_table(tmp_path)):
        file = path if path.is_file() else next(path.glob("*.arrow"))
        positions: list[int] = []

        def progress(_: str, position: int, rows: int, told: list[int] = positions) -> None:
            told.append(position)

        check_data([str(file)], DataOptions(), progress)
        if file.name not in ("cut.parquet", "a.jsonl.zst"):
            assert positions == sorted(positions)
            assert 0 < positions[0] < positions[-1] / 2, file.name
            assert positions[-1] >= file.stat().st_size * 0.8
