"""Nothing that stands in a file makes a reader crash, hang or grow: each may refuse in a sentence, no more."""

from __future__ import annotations

import importlib.util
import json
import resource
import subprocess
import sys
from pathlib import Path

import fuzz_targets
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.halting import inert_pickle

PIECES = st.lists(st.one_of(st.sampled_from(fuzz_targets.DICTIONARY), st.binary(max_size=30)), max_size=25).map(
    b"".join
)


@pytest.mark.parametrize("name", fuzz_targets.TARGETS)
@given(data=PIECES)
@example(data=b"\x00" + b"[" * 100_000)
@example(data=b"\x01" + b'{"a":' * 100_000)
@settings(max_examples=25, deadline=None)
def test_no_bytes_make_a_reader_fail(name: str, data: bytes) -> None:
    fuzz_targets.TARGETS[name](data)


def test_the_bundle_that_is_spoiled_piece_by_piece_is_whole_before(tmp_path: Path) -> None:
    for name, body in fuzz_targets.bundle_files().items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(body)
    with fuzz_targets.open_bundle(tmp_path) as bundle:
        assert bundle.damage() == []
        assert list(bundle.source().records()) == []


@pytest.mark.parametrize("files", ["missing", None, 3, ["a"], [{"name": "a"}], [{"name": "../x", "sha256": "", "what": "log"}],
                                   [{"name": "/etc/passwd", "sha256": "", "what": "log"}]])  # fmt: skip
def test_a_bundle_whose_manifest_lists_no_files_or_files_elsewhere_is_refused(files: object, tmp_path: Path) -> None:
    body = json.loads(fuzz_targets.bundle_files()["manifest.json"])
    body = {k: v for k, v in body.items() if k != "files"} | ({} if files == "missing" else {"files": files})
    (tmp_path / "manifest.json").write_text(json.dumps(body))
    with pytest.raises(SentinelError), fuzz_targets.open_bundle(tmp_path):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("name", fuzz_targets.TARGETS)
def test_atheris_finds_nothing_in_a_quarter_of_a_minute(name: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip(
            "atheris is not installed: the extra `dev` brings it to Linux on x86_64 with Python 3.11 to 3.13, where it has wheels"
        )
    seeds = tmp_path / "seeds"
    seeds.mkdir()
    for number, log in enumerate(sorted((Path(__file__).parent / "data" / "trl-logs").glob("*.log"))[:8]):
        (seeds / str(number)).write_bytes(log.read_bytes()[-4000:])
    command = [
        sys.executable,
        fuzz_targets.__file__,
        name,
        str(seeds),
        "-max_total_time=15",
        f"-artifact_prefix={tmp_path}/",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_log_of_many_megabytes_is_read_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "big.log"
    row = "step:{0} - actor/pg_loss:0.01 - actor/grad_norm:0.3 - critic/score/mean:0.4 - x/{0}:1.0\n"
    with path.open("w") as file:
        for step in range(20_000):
            file.write(
                row.format(step) + "".join(f"[rank{step % 8}]: TypeError: number {step} of {k}\n" for k in range(3))
            )
    script = (
        "import resource, sys; from grpo_sentinel.diagnosis.triage import judge; from grpo_sentinel.diagnosis.view import view_of\n"
        "from grpo_sentinel.history.logs.lines import read_lines; base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "judge(view_of(read_lines(sys.argv[1]))); print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, timeout=300, check=True
    )
    assert int(done.stdout) * resource.getpagesize() / 4096 < 60_000  # KiB


def test_a_pickle_of_a_few_bytes_that_doubles_at_every_step_costs_nothing() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match="damaged"):  # a name made of names
        inert_pickle.read(b"\x80\x04" + b"\x8c\x01a" + b"2\x93" * 40 + b".")
    tree = inert_pickle.read(b"\x80\x04]" + b"2\x86" * 40 + b"2R.")  # a pair of pairs, called like a function
    assert [node.name for _, node in inert_pickle.walk(tree)] == ["tuple"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB
