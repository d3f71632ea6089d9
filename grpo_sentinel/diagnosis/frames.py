"""Whose work failed, by the frames of a traceback: a reward function's, a layer's, or the program's own."""

from __future__ import annotations

import re

from grpo_sentinel.history.logs.tracebacks import Frame, Traceback

# ---- the reward function

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
_CALLED = re.compile(r"^$|reward|score|rm_fn|judge|grade|verif", re.IGNORECASE)
_CALLS = re.compile(r"\breward_f(?:n|unc)\w*\(")
_OF_REWARDS = re.compile(r"\breward_f(?:n|unc)\w*\(|output_reward|rewards_per_func|raw_rewards?\b|\brewards? = ")
"""What the innermost frame was doing, by its source line: calling a reward function, or using what it gave."""

_TRAINERS = re.compile(r"/(?:trl|verl|transformers|swift|llamafactory|accelerate|nemo_rl|slime|areal)/\S*train\w*")


def reward_function(traceback: Traceback) -> str | None:
    """Name the innermost function of a reward; None where the failure lies in a model that gives the reward."""
    if _key_missing_in_rows(traceback):
        return None
    frames = traceback.frames
    for place in range(len(frames) - 1, -1, -1):
        frame = frames[place]
        innermost = place == len(frames) - 1
        if innermost and _OF_REWARDS.search(frame.source):
            return frame.function
        if not innermost and _CALLS.search(frame.source) and not _of_model(frames[place + 1 :]):
            return frames[place + 1].function
        if not (_REWARD.search(_place(frame)) or _CALLER.search(frame.function)):
            if _TRAINERS.search(frame.path) and not _CALLED.search(frame.source):
                return None  # the trainer's own work: what called it is not what failed
            continue
        inner = frames[place + 1 :]
        if _of_model(inner):
            return None
        if _CALLER.search(frame.function) and inner:
            return inner[0].function
        if _NO_REWARD.match(frame.function):
            continue
        return frame.function
    return None


def _of_model(frames: tuple[Frame, ...]) -> bool:
    return any(_REWARD_MODEL.search(frame.path) for frame in frames)


# ---- the layer

_TYPES: tuple[tuple[str, str], ...] = (
    (
        r"Unicode(?:De|En)codeError|JSONDecodeError|Dataset\w*Error|ArrowInvalid|TemplateError|UndefinedError"
        r"|ParserError|CastError|UnidentifiedImage|DecompressionBomb",
        "data",
    ),
    (
        r"Connect|Disconnected|Dist\w*Error|Rendezvous|ReadTimeout|ConnectTimeout|HTTPError|gaierror|ProxyError",
        "communication",
    ),
    (r"MemoryError|OutOfDisk", "memory"),
    (
        r"ImportError|ModuleNotFoundError|SyntaxError|IndentationError|NameError|PermissionError|HfHub"
        r"|RepositoryNotFound",
        "tooling",
    ),
)
_FRAMES: tuple[tuple[str, str], ...] = (
    (
        r"(?:packages|src)/datasets/|/datasets/(?:arrow_|builder|iterable_|table|load\.py|features|packaged|formatting)"
        r"|/(?:trl|verl|openrlhf|swift|llamafactory|nemo_rl|areal|slime)/(?:\S*/)?(?:datasets?|data|template)/"
        r"|/pyarrow/|/pandas/|/jinja2/|/json/(?:decoder|__init__)|/PIL/|(?:^|/)data(?:_(?!parallel)\w+)?\.py"
        r"|[^/]*(?:collat|dataloader|data_loader|tokenization|chat_template|data_utils|dataset|rl_data|preprocess|padding"
        r"|processing_|image_utils|vision_process|video_process)[^/]*$|_prepare_data|postprocess_data",
        "data",
    ),
    (r"/torch/optim/|lr_scheduler|/bitsandbytes/optim|_optimizer_step|optimizer\.py", "optimizer"),
    (r"/torch/autograd/\S* (?:backward|_engine_run_backward|grad)$|/torch/_tensor\.py backward", "gradient"),
    (
        r"/requests/|/httpx/|/urllib3/|/aiohttp/|/http/client|vllm_client"
        r"|/torch/distributed/(?:distributed_c10d|rendezvous|elastic|c10d_logger)",
        "communication",
    ),
)
_MAIN = re.compile(r" (?:<module>|<cell line: \d+>|main|run|cli|launch\w*|train\w*)$")
"""The outermost functions of a program: what its file is called does not tell whose work failed."""

_NETWORK = re.compile(r"^(?:Runtime|OS|Timeout|Client\w*|Protocol|\w*SSL\w*)?(?:Error|Exception)$|Timeout|Protocol|SSL")
"""Exceptions that a network can be the reason of; a KeyError or a TypeError amid its functions is the program's."""

_ANSWERED = re.compile(r"\b(?:40[0-9]|41\d|42\d|50[013]|Not Found|not (?:been )?initialized|Invalid|must )")
"""Messages that tell of a server that did answer, or of a group that nobody set up: no network is the reason."""

_OF_NETWORK = re.compile(
    r"tim(?:e|ed)[ -]?out|onnect|[Ss]ocket|[Ss]tore|peer|[Rr]efused|reset|closed|reachable|abort", re.IGNORECASE
)
_AGAIN = re.compile(r"/torch/utils/checkpoint\S* | forward$")
"""The forward pass that is run again inside the backward pass."""

_NO_SUCH = re.compile(r"\b(?:404|405|Not Found|Method Not Allowed)\b")
_TRACKERS = re.compile(r"/(?:wandb|mlflow|swanlab|comet_ml|clearml|neptune|tensorboardX?|trackio|aim)/")
_LOADING = re.compile(
    r"/transformers/\S* (?:_?from_pretrained|from_config|_get_module)$|/models/auto/"
    r"|(?:site-packages|dist-packages|/lib)/\S* <module>$"
)
_ARGUMENTS = re.compile(r"/torch/utils/data/\S+ __init__$")
_FORWARD = re.compile(r"/transformers/models/\S*modeling_\S* (?:forward|get_\w*features|\w*merge_input\w*)$")
_CHANGED = re.compile(
    r"^'?(?!NoneType|str|list|dict|int|float|tuple|bool)[\w.]+'? (?:object )?has no attribute"
    r"|unexpected keyword argument|required (?:positional|keyword)|takes (?:from )?\d+ (?:to \d+ )?positional"
)
"""An object that lacks an attribute of its class, a function with other parameters: versions that do not fit."""

_ELSEWHERE = re.compile(
    r"CUDA|cuDNN|NCCL|HIP|gloo|[Ww]orker|exited|[Kk]illed|[Ee]ngine|[Ss]ee (?:above|root)|terminated|[Cc]onnection"
    r"|remote|[Bb]roken pipe|timed? ?out|probability tensor|NVML|[Ss]erver|[Ss]ubprocess|[Cc]hild"
    r"|[Ff]ailed after|retries"
)
"""Messages of a RuntimeError that speak of another process, or of a device that failed earlier."""

_QUOTES = re.compile(
    r"\b(?:Value|Type|Key|Index|Attribute|Assertion|Import|NotImplemented)Error: |\b4(?:00|04|05|22)\b"
)
"""Such a message that quotes what the other side refused: that is the reason."""

_ORDINARY = ("KeyError", "IndexError", "TypeError", "AttributeError", "ValueError")
_SAMPLES = re.compile(
    r"\.map\(|\b(?:examples?|samples?|row|item)\[|\[[\"'](?:prompt|completion|answer|solution|question|messages|text)[\"']\]"
)
"""What the innermost frame was doing, by its source line: it took a sample apart."""


def layer_of(traceback: Traceback) -> str | None:
    """Tell whose work failed; None where neither the exception nor a frame tells."""
    last = traceback.type.rpartition(".")[2]
    frames = [_place(frame) for frame in traceback.frames]
    if of_a_tracker(traceback) or (last in ("AttributeError", "TypeError") and _CHANGED.search(traceback.message)):
        return "tooling"
    if _key_missing_in_rows(traceback):
        return "data"
    for pattern, layer in _TYPES:
        if re.search(pattern, traceback.type) and not (
            layer == "communication" and _ANSWERED.search(traceback.message)
        ):
            return layer
    if frames and (_LOADING.search(frames[-1]) or _loads(traceback.frames)):
        return "tooling"  # a model or tokenizer that this library cannot make, or a library that does not come up
    if last == "ValueError" and frames and _FORWARD.search(frames[-1]):
        return "data"  # a model that refuses its input
    found = _by_frames(frames, last, traceback.message)
    if found is not None:
        return found
    if last == "KeyError" and _key_of_samples(traceback):
        return "data"
    if last in _ORDINARY and frames and _SAMPLES.search(traceback.frames[-1].source):
        return "data"
    if last == "Exception" or "Timeout" in last or (last == "RuntimeError" and _elsewhere(traceback.message)):
        return None  # too general without a frame that speaks, or the reason lies elsewhere
    return "tooling"


def _by_frames(frames: list[str], last: str, message: str) -> str | None:
    """The innermost frame that tells."""
    for number in range(len(frames) - 1, -1, -1):
        place = frames[number]
        if _ARGUMENTS.search(place):
            return "tooling"
        for pattern, layer in _FRAMES:
            if not re.search(pattern, place) or _MAIN.search(place):
                continue
            if layer == "communication":
                if _NO_SUCH.search(message):
                    return "tooling"  # it is another server than the one which is asked for
                if not _NETWORK.search(last) or _ANSWERED.search(message):
                    continue
                if "/torch/" in place and last == "RuntimeError" and not _OF_NETWORK.search(message):
                    continue  # tensors that a collective refuses
            elif last == "RuntimeError" and _elsewhere(message):
                return None  # a worker of the loader that went away, a device that failed before
            if layer != "gradient" or (last == "RuntimeError" and not any(map(_AGAIN.search, frames[number:]))):
                return layer
    return None


def _elsewhere(message: str) -> bool:
    return _ELSEWHERE.search(message) is not None and _QUOTES.search(message) is None


def _loads(frames: tuple[Frame, ...]) -> bool:
    """Tell whether a library failed while it loaded a model or a tokenizer."""
    return "/transformers/" in frames[-1].path and any(
        "from_pretrained" in f"{frame.function} {frame.source}" for frame in frames
    )


def of_a_tracker(traceback: Traceback) -> bool:
    """Tell whether the tracker of experiments failed, whatever it was called from."""
    return any(_TRACKERS.search(frame.path) for frame in traceback.frames[-4:])


def of_a_compiler(traceback: Traceback) -> bool:
    """Tell whether a compiler was called that failed: its exit code is all that the exception says."""
    return any(re.search(r"/triton/|cpp_extension|op_builder|/_inductor/", frame.path) for frame in traceback.frames)


def _place(frame: Frame) -> str:
    return f"{frame.path} {frame.function}"


def _key_missing_in_rows(traceback: Traceback) -> bool:
    """Tell whether a row lacks a column that the trainer's own manager of rewards reads: not the function's doing."""
    frame = traceback.frames[-1] if traceback.frames else None
    return (
        frame is not None
        and traceback.type.rpartition(".")[2] in _ORDINARY
        and ("non_tensor_batch[" in frame.source or ("reward_manager" in frame.path and _key_of_samples(traceback)))
    )


def _key_of_samples(traceback: Traceback) -> bool:
    """Tell whether the missing key is one that data sets have."""
    return traceback.message.strip("'\"") in _KEYS


_KEYS = (
    "prompt", "completion", "answer", "solution", "messages", "text", "input_ids", "labels", "chosen", "rejected",
    "images", "question", "ground_truth", "data_source", "reward_model", "extra_info", "raw_prompt", "conversations",
    "query", "response",
)  # fmt: skip
