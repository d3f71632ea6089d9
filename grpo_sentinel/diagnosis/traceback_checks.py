"""From a whole traceback to a candidate: its frames tell whose work failed when its last line alone does not."""

from __future__ import annotations

import re

from grpo_sentinel.diagnosis.verdict import Candidate, Evidence
from grpo_sentinel.diagnosis.view import LogView, rank_of
from grpo_sentinel.history.logs.tracebacks import Frame, Traceback

PASSED_ON = re.compile(
    r"RayTaskError|RayActorError|ActorDied|ActorUnavailable|ChildFailedError|CalledProcessError|EngineDead|EngineCore"
    r"|ProcessExited|ProcessRaised|DistBackendError|BrokenPipe|EOFError|KeyboardInterrupt|SystemExit|CancelledError"
    r"|GetTimeoutError|WorkerCrashed|BrokenProcessPool|AcceleratorError|SignalException"
)
"""Exceptions that only pass on that something else ended: no cause in themselves."""

_TYPES: tuple[tuple[str, str], ...] = (
    (
        r"Unicode(?:De|En)codeError|JSONDecodeError|Dataset\w*Error|ArrowInvalid|TemplateError|UndefinedError"
        r"|ParserError|CastError",
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
    (r"/datasets/|/pyarrow/|/pandas/|collat|dataloader|data_loader|tokenization|chat_template|data_utils|dataset|rl_data"
     r"|/jinja2/|/json/|(?:^|/)data(?:_\w+)?\.py|_prepare_data|preprocess|postprocess_data|padding", "data"),
    (r"/torch/optim/|lr_scheduler|/bitsandbytes/optim|_optimizer_step|optimizer\.py", "optimizer"),
    (r"/torch/autograd/|/torch/_tensor\.py backward", "gradient"),
    (r"/torch/distributed/(?!fsdp)|/requests/|/httpx/|/urllib3/|/aiohttp/|vllm_client", "communication"),
)  # fmt: skip
_REWARD = re.compile(r"reward|compute_score|grader|verifier|math_verify|latex2sympy|judge", re.IGNORECASE)
_REWARD_MODEL = re.compile(r"/(?:transformers/models|torch/nn|vllm)/")
_CALLER = re.compile(
    r"_calculate_rewards|compute_rewards?\b|_compute_rewards_per_func|(?<!and)_score_completions"
)  # the trainer's side of the call

_OF_REWARDS = re.compile(r"\breward_f(?:n|unc)\w*\(|output_reward|rewards_per_func|raw_rewards?\b|\brewards? = ")
"""What the innermost frame was doing, by its source line: calling a reward function, or using what it gave."""

_ELSEWHERE = re.compile(
    r"CUDA|cuDNN|NCCL|HIP|gloo|[Ww]orker|exited|[Kk]illed|[Ee]ngine|[Ss]ee (?:above|root)|terminated|[Cc]onnection"
    r"|remote|[Bb]roken pipe|timed? ?out|probability tensor|NVML"
)
"""Messages of a RuntimeError that speak of another process, or of a device that failed earlier."""

GENERIC = ("python_error", "not_implemented", "deprecated_arg", "missing_attribute", "missing_argument",
           "reward_missing", "reward_error", "index_range", "column_missing")  # fmt: skip
"""Markers whose meaning depends on the frames above them."""


SHAPES = ("mask_shape", "shape_mismatch")
"""Sizes that do not fit are the batch's, unless the frames belong to a reward function or to the optimizer."""


def candidates_of_tracebacks(view: LogView) -> list[Candidate]:
    """Give a candidate for every traceback whose exception no marker explains by itself."""
    out = []
    for traceback, marker in view.tracebacks:
        if marker is not None and marker not in (*GENERIC, *SHAPES):
            continue
        found = _candidate(view, traceback)
        if found is not None and (marker not in SHAPES or found.layer in ("reward", "optimizer")):
            out.append(found)
    return out or _bare(view)


_RAY = re.compile(r"RayTaskError\((\w+)\)")
_PROGRAM = re.compile(r"(?:^|\.)(?:Value|Type|Attribute|Assertion|Import|Name|FileNotFound|Permission)Error$")


def _bare(view: LogView) -> list[Candidate]:
    """An exception without its frames: its type tells where it is a special one; else it is the program's own."""
    for hit in view.hits.get("python_error", ()):
        passed = _RAY.search(hit.line.text)
        name, message = passed[1] if passed else hit.groups["type"], hit.groups["message"]
        if PASSED_ON.search(name):
            continue
        layer = _layer(Traceback(first=0, last=hit.line, frames=(), type=name, message=message))
        if layer is None or (layer == "tooling" and not _PROGRAM.search(name)):
            continue
        what = f"{name}: {message[:120]}" if message else name
        return [
            Candidate(
                name="python_exception", layer=layer, confidence=0.4, rank=rank_of(hit.line.text, hit.line.source),
                at=hit.line.number / max(view.lines, 1), says=f"{what} ended the process; the log lacks its frames",
                evidence=(Evidence(source=hit.line.source, line=hit.line.number, text=hit.line.text.strip()[:300]),),
 would_decide=("the whole traceback of the rank that failed first",),
            )
        ]  # fmt: skip
    return []


def _candidate(view: LogView, traceback: Traceback) -> Candidate | None:
    if PASSED_ON.search(traceback.type):
        return None
    function = _reward_function(traceback.frames)
    what = f"{traceback.type}: {traceback.message[:120]}" if traceback.message else traceback.type
    rank = rank_of(traceback.last.text, traceback.last.source)
    at = traceback.last.number / max(view.lines, 1)
    seen = (Evidence(source=traceback.last.source, line=traceback.last.number, text=traceback.last.text.strip()[:300]),)
    if function is not None:
        return Candidate(
            name="reward_function_raised", layer="reward", confidence=0.8, rank=rank, at=at, evidence=seen,
            says=f"the reward function {function} raised {what}",
        )  # fmt: skip
    layer = _layer(traceback)
    if layer is None:
        return None
    where = traceback.frames[-1]
    return Candidate(
        name="python_exception", layer=layer, confidence=0.55, rank=rank, at=at, evidence=seen,
        says=f"{what} in {where.function} of {where.path.rpartition('/')[2]} ended the process",
    )  # fmt: skip


def _reward_function(frames: tuple[Frame, ...]) -> str | None:
    """Name the innermost function of a reward; None where the failure lies in a model that gives the reward."""
    for place in range(len(frames) - 1, -1, -1):
        frame = frames[place]
        innermost = place == len(frames) - 1
        if innermost and _OF_REWARDS.search(frame.source):
            return frame.function
        if not (_REWARD.search(_place(frame)) or _CALLER.search(frame.function)):
            continue
        inner = frames[place + 1 :]
        if any(_REWARD_MODEL.search(one.path) for one in inner):
            return None
        if _CALLER.search(frame.function) and inner:
            return inner[0].function
        if frame.function.startswith("_generate") or frame.function == "<module>":
            continue
        return frame.function
    return None


_LOADING = re.compile(
    r"/transformers/\S* (?:_?from_pretrained|from_config|_get_module)$|/models/auto/"
    r"|(?:site-packages|dist-packages|/lib)/\S* <module>$"
)
_FORWARD = re.compile(r"/transformers/models/\S*modeling_\S* (?:forward|get_\w*features|\w*merge_input\w*)$")


def _place(frame: Frame) -> str:
    return f"{frame.path} {frame.function}"


def _layer(traceback: Traceback) -> str | None:
    for pattern, layer in _TYPES:
        if re.search(pattern, traceback.type):
            return layer
    if traceback.frames and _LOADING.search(_place(traceback.frames[-1])):
        return "tooling"  # a model or tokenizer that this library cannot make, or a library that does not come up
    if traceback.type == "ValueError" and traceback.frames and _FORWARD.search(_place(traceback.frames[-1])):
        return "data"  # a model that refuses its input
    for frame in reversed(traceback.frames):
        place = _place(frame)
        for pattern, layer in _FRAMES:
            if re.search(pattern, place):
                return layer
    last = traceback.type.rpartition(".")[2]
    if last == "KeyError" and _key_of_samples(traceback):
        return "data"
    if last in _ORDINARY and traceback.frames and _SAMPLES.search(traceback.frames[-1].source):
        return "data"
    if last in ("Exception", "TimeoutError") or (last == "RuntimeError" and _ELSEWHERE.search(traceback.message)):
        return None  # too general without a frame that speaks, or the reason lies elsewhere
    return "tooling"


_ORDINARY = ("KeyError", "IndexError", "TypeError", "AttributeError", "ValueError")
_SAMPLES = re.compile(
    r"\.map\(|\b(?:examples?|samples?|row|item)\[|\[[\"'](?:prompt|completion|answer|solution|question|messages|text)[\"']\]"
)
"""What the innermost frame was doing, by its source line: it took a sample apart."""


def _key_of_samples(traceback: Traceback) -> bool:
    """Tell whether the missing key is one that data sets have."""
    key = traceback.message.strip("'\"")
    return key in ("prompt", "completion", "answer", "solution", "messages", "text", "input_ids", "labels", "chosen",
                   "rejected", "images", "question", "ground_truth", "data_source", "reward_model")  # fmt: skip
