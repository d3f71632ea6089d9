"""Samples, faulty ones among them, in every format that `check data` reads; and a small tokenizer."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from grpo_sentinel.preflight.report import CheckReport


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": "Be exact."}, {"role": "user", "content": text}]


def good(count: int = 40) -> list[dict[str, Any]]:
    return [{"prompt": chat(f"What is {n} + 1?"), "answer": str(n + 1), "reward": n / 40} for n in range(count)]


def write(path: Path, rows: Iterable[Any]) -> str:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def counts(report: CheckReport) -> dict[str, int]:
    return {fault.code: fault.count for fault in report.faults}


BROKEN: dict[str, Any] = {
    "unreadable": '{"prompt": ',
    "missing-field": {"prompt": "who?", "reward": 1.0},
    "bad-field": {"prompt": 7, "answer": "1", "reward": 1.0},
    "empty-prompt": {"prompt": chat(" \n")[1:], "answer": "1", "reward": 1.0},
    "empty-answer": {"prompt": "who?", "answer": " ", "reward": 1.0},
    "reward-not-finite": {"prompt": "who?", "answer": "1", "reward": math.nan},
    "reward-not-a-number": {"prompt": "who?", "answer": "1", "reward": "high"},
    "reward-range": {"prompt": "who?", "answer": "1", "reward": 2.5},
    "too-long": {"prompt": "why " * 100, "answer": "1", "reward": 1.0},
    "special-token": {"prompt": chat("hi<|im_end|>\n<|im_start|>system"), "answer": "1", "reward": 1.0},
    "duplicate": good()[3],
}


def many_rows() -> list[Any]:
    rows: list[Any] = [{"prompt": f"what is {n}, then?", "answer": str(n), "reward": (n % 8) / 7} for n in range(900)]
    rows[300:300] = BROKEN.values()
    rows[880] = rows[2]
    rows[881] = rows[700]
    rows[5] = {"prompt": "what is 60, then?", "answer": "", "reward": 0.5}
    return rows


def as_csv(rows: list[Any], dialect: str) -> bytes:
    file = io.StringIO(newline="")
    writer = csv.writer(file, dialect)
    writer.writerow(["prompt", "answer", "reward"])
    writer.writerows([row["prompt"], row["answer"], row["reward"]] for row in rows)
    return file.getvalue().encode()


def every_format(folder: Path) -> list[str]:
    """The same rows, faults among them, in every format; what a format cannot hold is left out there."""
    rows = many_rows()
    lines = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows).encode()
    plain = [row for row in rows if isinstance(row, dict) and isinstance(row.get("prompt"), str) and "answer" in row]
    files = {
        "a.jsonl": lines, "a.jsonl.gz": gzip.compress(lines), "a.jsonl.bz2": bz2.compress(lines),
        "a.jsonl.xz": lzma.compress(lines), "cut.jsonl.gz": gzip.compress(lines)[:-2000],
        "a.json": json.dumps([row for row in rows if isinstance(row, dict)]).encode(),
        "a.json.gz": gzip.compress(json.dumps([*plain, "odd \udc80", {"prompt": "\ud83d"}]).encode()),
        "a.csv": as_csv(plain, "excel") + b'"a, ""quoted""\nprompt",7,1\nlost,\xff,1,too,many\n',
        "a.tsv.xz": lzma.compress(as_csv(plain, "excel-tab")),
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return [str(folder / name) for name in files]


def every_table(folder: Path) -> list[str]:
    """The same rows as Parquet of one row group and of many, as a folder of `datasets`, and as JSON lines in zstd."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"data_source": "x", "prompt": chat(str(row["prompt"])), "reward_model": {"ground_truth": str(row["answer"])}}
            for row in many_rows() if isinstance(row, dict) and "answer" in row]  # fmt: skip
    table = pyarrow.Table.from_pylist(rows)
    parquet.write_table(table, folder / "one.parquet")
    parquet.write_table(table, folder / "many.parquet", row_group_size=70)
    (folder / "cut.parquet").write_bytes((folder / "one.parquet").read_bytes()[:-40])
    with pyarrow.CompressedOutputStream(str(folder / "a.jsonl.zst"), "zstd") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows).encode())
    pytest.importorskip("datasets").Dataset.from_list(rows).save_to_disk(str(folder / "folder"))
    return [str(folder / name) for name in ("one.parquet", "many.parquet", "cut.parquet", "a.jsonl.zst", "folder")]


def tokenizer(folder: Path) -> Path:
    """A tokenizer of words with a template that knows users and systems only; its padding token is its end token."""
    transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    raw = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"<unk>": 0, "<bos>": 1, "<eos>": 2, "why": 3}, unk_token="<unk>")
    )
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    raw.post_processor = tokenizers.processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", 1)])
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<bos>", eos_token="<eos>", pad_token="<eos>"
    )
    made.chat_template = (
        "{% for m in messages %}{% if m.role not in ('user', 'system') %}{{ raise_exception('unknown role') }}{% endif %}"
        "{{ m.content }} {% endfor %}"
    )
    made.save_pretrained(str(folder))
    return folder
