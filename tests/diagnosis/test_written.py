"""What the policy wrote is no evidence; what the run itself says beside it is."""

from __future__ import annotations

import pytest
import score_diagnosis
import thread_rows

_CRASH = [
    "Traceback (most recent call last):",
    '  File "a.py", line 3, in f',
    "    x = y",
    "RuntimeError: CUDA out of memory",
]
_PRINTS = {
    "one line": ["[response] It says `CUDA out of memory`.", "[score] 1.0"],
    "many lines": ["(TaskRunner pid=7) [response] The log is", *(f"(TaskRunner pid=7) {line}" for line in _CRASH),
                   "(TaskRunner pid=7) [ground_truth] 4"],
    "named parts": ["Response:", *_CRASH, "", "Extracted:", "4"],
    "a prompt and its answer": ["[prompt]", *_CRASH, "[response] It is full.", "[score] 1.0"],
    "a table": ["┃ Prompt ┃ Completion ┃", "│ why? │ NCCL WARN, CUDA out of memory │"],
    "marks of a conversation": ["(W pid=1) Sample 0: <|im_start|>assistant ValueError: Connection refused<|im_end|>"],
    "a logger's line": ["[INFO:swift] completion: raise RuntimeError: CUDA error: an illegal memory access"],
    "an object": ['{"prompt": "why?", "completion": "torch.OutOfMemoryError: CUDA out of memory", "reward": "x"}'],
}  # fmt: skip


@pytest.mark.parametrize("what", _PRINTS)
def test_words_of_a_printed_completion_decide_nothing(what: str) -> None:
    rows = list(thread_rows.rows("trl", "healthy", 1, 12, 12, 5))
    assert score_diagnosis.verdict_of([*rows, *_PRINTS[what]]).layer == "none"


@pytest.mark.parametrize("what", _PRINTS)
def test_a_crash_behind_a_printed_completion_is_still_seen(what: str) -> None:
    rows = list(thread_rows.rows("trl", "healthy", 1, 12, 500, 5))
    assert score_diagnosis.verdict_of([*rows, *_PRINTS[what], *_CRASH]).layer == "memory"


def test_a_crash_of_another_process_amid_a_completion_is_still_seen() -> None:
    rows = list(thread_rows.rows("trl", "healthy", 1, 12, 500, 5))
    print_of_one, *rest = _PRINTS["many lines"]
    crash = [f"(WorkerDict pid=9) {line}" for line in _CRASH]
    assert score_diagnosis.verdict_of([*rows, print_of_one, *crash, *rest]).layer == "memory"


def test_a_crash_between_two_completions_is_still_seen() -> None:
    rows = list(thread_rows.rows("trl", "healthy", 1, 12, 500, 5))
    again = [
        "[prompt] why?",
        "[response] It",
        *_CRASH,
        "$ python train.py",
        "[prompt] why?",
        "[response] It",
        "[score] 1",
    ]
    assert score_diagnosis.verdict_of([*rows, *again]).layer == "memory"
