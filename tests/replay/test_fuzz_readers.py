"""Nothing that stands in a file makes a reader crash, hang or grow: every failure is a sentence."""

from __future__ import annotations

import gzip
from pathlib import Path

import past_runs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo_sentinel.cli.replaying import play
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.history.sources import open_path
from grpo_sentinel.rules import load_rules

RULES = load_rules()
NAMES = ("trainer_state.json", "x.csv", "x.jsonl", "x.log", "events.out.tfevents.1", "x.sqlite", "x.gz", "x.tsv", "x")
QUICK = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
_PIECE = st.sampled_from(
    [b'{"log_history": [', b'{"step": 1', b', "loss": ', b"NaN", b"1e999", b"}", b"]", b",", b"\n", b"step,", b"grad_norm", b"nan",
     b"-9223372036854775809", b'"values": {', b"\x1f\x8b\x08\x00", b"SQLite format 3\x00", b"\xff\xfe", b'"', b"'loss': ", b"step:1 - ",
     b"[" * 200, b'{"a":' * 200, b"iteration 3/4 |", b"9" * 400, b" - my run", b"\r", b"\x00"]
)  # fmt: skip


def read_all(path: Path) -> None:
    try:
        for source in open_path(path):
            play(source, RULES)
    except SentinelError:
        return  # said in a sentence; anything else would fail here


@pytest.mark.parametrize("name", NAMES)
@given(data=st.lists(_PIECE, max_size=30).map(b"".join))
@QUICK
def test_no_mixture_of_real_pieces_makes_a_reader_fail(name: str, data: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    read_all(tmp_path / name)


@pytest.mark.parametrize("kind", past_runs.KINDS)
@given(at=st.floats(0, 1), piece=st.binary(min_size=1, max_size=40), cut=st.booleans())
@QUICK
def test_no_damage_to_a_real_file_makes_its_reader_fail(kind: str, at: float, piece: bytes, cut: bool, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    path = next(whole.iterdir(), None) if whole.exists() else None
    if path is None:
        path = past_runs.KINDS[kind](whole, broken=True)
    data = path.read_bytes()
    place = int(at * len(data))
    target = tmp_path / path.name
    for old in tmp_path.glob(f"{path.name}*"):
        old.unlink()
    target.write_bytes(data[:place] + piece + (b"" if cut else data[place + len(piece) :]))
    read_all(target)


@given(at=st.floats(0, 1), piece=st.binary(min_size=1, max_size=8))
@QUICK
def test_no_damage_to_an_archive_makes_a_reader_fail(at: float, piece: bytes, tmp_path: Path) -> None:
    data = gzip.compress(past_runs.jsonl(tmp_path / "x", broken=False).read_bytes(), mtime=0)
    place = int(at * len(data))
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(data[:place] + piece + data[place + len(piece) :])
    read_all(path)
