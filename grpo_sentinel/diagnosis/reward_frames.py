"""Whether a reward function failed, by the frames of a traceback."""

from __future__ import annotations

import re

from grpo_sentinel.history.logs.tracebacks import Frame, Traceback

ORDINARY = ("KeyError", "IndexError", "TypeError", "AttributeError", "ValueError")

_REWARD = re.compile(
    r"(?:^|/)(?:reward\w*|rewards|graders?|verifiers?/rubrics|rubrics?|math_verify|latex2sympy\w*|judges?|rm_hub)/\S+ "
    r"|[^/]*(?:reward|grader|verifier|judge|rubric|remote_rm)[^/]*\.py \S+$"
    r"| \S*(?:reward|compute_score|grader|verifier|math_verify|latex2sympy|judge|remote_rm|async_rm|\brm_fn)\S*$",
    re.IGNORECASE,
)
"""By the folder in which a file stands, by the file's own name, or by the function's; not by where a project lies."""

_NO_REWARD = re.compile(
    r"^(?:_?generate\w*|<module>|<cell line: \d+>|main|train\w*|fit|rollout\w*|load\w*|build\w*|__init__|init_\w*"
    r"|_?(?:load|build|create|get|make|prepare|format|map)_\w*(?:model|tokenizer|dataset|data|prompt|example)\w*)$"
)
_REWARD_MODEL = re.compile(r"/(?:transformers/models|torch/nn|vllm)/")
_CALLER = re.compile(
    r"_calculate_rewards|compute_rewards?\b|_compute_rewards_per_func|(?<!and)_score_completions"
)  # the trainer's side of the call
_SCORES = re.compile(rf"{_CALLER.pattern}|compute_rm_score|^get_rewards?$")
_CALLED = re.compile(r"^$|reward|score|rm_fn|judge|grade|verif", re.IGNORECASE)
_CALLS = re.compile(r"\breward_f(?:n|unc)\w*\(")
_OF_REWARDS = re.compile(r"\breward_f(?:n|unc)\w*\(|output_reward|rewards_per_func|raw_rewards?\b|\brewards? = ")
"""What the innermost frame was doing, by its source line: calling a reward function, or using what it gave."""

_TRAINERS = re.compile(r"/(?:trl|verl|transformers|swift|llamafactory|accelerate|nemo_rl|slime|areal)/\S*train\w*")


def reward_function(traceback: Traceback) -> str | None:
    """Name the innermost function of a reward; None where the failure lies in a model that gives the reward."""
    if key_missing_in_rows(traceback):
        return None
    frames = traceback.frames
    for number in range(len(frames) - 1, -1, -1):
        frame = frames[number]
        innermost = number == len(frames) - 1
        if innermost and _OF_REWARDS.search(frame.source):
            return frame.function
        if not innermost and _CALLS.search(frame.source) and not _of_model(frames[number + 1 :]):
            return frames[number + 1].function
        if not (_REWARD.search(place(frame)) or _CALLER.search(frame.function)):
            if _TRAINERS.search(frame.path) and not _CALLED.search(frame.source):
                return None  # the trainer's own work: what called it is not what failed
            continue
        inner = frames[number + 1 :]
        if _of_model(inner):
            return None
        if _CALLER.search(frame.function) and inner:
            return inner[0].function
        if _NO_REWARD.match(frame.function):
            continue
        return frame.function
    return None


def scoring_model(traceback: Traceback) -> str | None:
    """Name the function of the model that gives the reward, where the trainer's scoring called one."""
    frames = traceback.frames
    for number, frame in enumerate(frames):
        if _SCORES.search(frame.function) and _of_model(frames[number + 1 :]):
            return f"{frames[-1].function} of a model"
    return None


def _of_model(frames: tuple[Frame, ...]) -> bool:
    return any(_REWARD_MODEL.search(frame.path) for frame in frames)


def place(frame: Frame) -> str:
    return f"{frame.path} {frame.function}"


def key_missing_in_rows(traceback: Traceback) -> bool:
    """Tell whether a row lacks a column that the trainer's own manager of rewards reads: not the function's doing."""
    frame = traceback.frames[-1] if traceback.frames else None
    return (
        frame is not None
        and traceback.type.rpartition(".")[2] in ORDINARY
        and ("non_tensor_batch[" in frame.source or ("reward_manager" in frame.path and key_of_samples(traceback)))
    )


def key_of_samples(traceback: Traceback) -> bool:
    """Tell whether the missing key is one that data sets have."""
    return traceback.message.strip("'\"") in _KEYS


_KEYS = (
    "prompt", "completion", "answer", "solution", "messages", "text", "input_ids", "labels", "chosen", "rejected",
    "images", "question", "ground_truth", "data_source", "reward_model", "extra_info", "raw_prompt", "conversations",
    "query", "response",
)  # fmt: skip
