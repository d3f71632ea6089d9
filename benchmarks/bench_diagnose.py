"""Diagnosis: seconds for 100 MB of log, from a slice, and the memory of it."""

from __future__ import annotations

import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.record import record as store
from grpo_sentinel.diagnosis.triage import judge
from grpo_sentinel.diagnosis.view import view_of
from grpo_sentinel.history.logs.lines import read_lines

SLICE_BYTES = 20_000_000
_WORDS = ("the", "model", "answered", "with", "reward", "thought", "and", "wrote", "\\boxed{42}", "because", "length")


def main(record: Callable[..., None] = store) -> None:
    """Measure and store the figures."""
    for name, row in (("trl", _trl), ("verl", _verl)):
        with tempfile.TemporaryDirectory(prefix="grpo-sentinel-bench-") as place:
            path = Path(place) / "train.log"
            size = _write(path, row)
            started = time.process_time()
            judge(view_of(read_lines(path)))
            seconds = (time.process_time() - started) * 100e6 / size
        record(f"diagnose_100_mb_{name}_s", seconds, "s", peer=f"limit 15 s, {size / 1e6:.0f} MB read", peer_value=15.0)
    record("diagnose_peak_mib", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "MiB")


def _write(path: Path, row: Callable[[int, random.Random], str]) -> int:
    draw = random.Random(0)
    size, step = 0, 0
    with path.open("w") as file:
        while size < SLICE_BYTES:
            step += 1
            for text in (row(step, draw), *_prose(draw)):
                size += file.write(text + "\n")
    return size


def _prose(draw: random.Random) -> Iterator[str]:
    """Completions and workers' words, as they stand between the rows of a real log."""
    for _ in range(8):
        words = " ".join(draw.choices(_WORDS, k=25))
        yield f"(WorkerDict pid={draw.randrange(9999)}) INFO 03:04:05 [engine.py:77] {words}"


def _trl(step: int, draw: random.Random) -> str:
    row = {f"rewards/f{n}/mean": round(draw.random(), 3) for n in range(8)}
    row |= {"loss": 0.0, "grad_norm": round(0.1 + draw.random() / 9, 4), "learning_rate": 1e-6, "reward": 0.5,
            "reward_std": 0.3, "kl": 0.006, "entropy": 0.43, "completions/clipped_ratio": 0.1}  # fmt: skip
    return f" 2%|▏         | {step}/400000 [03:44<2:26:29, 22.25s/it]\n{row}"


def _verl(step: int, draw: random.Random) -> str:
    names = ("entropy", "kl_loss", "pg_loss", "pg_clipfrac", "ppo_kl", "grad_norm")
    row = [f"actor/{name}:{draw.random() / 100:.6f}" for name in names]
    row += [f"timing_s/t{n}:{draw.random():.4f}" for n in range(12)]
    return f"(TaskRunner pid=1) step:{step} - " + " - ".join(row)


if __name__ == "__main__":
    main()
