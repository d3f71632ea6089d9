"""What a log goes through on its way changes no verdict: colours, bars, prefixes, doubled lines, other line ends, packing."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable

import own_logs
import pytest
import unseen_logs

from grpo_sentinel.diagnosis.triage import diagnose
from grpo_sentinel.history.logs.lines import lines_of

BAR = "  7%|▋         | 28/400 [12:10<1:01:02, 41.02s/it]"
Wear = Callable[[list[str]], str]
WEAR: dict[str, Wear] = {
    "windows line ends": lambda lines: "".join(f"{text}\r\n" for text in lines),
    "colours": lambda lines: "".join(f"\x1b[32m{text}\x1b[0m\n" for text in lines),
    "a progress bar on each line": lambda lines: "".join(f"{BAR}\r{text}\n" for text in lines),
    "every line twice": lambda lines: "".join(f"{text}\n{text}\n" for text in lines),
    "a rank before each line": lambda lines: "".join(f"[rank0]: {text}\n" for text in lines),
    "a container's time before each line": lambda lines: "".join(
        f"2026-02-03T04:05:{n % 60:02d}.123456789Z stderr F {text}\n" for n, text in enumerate(lines)
    ),
    "a logger's time before each line": lambda lines: "".join(f"2026-02-03 04:05:06,{n:03d} - INFO - {text}\n" for n, text in enumerate(lines)),
    "a torn last line": lambda lines: "\n".join([*lines, "{'loss': 0.0, 'grad_norm': 0.12, 'learning_ra"]),
    "ray's mark of repetition": lambda lines: "".join(f"{text} [repeated 3x across cluster]\n" for text in lines),
    "empty lines and prose between": lambda lines: "".join(f"{text}\n\nthe answer is 42, the reward of 3 people is none\n" for text in lines),
}  # fmt: skip

LOGS = {name: (make(), layer) for name, (make, layer, *_) in own_logs.LOGS.items()}
LOGS |= {name: case for name, case in unseen_logs.CASES.items() if not unseen_logs.held_out(name)}


def layer_of(data: bytes) -> str:
    return diagnose(lines_of(io.BytesIO(data), "log")).verdict.layer


@pytest.mark.parametrize("wear", WEAR)
def test_a_worn_log_gets_the_verdict_of_the_log(wear: str) -> None:
    changed = {
        name: got for name, (lines, layer) in LOGS.items() if (got := layer_of(WEAR[wear](lines).encode())) != layer
    }
    assert changed == {}


def test_a_packed_log_gets_the_verdict_of_the_log(tmp_path) -> None:
    for name, (lines, layer) in list(LOGS.items())[::7]:
        data = gzip.compress("\n".join(lines).encode())
        assert diagnose(lines_of(gzip.GzipFile(fileobj=io.BytesIO(data)), "log")).verdict.layer == layer, name
