"""Tracebacks are put together from the lines of a log, whatever stands before each line, and tell whose work failed."""

from __future__ import annotations

import pytest

from grpo_sentinel.diagnosis.triage import diagnose
from grpo_sentinel.history.logs.lines import Line
from grpo_sentinel.history.logs.tracebacks import MAX_FRAMES, MAX_KEPT, TracebackReader

PLAIN = """Traceback (most recent call last):
  File "/srv/train.py", line 9, in <module>
    trainer.train()
  File "/srv/lib/trl/trainer/grpo_trainer.py", line 998, in _calculate_rewards
    output = reward_func(
             ^^^^^^^^^^^^
  File "/srv/scores.py", line 61, in exact
    return float(found.group(1))
AttributeError: 'NoneType' object has no attribute 'group'"""
RICH = """╭───────────────────── Traceback (most recent call last) ──────────────────────╮
│ /srv/train.py:9 in <module>                                                   │
│ ❱  9     trainer.train()                                                      │
│ /srv/lib/trl/trainer/grpo_trainer.py:998 in _calculate_rewards                │
│ /srv/scores.py:61 in exact                                                    │
╰──────────────────────────────────────────────────────────────────────────────╯
AttributeError: 'NoneType' object has no attribute 'group'"""


def verdict(text: str):
    return diagnose(Line("log", number, one) for number, one in enumerate(text.split("\n"), 1)).verdict


def prefixed(text: str, *prefixes: str) -> str:
    return "\n".join(prefixes[n % len(prefixes)] + one for n, one in enumerate(text.split("\n")))


@pytest.mark.parametrize(
    "text",
    [PLAIN, RICH, prefixed(PLAIN, "[rank3]: "), prefixed(PLAIN, "(TaskRunner pid=33) "), prefixed(RICH, "(A pid=33) "),
     prefixed(PLAIN, *(f"(EngineCore pid=7) ERROR 07-30 11:02:1{n} [core.py:63{n}] " for n in range(9))),
     PLAIN.partition("\n")[2], PLAIN.replace("\n", "\n\n")],
)  # fmt: skip
def test_the_reward_function_is_named_however_the_traceback_is_drawn(text: str) -> None:
    found = verdict(text)
    assert (found.layer, found.name) == ("reward", "reward_function_raised")
    assert "exact" in found.says


def test_two_ranks_tracebacks_that_interleave_are_told_apart() -> None:
    other = PLAIN.replace("/srv/scores.py", "/srv/data_utils.py").replace("_calculate_rewards", "get_batch").replace("exact", "pad")
    mixed = [line for pair in zip(prefixed(PLAIN, "[rank0]: ").split("\n"), prefixed(other, "[rank1]: ").split("\n"), strict=True) for line in pair]
    reader = TracebackReader()
    for number, text in enumerate(mixed, 1):
        reader.feed(Line("log", number, text))
    assert [one.frames[-1].function for one in reader.kept] == ["exact", "pad"]


@pytest.mark.parametrize(
    ("path", "function", "error", "layer"),
    [("/x/datasets/table.py", "read", "ValueError: no", "data"), ("/x/torch/optim/adam.py", "step", "KeyError: 3", "optimizer"),
     ("/x/urllib3/connection.py", "connect", "OSError: no", "communication"), ("/srv/main.py", "main", "NameError: x", "tooling"),
     ("/srv/main.py", "main", "RuntimeError: worker 3 exited", "undetermined"), ("/srv/main.py", "main", "KeyError: 'answer'", "data"),
     ("/srv/main.py", "main", "ray.exceptions.RayActorError: died", "undetermined")],
)  # fmt: skip
def test_the_innermost_frame_that_tells_gives_the_layer(path: str, function: str, error: str, layer: str) -> None:
    assert verdict(f'Traceback (most recent call last):\n  File "{path}", line 3, in {function}\n    code()\n{error}').layer == layer


def test_memory_stays_bounded_by_endless_and_by_countless_tracebacks() -> None:
    reader = TracebackReader()
    for number in range(5000):
        reader.feed(Line("log", number, f'[rank{number}x]:   File "a.py", line 3, in f'))
        reader.feed(Line("log", number, '  File "a.py", line 3, in f'))
    for number in range(5000, 5000 + 4 * MAX_KEPT):
        reader.feed(Line("log", 2 * number, '  File "a.py", line 3, in f'))
        reader.feed(Line("log", 2 * number + 1, "ValueError: no"))
    assert len(reader.kept) == MAX_KEPT
    assert max(len(one.frames) for one in reader.kept) <= MAX_FRAMES
    assert len(reader._open) <= 64
