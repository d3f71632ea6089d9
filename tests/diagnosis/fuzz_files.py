"""Readers of files that a user names - data, settings, rules, checkpoints, snapshots, histories - as functions of bytes."""

from __future__ import annotations

import gzip
import io
import itertools
import sqlite3
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from grpo_sentinel.config import load_config
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.halting import inert_pickle, safetensors
from grpo_sentinel.halting.torch_file import CannotTell, scan_torch_file
from grpo_sentinel.history.sources import open_path
from grpo_sentinel.history.sources.base import Progress
from grpo_sentinel.preflight.checkpoint import check_checkpoint
from grpo_sentinel.preflight.config_check import check_config
from grpo_sentinel.preflight.data import DataOptions, check_data
from grpo_sentinel.preflight.data_checks import Limits
from grpo_sentinel.preflight.optimizer_state import read_optimizer_state
from grpo_sentinel.preflight.snapshot import load as load_snapshot
from grpo_sentinel.rules.load import _read as read_rules

_PACKERS: dict[str, Callable[[bytes], bytes]] = {"": lambda body: body, ".gz": lambda body: gzip.compress(body, 1)}
_CHECKPOINT_FILES = ("model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json", "rng_state.pth", "config.json",
                     "model.safetensors.index.json", "pytorch_model.bin", "latest", "zero_to_fp32.py", ".metadata")  # fmt: skip


@contextmanager
def _file(name: str, body: bytes) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / name
        path.write_bytes(body)
        yield path


def data_file(data: bytes) -> None:
    """`check data` on any file: the first byte chooses its name."""
    names = (
        "x.jsonl",
        "x.json",
        "x.csv",
        "x.tsv",
        "x.jsonl.gz",
        "x.csv.gz",
        "x.parquet",
        "x.arrow",
        "x.jsonl.zst",
        "x.txt",
        "x.json.bz2",
    )
    name = names[data[0] % len(names) if data else 0]
    body = gzip.compress(data[1:], 1) if name.endswith(".gz") and data[:1] < b"\x80" else data[1:]
    with _file(name, body) as path, suppress(SentinelError):
        check_data(
            [str(path)],
            DataOptions(limits=Limits(reward_low=0, reward_high=1, max_length=50), write_clean=path.parent / "clean"),
        )


def data_rows(data: bytes) -> None:
    """Rows with a prompt, each a mapping of what the bytes hold."""
    rows = b"".join(b'{"prompt": "a", "reward": 1, "v": ' + part + b"}\n" for part in data.split(b"\n")[:50])
    data_file(b"\x00" + rows)


def settings(data: bytes) -> None:
    """Our own settings, and a trainer's."""
    for name in ("x.yaml", "x.json"):
        with _file(name, data) as path:
            for read in (check_config, load_config):
                try:
                    read(path)
                except SentinelError:
                    continue


def rules(data: bytes) -> None:
    """A rule with parts of its text replaced."""
    text = (
        b"layer: data\nrules:\n  - name: mine\n    severity: warning\n    detect: "
        + data
        + b"\n    message: m\n    why: w\n    remedies: [r]\n"
    )
    for body in (text, data):
        with suppress(SentinelError):
            read_rules(body.decode("utf-8", "replace"), "rules.yaml", {}, None, builtin=False)


def pickled(data: bytes) -> None:
    """A pickle as the inert machine reads it, alone and inside torch's archive."""
    with suppress(ValueError):
        inert_pickle.read(data)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("archive/data.pkl", data)
        file.writestr("archive/data/0", b"\x00" * 64)
        file.writestr("archive/byteorder", b"little")
    for body in (archive.getvalue(), data):
        try:
            scan_torch_file(io.BytesIO(body), "x.pt", with_torch=False)
        except (CannotTell, ValueError):
            continue


def tensors_header(data: bytes) -> None:
    """A header of safetensors, of the right length."""
    for body in (len(data).to_bytes(8, "little") + data + b"\x00" * 64, data):
        with _file("x.safetensors", body) as path:
            try:
                safetensors.read_header(path)
            except ValueError:
                continue


def checkpoint(data: bytes) -> None:
    """A checkpoint's folder: the first byte chooses which of its files this is."""
    if not data:
        return
    with _file(_CHECKPOINT_FILES[data[0] % len(_CHECKPOINT_FILES)], data[1:]) as path:
        read_optimizer_state(path.parent)
        with suppress(SentinelError):
            check_checkpoint(path.parent)


def snapshot(data: bytes) -> None:
    with _file("x.json", data) as path, suppress(SentinelError):
        load_snapshot(path)


def history(data: bytes) -> None:
    """A history whose tables hold what the bytes say, and a file of SQLite that is spoiled."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "history.sqlite"
        base = sqlite3.connect(path)
        with base:
            for table, columns in (
                ("runs", "run_id, node, started_ns, meta"),
                ("steps", "run_id, step, rank, body"),
                ("meta", "key, value"),
            ):
                base.execute(f"CREATE TABLE {table} ({columns})")
                base.execute(
                    f"INSERT INTO {table} VALUES ({', '.join('?' * (columns.count(',') + 1))})",
                    [data, 1, data[:9], data][: columns.count(",") + 1],
                )
        base.close()
        _open(path)
        body = bytearray(path.read_bytes())
        at = int.from_bytes(data[:2], "big") % len(body)
        body[at : at + len(data)] = data
        path.write_bytes(bytes(body))
        _open(path)


def _open(path: Path) -> None:
    with suppress(SentinelError):
        for source in open_path(path):
            for _ in itertools.islice(source.items(Progress()), 1000):
                pass


TARGETS: dict[str, Callable[[bytes], None]] = {
    "data_file": data_file, "data_rows": data_rows, "settings": settings, "rules": rules, "pickle": pickled,
    "safetensors": tensors_header, "checkpoint": checkpoint, "snapshot": snapshot, "history": history,
}  # fmt: skip

DICTIONARY = (
    b'{"prompt": ', b'[{"role": "user", "content": ', b'"messages": ', b'"reward": ', b"prompt,answer\n", b"PAR1", b"ARROW1", b"BZh9", b"\x28\xb5\x2f\xfd",
    b"{kind: bound, signal: reward.mean, max: ", b"&a [*a]", b"<<: *a", b"!!python/object/apply:os.system [x]", b"- ", b": ", b"learning_rate: ", b"num_generations: ",
    b"actor_rollout_ref: {rollout: {n: ", b"1e400", b".nan", b"\x80\x02}q\x00", b"ctorch._utils\n_rebuild_tensor_v2\n", b"(X\x03\x00\x00\x00abc", b"Q", b"R.", b"ccopy_reg\n_reconstructor\n",
    b'{"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}', b'"__metadata__": {}', b"18446744073709551615", b"-1", b'"schema": "grpo-sentinel/snapshot", "version": 1',
)  # fmt: skip
