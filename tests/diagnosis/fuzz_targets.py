"""Every reader of files as a function of bytes, for hypothesis and for atheris: each may refuse in a sentence, no more.

As a program it fuzzes one of them with atheris:  `python tests/diagnosis/fuzz_targets.py TARGET [libFuzzer options]`.
"""

from __future__ import annotations

import gzip
import importlib
import io
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import fuzz_files

from grpo_sentinel.diagnosis.reading import read_into
from grpo_sentinel.diagnosis.redact import redact
from grpo_sentinel.diagnosis.triage import judge
from grpo_sentinel.diagnosis.view import LogView
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.history.logs.lines import lines_of
from grpo_sentinel.history.sources import open_path
from grpo_sentinel.history.sources.base import Progress
from grpo_sentinel.history.sources.state import entries, numbers
from grpo_sentinel.history.sources.table import csv_rows, json_rows
from grpo_sentinel.history.sources.tensorboard import Damaged, scalars, steps
from grpo_sentinel.history.sources.text import items_of
from grpo_sentinel.history.sources.tfrecord import masked_crc, records
from grpo_sentinel.incidents.bundle import open_bundle


def log(data: bytes) -> None:
    """The whole of `diagnose` on one log, to the text of its report."""
    view = LogView()
    for line in lines_of(io.BytesIO(data), "log"):
        view.feed(line)
    view.close()
    json.dumps(redact(json.dumps(judge(view).as_json())))


def replayed_log(data: bytes) -> None:
    """The same lines on the way into a replay."""
    for _ in items_of(lines_of(io.BytesIO(data), "log"), "run"):
        pass


def any_log_file(data: bytes) -> None:
    """A file by its name's ending and its first bytes: gzip, state, text."""
    with tempfile.TemporaryDirectory() as place:
        for name, body in (("a.log", data), ("b.log.gz", gzip.compress(data[:200])[: 20 + len(data)]), ("trainer_state.json", data),
                           ("x.csv", data), ("events.out.tfevents.1", data)):  # fmt: skip
            path = Path(place) / name
            path.write_bytes(body)
            try:
                read_into(LogView(), str(path))
            except SentinelError:
                continue


def trainer_state(data: bytes) -> None:
    progress = Progress()
    for number, entry in enumerate(entries(io.BytesIO(data), progress)):
        numbers(entry)
        if number > 10_000:
            break


def csv_table(data: bytes) -> None:
    for row in csv_rows(iter(data.decode("utf-8", "replace").splitlines(keepends=True)), Progress()):
        numbers(row)


def json_lines(data: bytes) -> None:
    for row in json_rows(iter(data.decode("utf-8", "replace").splitlines(keepends=True)), Progress()):
        numbers(row)


def tfrecord(data: bytes) -> None:
    """Frames as they are, which a fuzzer hardly gets past for their checksums."""
    for _ in records(io.BytesIO(data), Progress()):
        pass


def tensorboard(data: bytes) -> None:
    """The messages inside, framed with right checksums."""
    framed = b""
    for part in data.split(b"\xff\xfe")[:20]:
        head = len(part).to_bytes(8, "little")
        framed += head + masked_crc(head).to_bytes(4, "little") + part + masked_crc(part).to_bytes(4, "little")
    try:
        for _ in steps(scalars(records(io.BytesIO(framed), Progress()))):
            pass
    except Damaged:
        pass


def replay_source(data: bytes) -> None:
    """A file of unknown kind, given to replay: the first byte chooses its name."""
    names = ("x", "x.csv", "x.jsonl", "x.log", "events.out.tfevents.1", "trainer_state.json", "x.gz", "x.sqlite")
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / names[data[0] % len(names) if data else 0]
        path.write_bytes(data[1:])
        try:
            for source in open_path(path):
                for _ in source.items(Progress()):
                    pass
        except SentinelError:
            pass


_PARTS = (
    "manifest.json",
    "findings.json",
    "config.json",
    "run.json",
    "events.jsonl",
    "steps/rank-0.jsonl.gz",
    "device.jsonl.gz",
)


def bundle(data: bytes) -> None:
    """An incident's folder: the first byte chooses which of its files is replaced."""
    if not data:
        return
    place = Path(tempfile.mkdtemp())
    try:
        for name, body in bundle_files().items():
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_bytes(body)
        name = _PARTS[data[0] % len(_PARTS)]
        (place / name).write_bytes(gzip.compress(data[1:], 1) if name.endswith(".gz") and data[0] < 128 else data[1:])
        try:
            with open_bundle(place) as opened:
                opened.damage()
                source = opened.source()
                for stream in (source.records, source.events, source.samples):
                    for _ in stream():
                        pass
        except SentinelError:
            pass
    finally:
        shutil.rmtree(place)


def bundle_files() -> dict[str, bytes]:
    """The files of a whole small bundle, as `grpo_sentinel.incidents` reads them."""
    from grpo_sentinel.incidents.places import SCHEMA, SCHEMA_VERSION

    return {
        "manifest.json": json.dumps(
            {"schema": SCHEMA, "version": SCHEMA_VERSION, "incident": ABOUT, "files": []}
        ).encode(),
        "findings.json": b'{"findings": [], "transitions": []}',
        "config.json": b'{"trainer": {}, "sentinel": {}}',
        "run.json": b"{}",
        "events.jsonl": b"",
        "steps/rank-0.jsonl.gz": gzip.compress(b""),
        "device.jsonl.gz": gzip.compress(b""),
    }


ABOUT: dict[str, object] = {
    "incident_id": "i", "run_id": "r", "node": "n", "state": "open", "opened_wall_ns": 1, "updated_wall_ns": 1, "title": "t",
    "root_id": "", "onset_step": 1, "last_step": 1, "ended": "",
}  # fmt: skip


def archive(data: bytes) -> None:
    """A packed incident."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "x.tar.gz"
        path.write_bytes(data if data[:2] == b"\x1f\x8b" else gzip.compress(data, 1))
        try:
            with open_bundle(path) as opened:
                opened.damage()
        except SentinelError:
            pass


TARGETS: dict[str, Callable[[bytes], None]] = {
    "log": log, "replayed_log": replayed_log, "any_log_file": any_log_file, "trainer_state": trainer_state, "csv": csv_table,
    "json_lines": json_lines, "tfrecord": tfrecord, "tensorboard": tensorboard, "replay_source": replay_source,
    "bundle": bundle, "archive": archive, **fuzz_files.TARGETS,
}  # fmt: skip

DICTIONARY = (
    b"{'loss': ", b"nan", b"1e999", b"'grad_norm': ", b"step:", b" - ", b"actor/lr:", b"None", b"}", b"OVERFLOW! ", b"loss scale: ",
    b"Global step ", b"iteration ", b"|", b" 10/20 [00:01<00:02", b"it]", b"Traceback (most recent call last):", b'  File "a", line 3, in f',
    b"KeyError: 'x'", b"CUDA out of memory", b"\r", b"\n", b"\x1b[31m", b"[rank1]: ", b"Step\tTraining Loss", b"===== Step 7/100 =====",
    b"  \xe2\x80\xa2 Loss: 0.5", b"collective operation timeout: WorkNCCL(SeqNum=4, OpType=_ALLGATHER_BASE, NumelIn=0, NumelOut=112",
    b"step=10, skipped=6", b'{"log_history": [', b'{"step": 1', b', "loss": ', b"NaN", b"]", b",", b'"values": {', b"\xff\xfe",
    b"[" * 200, b'{"a":' * 200, b"9" * 400, b"\x1f\x8b\x08\x00", b"rollout 3: {'rollout/raw_reward': ", b"-1e-323", b"\x00", b"step,metric,value\n",
    *fuzz_files.DICTIONARY,
)  # fmt: skip


def main() -> None:
    """Fuzz one target with atheris; libFuzzer's options follow its name."""
    import atheris

    name = sys.argv.pop(1)
    with tempfile.NamedTemporaryFile("w", suffix=".dict", delete=False) as words:
        for word in DICTIONARY:
            words.write('"' + "".join(f"\\x{byte:02x}" for byte in word[:120]) + '"\n')
    for module in [one for one in sys.modules if one.startswith(("grpo_sentinel", "fuzz_files"))]:
        del sys.modules[module]
    sys.path.insert(0, str(Path(__file__).parent))
    with atheris.instrument_imports(
        include=["grpo_sentinel", "fuzz_targets", "fuzz_files"]
    ):  # once more, with counters in them
        target = importlib.import_module("fuzz_targets").TARGETS[name]
    atheris.Setup([*sys.argv, f"-dict={words.name}", "-max_len=4096", "-timeout=20", "-rss_limit_mb=1500"], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
