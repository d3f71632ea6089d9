"""`check data`: samples a second on one core, without and with a tokenizer, and how memory grows with the data."""

from __future__ import annotations

import json
import random
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.record import record as store
from grpo_sentinel.preflight.data import DataOptions, check_data

Record = Callable[..., None]
SAMPLES = 60_000
WORDS = [f"word{number}" for number in range(5000)] + ["the", "a", "of", "is", "sum", "prove", "that"] * 300


def main(record: Record = store) -> None:
    """Measure and store the figures."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.jsonl"
        size = _write(path)
        check_data([str(path)])  # warm
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        rate = SAMPLES / min(_seconds(path, None) for _ in range(3))
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        record("check_data_samples_per_s", rate, "1/s", peer=f"floor, {size / SAMPLES:.0f} bytes a sample",
               peer_value=20_000.0, ratio=rate / 20_000)  # fmt: skip
        record("check_data_growth_mib", (after - before) / 1024, "MiB", peer="a second and third reading of the file")
        directory = _tokenizer()
        if directory is not None:
            _with_tokenizer(record, path, directory)


def _write(path: Path) -> int:
    rng = random.Random(5)
    with path.open("w", encoding="utf-8") as file:
        for number in range(SAMPLES):
            text = f"Question {number}: " + " ".join(rng.choices(WORDS, k=70))
            chat = [{"role": "system", "content": "You are careful."}, {"role": "user", "content": text}]
            file.write(json.dumps({"prompt": chat, "answer": str(number), "reward": rng.random()}) + "\n")
    return path.stat().st_size


def _seconds(path: Path, tokenizer: Path | None) -> float:
    began = time.process_time() if tokenizer is None else time.perf_counter()
    check_data([str(path)], DataOptions(tokenizer=tokenizer))
    return (time.process_time() if tokenizer is None else time.perf_counter()) - began


def _tokenizer() -> Path | None:
    found = Path(__file__).resolve().parents[1] / "build" / "demo-assets" / "policy"
    return found if (found / "tokenizer.json").exists() else None


def _with_tokenizer(record: Record, path: Path, directory: Path) -> None:
    """Compare with the tokenizer's own batch speed on the same templated texts."""
    from grpo_sentinel.preflight.data_tokens import Encoder

    Encoder(directory)  # warm
    began = time.perf_counter()
    encoder = Encoder(directory)
    loading = time.perf_counter() - began
    lines = path.read_text(encoding="utf-8").splitlines()[:5000]  # a slow tokenizer takes minutes for all
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    rows = [json.loads(line)["prompt"] for line in lines]
    texts = [encoder._render([(one["role"], one["content"]) for one in row])[0] for row in rows]
    began = time.perf_counter()
    for start in range(0, len(texts), 256):
        encoder._ids(texts[start : start + 256], special=False)
    own = len(rows) / (time.perf_counter() - began)
    rate = len(rows) / (_seconds(path, directory) - loading)
    record("check_data_samples_per_s_tokenized", rate, "1/s", peer="tokenizer alone, same texts and batches",
           peer_value=own, ratio=rate / own)  # fmt: skip


if __name__ == "__main__":
    main()
