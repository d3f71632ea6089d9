"""torch's flight recorder: asked while a rank hangs in a collective, put into words and into the bundle, never unpickled."""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "halting"))

from run_support import Started, cli, directory_of, last_step, until

from grpo_sentinel.agent.collectives import Collectives, find_dump, own_files
from grpo_sentinel.incidents.bundle import Bundle
from grpo_sentinel.incidents.collectives import answers, asked, told_by
from grpo_sentinel.incidents.places import bundles
from grpo_sentinel.protocol.collectives import answer_of, ask, pipe_of

pytestmark = [pytest.mark.torch, pytest.mark.skipif(find_dump({}) is None, reason="this torch has no JSON dump")]

SOME = {
    "entries": [
        {"pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": number, "profiling_name": "gloo:all_reduce",
         "input_sizes": [[7]], "input_dtypes": ["Float"], "time_created_ns": 10**9, "is_p2p": False}
        for number in (41, 42)
    ],
    "pg_status": {"0": {"last_completed_collective": "41", "last_enqueued_collective": "42"}},
}  # fmt: skip


@pytest.fixture
def started() -> Iterator[Started]:
    with Started() as processes:
        yield processes


class Marker:
    """Unpickled it would leave a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_a_question_is_answered_whole_and_nobody_waits_for_a_rank_that_has_left(tmp_path: Path) -> None:
    rank = Collectives(tmp_path, 3, lambda **_: json.dumps(SOME).encode())
    text = answers(tmp_path, asked(tmp_path, [2, 3]))
    assert "rank 3: default_pg: 41 completed, 42 begun; not completed: 42 gloo:all_reduce [[7]] Float for" in text
    assert "rank 2" not in text, "nobody waits at its pipe"
    assert os.stat(answer_of(tmp_path, 3)).st_mode & 0o077 == 0
    rank.close()
    rank._thread.join(5)
    assert not rank._thread.is_alive()
    assert not ask(tmp_path, 3)
    assert not pipe_of(tmp_path, 3).exists()
    assert answers(tmp_path, {}) == ""


def test_more_than_has_room_is_cut_to_what_is_under_way(tmp_path: Path) -> None:
    given = []

    def dump(*, includeCollectives: bool, onlyActive: bool) -> bytes:
        given.append(onlyActive)
        return json.dumps(SOME).encode() if onlyActive else b"x" * (1 << 20)

    rank = Collectives(tmp_path, 0, dump)
    rank.write()
    assert given == [False, True]
    assert json.loads(answer_of(tmp_path, 0).read_bytes()) == SOME
    rank.close()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"pg_status": {"0": 3}}', b'{"pg_status": {"0": {}}}', b"\x80\x04."]
)
def test_an_answer_that_makes_no_sense_is_said_to(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "answer"
    path.write_bytes(content)
    assert told_by(path, time.time_ns()).startswith("not readable")


def test_the_recorder_is_off_where_its_size_is_zero_and_dump_files_are_those_the_user_named() -> None:
    assert find_dump({"TORCH_FR_BUFFER_SIZE": "0"}) is None
    assert find_dump({"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}) is None
    assert own_files({}) == ""
    assert own_files({"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/d/rank_"}) == "/d/rank_"


@pytest.mark.slow
def test_a_hang_in_a_collective_shows_which_one_and_torchs_own_dump_is_kept_unopened(
    started: Started, tmp_path: Path
) -> None:
    config = tmp_path / "sentinel.yaml"
    body = {"http": {"port": 0}, "launch": {"linger_seconds": 2}, "collectors": {"nvml": {"enabled": False}}}
    config.write_text(json.dumps(body))
    (tmp_path / "fr_1").write_bytes(pickle.dumps(Marker(tmp_path / "unpickled")))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    launch = started.cli(
        "launch", "--config", config, "--run-id", "two", "--", *torchrun, Path(__file__).with_name("hanging_ranks.py"),
        env={"TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "fr_")},
    )  # fmt: skip
    until(lambda: directory_of("two").is_dir() and last_step("two") == 4, 60.0, what="four steps")
    until((directory_of("two") / "daemon.json").exists, 30.0, what="the sidecar")
    until((tmp_path / "fr_0").exists, 30.0, what="torch's dump")
    os.utime(tmp_path / "fr_1")
    assert cli("capture", "two", "--config", config, "--kind", "stacks").returncode == 0
    root = tmp_path / "state" / "grpo-sentinel" / "incidents"

    def complete() -> Bundle | None:
        for path, manifest in bundles(root):
            if {"stacks", "collectives"} <= {one["what"] for one in manifest["files"]}:
                return Bundle(path)
        return None

    bundle = until(complete, 60.0, what="a bundle with stacks and collectives")
    (stacks,) = (bundle.path / "stacks").glob("stacks-*.txt")
    told = stacks.read_text().partition("==== collectives")[2]
    of = dict(line.split(": ", 1) for line in told.splitlines() if line.startswith("rank "))
    assert "not completed" in of["rank 0"]
    assert "gloo:all_reduce" in of["rank 0"], told
    assert "not completed" not in of["rank 1"], "it hangs in its reward, before the collective"
    names = {path.name for path in (bundle.path / "collectives").iterdir()}
    assert names == {"rank-00000.json", "rank-00001.json", "rank-00000.pickle", "rank-00001.pickle"}
    assert (bundle.path / "collectives" / "rank-00001.pickle").read_bytes() == (tmp_path / "fr_1").read_bytes()
    assert not (tmp_path / "unpickled").exists()
    launch.send_signal(signal.SIGTERM)
    launch.communicate(timeout=60)
    assert not Bundle(bundle.path).damage()
    assert "collectives: `collectives/rank-00000.json`" in (bundle.path / "report.md").read_text()
    assert cli("incident", "export", bundle.path, "--redact", "-o", tmp_path / "out.tar.gz").returncode == 0
    with tarfile.open(tmp_path / "out.tar.gz") as archive:
        assert not [name for name in archive.getnames() if "collectives/" in name or "stacks/" in name]
