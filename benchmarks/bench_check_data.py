"""`check data`: samples a second on one core, without and with a tokenizer, by format, and how memory grows."""

from __future__ import annotations

import json
import math
import os
import random
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

from benchmarks.record import record as store
from grpo_sentinel.preflight.data import DataOptions, check_data
from grpo_sentinel.preflight.data_tokens import Encoder

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
        rate = SAMPLES / min(_cpu_seconds(lambda: check_data([str(path)], DataOptions(jobs=1))) for _ in range(3))
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


def _tokenizer() -> Path | None:
    found = Path(__file__).resolve().parents[1] / "build" / "demo-assets" / "policy"
    return found if (found / "tokenizer.json").exists() else None


def _with_tokenizer(record: Record, path: Path, directory: Path) -> None:
    """Compare CPU time a row with that of the tokenizer alone on the same templated texts: one core for both.

    All are measured in turns, and the best of each counts, so that a busy machine slows all or none. Two sizes are read
    and the smaller one is taken off: what it takes to load the tokenizer is no matter of speed.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    lines = path.read_text(encoding="utf-8").splitlines()[:10_000]  # a slow tokenizer takes minutes for all
    files = {ending: [path.with_name(f"{size}{ending}") for size in ("few", "many")] for ending in _FORMATS}
    for ending, write in _FORMATS.items():
        write(files[ending][0], lines[:1000])
        write(files[ending][1], lines)
    encoder = Encoder(directory)
    rows = [json.loads(line)["prompt"] for line in lines[1000:]]
    texts = [encoder._render([(one["role"], one["content"]) for one in row])[0] for row in rows]
    options = DataOptions(tokenizer=directory, jobs=1)
    own = math.inf
    best = {file: math.inf for pair in files.values() for file in pair}
    for _ in range(8):
        own = min(own, _cpu_seconds(lambda: _tokenize(encoder, texts)))
        for file in best:
            best[file] = min(best[file], _cpu_seconds(partial(check_data, [str(file)], options)))
    for ending, (few, many) in files.items():
        rate, peer = len(rows) / (best[many] - best[few]), len(rows) / own
        name = "check_data_samples_per_s_tokenized" + ("" if ending == ".jsonl" else f"_{ending[1:]}")
        record(name, rate, "1/s", peer="tokenizer alone, same texts, one core", peer_value=peer, ratio=rate / peer)


def _write_lines(path: Path, lines: list[str]) -> None:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _write_parquet(path: Path, lines: list[str]) -> None:
    table = import_module("pyarrow").Table.from_pylist([json.loads(line) for line in lines])
    import_module("pyarrow.parquet").write_table(table, path)


_FORMATS: dict[str, Callable[[Path, list[str]], None]] = {".jsonl": _write_lines, ".parquet": _write_parquet}


def _tokenize(encoder: Encoder, texts: list[str]) -> None:
    for at in range(0, len(texts), 128):
        encoder._ids(texts[at : at + 128], special=False)


def _cpu_seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


if __name__ == "__main__":
    main()
