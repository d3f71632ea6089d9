"""One run with a NaN gradient at step 12 and one that is healthy, written as every kind of source."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from grpo_sentinel.config import HistoryConfig
from grpo_sentinel.history import HistoryStore
from grpo_sentinel.history.sources.tfrecord import masked_crc
from grpo_sentinel.records import EventRecord, Kind, Mode, Sample, StepRecord
from grpo_sentinel.views import SinkBatch

STEPS = 30
BAD = 12
START_NS = 1_700_000_000_000_000_000


def rows(broken: bool) -> Iterator[tuple[int, dict[str, float]]]:
    draw = random.Random(7)
    for step in range(1, STEPS + 1):
        yield step, {
            "loss": 0.01 * draw.random(), "grad_norm": float("nan") if broken and step == BAD else 0.5 + 0.1 * draw.random(),
            "reward": 0.5 + 0.1 * draw.random(), "reward_std": 0.3 + 0.05 * draw.random(), "entropy": 0.8 + 0.05 * draw.random(),
            "learning_rate": 1e-6,
        }  # fmt: skip


def trainer_state(path: Path, broken: bool) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    history = [{"step": step, "epoch": 0.1, **row} for step, row in rows(broken)]
    body = {"best_metric": None, "log_history": [*history, {"step": STEPS, "train_runtime": 3.0}], "max_steps": STEPS}
    (path / "trainer_state.json").write_text(json.dumps(body, indent=2))
    return path / "trainer_state.json"


def csv(path: Path, broken: bool) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    names = list(next(rows(False))[1])
    lines = [",".join(["Step", *(f"my run - train/{name}" for name in names)])]
    lines += [",".join([str(step), *(str(row[name]) for name in names)]) for step, row in rows(broken)]
    (path / "wandb.csv").write_text("\n".join(lines).replace("Step,", "step,", 1))
    return path / "wandb.csv"


def long_csv(path: Path, broken: bool) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    lines = ["step,key,value", *(f"{step},{name},{value}" for step, row in rows(broken) for name, value in row.items())]
    (path / "metrics.csv").write_text("\n".join(lines))
    return path / "metrics.csv"


def jsonl(path: Path, broken: bool) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "rows.jsonl").write_text("".join(json.dumps({"_step": step, "_timestamp": 1.7e9 + step, **row}) + "\n" for step, row in rows(broken)))
    return path / "rows.jsonl"


def text(path: Path, broken: bool) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    lines = [
        f" 2%|▏  | {step}/{STEPS} [03:44<2:26:29, 22.25s/it]\n{ dict(row.items()) }" for step, row in rows(broken)
    ]
    (path / "train.log").write_text("\n".join(lines))
    return path / "train.log"


def log_of(framework: str) -> Callable[[Path, bool], Path]:
    """The text log of a framework, as it prints steps."""

    def write(path: Path, broken: bool) -> Path:
        path.mkdir(parents=True, exist_ok=True)
        lines = [line for step, row in rows(broken) for line in PRINTED[framework](step, row)]
        (path / f"{framework}.log").write_text("\n".join(lines) + "\n")
        return path / f"{framework}.log"

    return write


def _verl(step: int, row: dict[str, float]) -> list[str]:
    names = {"loss": "actor/pg_loss", "grad_norm": "actor/grad_norm", "reward": "critic/score/mean", "entropy": "actor/entropy",
             "learning_rate": "actor/lr"}  # fmt: skip
    pairs = " - ".join(f"{name}:{row[key]}" for key, name in names.items())
    return [f"(main_task pid=7) step:{step} - global_seqlen/mean:512.0 - {pairs} - timing_s/step:12.1"]


def _openrlhf(step: int, row: dict[str, float]) -> list[str]:
    body = {"policy_loss": row["loss"], "grad_norm": row["grad_norm"], "reward": row["reward"], "kl": 0.01, "actor_lr": 1e-6}
    return [f"2026-01-01 10:00:00 INFO ppo_trainer.py:300 -- ✨ Global step {step}: {body}"]


def _swift(step: int, row: dict[str, float]) -> list[str]:
    body = {**row, "kl": 0.01, "global_step/max_steps": f"{step}/{STEPS}", "percentage": "3.3%", "memory(GiB)": 61.2}
    return [f"Train:  3%|▎| {step}/{STEPS} [00:10<05:00, 10.0s/it]", str(body)]


def _slime(step: int, row: dict[str, float]) -> list[str]:
    return [
        f"rollout {step}: {{'rollout/raw_reward': {row['reward']}, 'rollout/response_lengths': 210.0}}",
        f"step {step}: {{'train/loss': {row['loss']}, 'train/grad_norm': {row['grad_norm']}, 'train/step': {step}}}",
    ]


def _nemo(step: int, row: dict[str, float]) -> list[str]:
    """Its console has no gradient norm; the loss is what turns NaN."""
    loss = row["loss"] + 0 * row["grad_norm"]
    return [f"{'=' * 25} Step {step}/{STEPS} {'=' * 25}", "📊 Training Results:", f"  • Loss: {loss:.4f}",
            "  • Generation KL Error: 0.0010", f"  • Avg Reward: {row['reward']:.4f}", "⏱️  Timing:", "  • Total step time: 35.70s"]  # fmt: skip


PRINTED = {"verl": _verl, "openrlhf": _openrlhf, "swift": _swift, "slime": _slime, "nemo": _nemo}


def history(path: Path, broken: bool) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    names = {"loss": "policy.loss", "grad_norm": "gradient.norm_preclip", "reward": "reward.mean"}
    store = HistoryStore(path / "history.sqlite", HistoryConfig(retention_days=36500))
    for step, row in rows(broken):
        wall_ns = START_NS + step * 10**9
        records = tuple(
            StepRecord(
                run_id="demo", rank=rank, sequence=step, step=step, kind=Kind.STEP, mode=Mode.TRAIN, micro_batch=0, generation=0,
                monotonic_ns=wall_ns, wall_ns=wall_ns, values={names[key]: row[key] for key in names},
            )
            for rank in range(2)
        )  # fmt: skip
        events = (
            EventRecord(run_id="demo", rank=1, sequence=1, step=step, wall_ns=wall_ns, kind="nonfinite",
                        body={"where": "before_reduce", "names": ["layer.weight"]}),
        ) if broken and step == BAD else ()  # fmt: skip
        samples = (Sample(source="host", entity="host", wall_ns=wall_ns, values={"device.host_cpu_ratio": 0.2}),)
        store.write(SinkBatch(run_id="demo", node="n", wall_ns=wall_ns, records=records, events=events, samples=samples))
        store.flush()
    store.close()
    return path / "history.sqlite"


def event_file(path: Path, broken: bool) -> Path:
    """A TensorBoard file, packed by hand."""
    path.mkdir(parents=True, exist_ok=True)
    target = path / "events.out.tfevents.1700000000.host.1.0"
    data = record(b"\x09" + struct.pack("<d", 1.7e9) + b"\x1a\x0dbrain.Event:2")
    for step, row in rows(broken):
        for name, value in row.items():
            data += record(scalar(step, f"train/{name}", value))
    target.write_bytes(data)
    return target


def scalar(step: int, tag: str, value: float) -> bytes:
    body = b"\x0a" + bytes([len(tag)]) + tag.encode() + b"\x15" + struct.pack("<f", value)
    summary = b"\x0a" + bytes([len(body)]) + body
    return b"\x09" + struct.pack("<d", 1.7e9 + step) + b"\x10" + varint(step) + b"\x2a" + varint(len(summary)) + summary


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def record(data: bytes) -> bytes:
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", masked_crc(head)) + data + struct.pack("<I", masked_crc(data))


KINDS = {
    "trainer_state": trainer_state, "csv": csv, "csv (long)": long_csv, "jsonl": jsonl, "text": text, "history": history,
    "tensorboard": event_file, **{f"text ({framework})": log_of(framework) for framework in PRINTED},
}  # fmt: skip
