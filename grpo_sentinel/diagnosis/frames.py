"""Whose work failed, by the frames of a traceback: a layer's, or the program's own."""

from __future__ import annotations

import re

from grpo_sentinel.diagnosis.reward_frames import ORDINARY, key_missing_in_rows, key_of_samples, place
from grpo_sentinel.history.logs.tracebacks import Frame, Traceback

_TYPES: tuple[tuple[str, str], ...] = (
    (
        r"Unicode(?:De|En)codeError|JSONDecodeError|Data(?:set|Files)\w*Error|Arrow(?!Memory)\w+|TemplateError|UndefinedError"
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
    (
        r"/torch/optim/|/ops/adam/|/apex/optimizers/|/torchao/optim/|/schedulefree/|/galore_torch/|lr_scheduler|/bitsandbytes/optim|_optimizer_step|optimizer\.py",
        "optimizer",
    ),
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
_FORWARD = re.compile(
    r"/transformers/models/\S*modeling_\S* (?:forward|get_\w*features|get_rope_index|\w*merge_input\w*)$"
)
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

_SAMPLES = re.compile(
    r"\.map\(|\b(?:examples?|samples?|row|item)\[|\[[\"'](?:prompt|completion|answer|solution|question|messages|text)[\"']\]"
)
"""What the innermost frame was doing, by its source line: it took a sample apart."""


_SHAPES = re.compile(
    r"^assert .*(?:labels?|input_ids|\w*mask|logits|log_?probs?|position_ids|responses?|prompts?)\w*"
    r"\.(?:shape|size|batch_size)\b"
)


OF_DATA = re.compile(
    r"\b(?:check|inspect|clean|filter|fix)\b.{0,30}\b(?:data(?:set)?|samples?|prompts?|examples?)\b"
    r"|\b(?:data(?:set)?|samples?|prompts?|examples?)\b.{0,20}\b(?:is|are|was|were) (?:too|empty|invalid|malformed)\b"
    r"|\b(?:empty|invalid|malformed) (?:data(?:set)?|samples?|prompts?|examples?)\b"
)
"""Messages that send the reader to the data."""


def layer_of(traceback: Traceback) -> str | None:
    """Tell whose work failed; None where neither the exception nor a frame tells."""
    last = traceback.type.rpartition(".")[2]
    frames = [place(frame) for frame in traceback.frames]
    if of_a_tracker(traceback) or (last in ("AttributeError", "TypeError") and _CHANGED.search(traceback.message)):
        return "tooling"
    if key_missing_in_rows(traceback):
        return "data"
    for pattern, layer in _TYPES:
        if re.search(pattern, traceback.type) and not (
            layer == "communication" and _ANSWERED.search(traceback.message)
        ):
            return layer
    if frames and (_LOADING.search(frames[-1]) or _loads(traceback.frames)):
        return "tooling"  # a model or tokenizer that this library cannot make, or a library that does not come up
    if last in ("ValueError", "IndexError") and frames and _FORWARD.search(frames[-1]):
        return "data"  # a model that refuses its input
    if last == "AssertionError" and frames and _SHAPES.search(traceback.frames[-1].source):
        return "data"  # what a batch is made of does not fit together
    found = _by_frames(frames, last, traceback.message)
    if found is not None:
        return found
    if last == "KeyError" and key_of_samples(traceback):
        return "data"
    if last in ORDINARY and frames and _SAMPLES.search(traceback.frames[-1].source):
        return "data"
    if last in ("ValueError", "RuntimeError", "AssertionError", "Exception") and OF_DATA.search(traceback.message):
        return "data"
    if last == "Exception" or "Timeout" in last or (last == "RuntimeError" and _elsewhere(traceback.message)):
        return None  # too general without a frame that speaks, or the reason lies elsewhere
    return "tooling"


_STORES = re.compile(
    r"(?<!torch/utils)/(?:dist_)?checkpoint(?:ing|er|_engine|_manager)?s?(?:/|\.py)"
    r"| \w*(?:(?:save|load)_\w*(?:checkpoint|state|model)|state_dict)\w*$"
)
"""Saving or loading a checkpoint: what fails on the way is its writer's or reader's, in whatever file it stands."""


def _by_frames(frames: list[str], last: str, message: str) -> str | None:
    """The innermost frame that tells."""
    for number in range(len(frames) - 1, -1, -1):
        here = frames[number]
        if _ARGUMENTS.search(here):
            return "tooling"
        for pattern, layer in _FRAMES:
            if not re.search(pattern, here) or _MAIN.search(here):
                continue
            if layer == "optimizer" and any(map(_STORES.search, frames)):
                return "tooling"
            if layer == "communication":
                if _NO_SUCH.search(message):
                    return "tooling"  # it is another server than the one which is asked for
                if not _NETWORK.search(last) or _ANSWERED.search(message):
                    continue
                if "/torch/" in here and last == "RuntimeError" and not _OF_NETWORK.search(message):
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
