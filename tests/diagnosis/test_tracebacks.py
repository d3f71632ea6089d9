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

NOTEBOOK = """AttributeError                            Traceback (most recent call last)
Cell In[9], line 1
----> 1 trainer.train()

File /srv/lib/trl/trainer/grpo_trainer.py:998, in GRPOTrainer._calculate_rewards(self, inputs)
    997 else:
--> 998     output = reward_func(prompts=prompts)

Cell In[6], line 12, in exact(completions, **kwargs)
---> 12 return float(found.group(1))

AttributeError: 'NoneType' object has no attribute 'group'"""
COLAB = NOTEBOOK.replace("File /srv/lib/trl/trainer/grpo_trainer.py:998, in GRPOTrainer._calculate_rewards(self, inputs)",
                         "[/srv/lib/trl/trainer/grpo_trainer.py](https://localhost:8080/#) in _calculate_rewards(self, inputs)")  # fmt: skip


def verdict(text: str):
    return diagnose(Line("log", number, one) for number, one in enumerate(text.split("\n"), 1)).verdict


def prefixed(text: str, *prefixes: str) -> str:
    return "\n".join(prefixes[n % len(prefixes)] + one for n, one in enumerate(text.split("\n")))


@pytest.mark.parametrize(
    "text",
    [PLAIN, RICH, NOTEBOOK, COLAB, prefixed(NOTEBOOK, "> "), PLAIN.replace('File "', "File “").replace('", line', "”, line"), prefixed(PLAIN, "[rank3]: "), prefixed(PLAIN, "(TaskRunner pid=33) "), prefixed(RICH, "(A pid=33) "),
     prefixed(PLAIN, *(f"(EngineCore pid=7) ERROR 07-30 11:02:1{n} [core.py:63{n}] " for n in range(9))),
     PLAIN.partition("\n")[2], PLAIN.replace("\n", "\n\n")],
)  # fmt: skip
def test_the_reward_function_is_named_however_the_traceback_is_drawn(text: str) -> None:
    found = verdict(text)
    assert (found.layer, found.name) == ("reward", "reward_function_raised")
    assert "exact" in found.says


def test_two_ranks_tracebacks_that_interleave_are_told_apart() -> None:
    other = (
        PLAIN.replace("/srv/scores.py", "/srv/data_utils.py")
        .replace("_calculate_rewards", "get_batch")
        .replace("exact", "pad")
    )
    mixed = [
        line
        for pair in zip(prefixed(PLAIN, "[rank0]: ").split("\n"), prefixed(other, "[rank1]: ").split("\n"), strict=True)
        for line in pair
    ]
    reader = TracebackReader()
    for number, text in enumerate(mixed, 1):
        reader.feed(Line("log", number, text))
    assert [one.frames[-1].function for one in reader.kept] == ["exact", "pad"]


@pytest.mark.parametrize(
    ("path", "function", "error", "layer"),
    [("/x/datasets/table.py", "read", "ValueError: no", "data"), ("/x/torch/optim/adam.py", "step", "KeyError: 3", "optimizer"),
     ("/x/urllib3/connection.py", "connect", "OSError: no", "undetermined"), ("/srv/main.py", "main", "NameError: x", "tooling"),
     ("/srv/main.py", "main", "RuntimeError: worker 3 exited", "undetermined"), ("/srv/main.py", "main", "KeyError: 'answer'", "data"),
     ("/srv/main.py", "main", "ray.exceptions.RayActorError: died", "undetermined")],
)  # fmt: skip
def test_the_innermost_frame_that_tells_gives_the_layer(path: str, function: str, error: str, layer: str) -> None:
    assert (
        verdict(
            f'Traceback (most recent call last):\n  File "{path}", line 3, in {function}\n    code()\n{error}'
        ).layer
        == layer
    )


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


@pytest.mark.parametrize(
    ("text", "layer"),
    [
        ("{head}  File \"/x/site-packages/vllm/cumem.py\", line 3, in __init__\n    assert a\nAssertionError: a excludes b\n\n"
         "During handling of the above exception, another exception occurred:\n\n"
         "{head}  File \"/x/site-packages/z/utils.py\", line 3, in load\n    raise MemoryError(\"ran out\")\nMemoryError: ran out", "tooling"),
        ("{head}  File \"/x/cache.py\", line 3, in get\n    return one[key]\nKeyError: 3\n\n"
         "During handling of the above exception, another exception occurred:\n\n"
         "{head}  File \"/x/cache.py\", line 5, in get\n    made = torch.empty(n)\ntorch.OutOfMemoryError: CUDA out of memory.", "memory"),
        ("torch.OutOfMemoryError: CUDA out of memory.\n{head}  File \"/srv/http_utils.py\", line 3, in post\n    raise RuntimeError(x)\n"
         "RuntimeError: request was not served", "memory"),
        ("{head}  File \"/srv/trainer.py\", line 3, in log\n    run.log(x)\n  File \"/x/wandb/sdk/sock.py\", line 3, in send\n    s.send(x)\n"
         "BrokenPipeError: [Errno 32] Broken pipe", "tooling"),
        ("{head}  File \"/x/data/fetch.py\", line 3, in fetch\nNotImplementedError: Caught NotImplementedError in DataLoader worker process 0.\n"
         "{head}  File \"/x/data/fetch.py\", line 3, in fetch\nNotImplementedError: sequence_length=1081 is larger than max_length=1024", "data"),
        ("{head}  File \"/x/verl/workers/reward_manager/naive.py\", line 3, in __call__\n    t = item.non_tensor_batch['reward_model']\n"
         "KeyError: 'reward_model'", "data"),
        ("{head}  File \"/x/reward_train.py\", line 3, in rollout_func\n    ids = f(x)\n  File \"/x/trl/trainer/grpo_trainer.py\", line 3, in _generate\n"
         "    ids = [torch.tensor(i) for i in ids]\nValueError: too many dimensions 'str'", "tooling"),
        ("{head}  File \"/data/datasets/train.py\", line 3, in main\n    f()\n  File \"/x/lib/peft/model.py\", line 3, in make\n    f()\nValueError: no", "tooling"),
        ("{head}  File \"/x/judge.py\", line 3, in judge_reward\n    d = json.loads(x)\n  File \"/x/json/decoder.py\", line 3, in decode\n"
         "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)", "reward"),
        ("{head}  File \"/x/vllm_client.py\", line 3, in init_communicator\n    raise Exception(x)\nException: Request failed: 404, Not Found", "tooling"),
        ("{head}  File \"/x/torch/distributed/distributed_c10d.py\", line 3, in all_reduce\n    f()\nRuntimeError: No backend type for device cpu", "tooling"),
        ("{head}  File \"/x/torch/_tensor.py\", line 3, in backward\n    f()\nRuntimeError: cuDNN error: EXECUTION_FAILED", "undetermined"),
        ("{head}  File \"/x/torch/_tensor.py\", line 3, in backward\n    f()\n  File \"/x/liger/norm.py\", line 3, in forward\nRuntimeError: too wide", "tooling"),
        ("Exception ignored in: <function LLM.__del__ at 0x7f>\n{head}  File \"/x/llm.py\", line 3, in __del__\n    f()\nTypeError: no", "undetermined"),
        ("{head}  File \"/x/utils/http.py\", line 3, in ask\n    raise RuntimeError(x)\nRuntimeError: Failed after 3 retries each", "undetermined"),
    ],
)  # fmt: skip
def test_whose_work_failed_is_told_from_what_only_tells_of_it(text: str, layer: str) -> None:
    assert verdict(text.replace("{head}", "Traceback (most recent call last):\n")).layer == layer


def test_a_suspicion_that_was_more_often_wrong_than_right_is_said_in_words_and_is_no_verdict() -> None:
    found = verdict(
        'Traceback (most recent call last):\n  File "/x/urllib3/connection.py", line 3, in connect\n    code()\nOSError: no'
    )
    assert (found.layer, found.confidence) == ("undetermined", 0.35)
    assert found.says.startswith("probably communication, but")
    assert found.tries
    assert found.would_decide


def test_a_traceback_that_is_moved_in_as_a_whole_is_read() -> None:
    for indent in (" ", "    "):
        found = verdict("\n".join(indent + line for line in PLAIN.split("\n")))
        assert (found.layer, found.name) == ("reward", "reward_function_raised")
