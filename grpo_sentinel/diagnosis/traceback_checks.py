"""From a whole traceback to a candidate: its frames tell whose work failed when its last line alone does not."""

from __future__ import annotations

import re

from grpo_sentinel.diagnosis.frames import OF_DATA, layer_of, of_a_compiler, of_a_tracker
from grpo_sentinel.diagnosis.reward_frames import reward_function, scoring_model
from grpo_sentinel.diagnosis.thinning import rank_of
from grpo_sentinel.diagnosis.verdict import Candidate, Evidence
from grpo_sentinel.diagnosis.view import LogView
from grpo_sentinel.history.logs.lines import Line
from grpo_sentinel.history.logs.markers import Hit
from grpo_sentinel.history.logs.tracebacks import Traceback

PASSED_ON = re.compile(
    r"RayTaskError|RayActorError|ActorDied|ActorUnavailable|ChildFailedError|CalledProcessError|EngineDead|EngineCore"
    r"|ProcessExited|ProcessRaised|DistBackendError|BrokenPipe|EOFError|KeyboardInterrupt|SystemExit|CancelledError"
    r"|GetTimeoutError|WorkerCrashed|BrokenProcessPool|AcceleratorError|SignalException"
)
"""Exceptions that only pass on that something else ended: no cause in themselves."""

GENERIC = ("python_error", "not_implemented", "deprecated_arg", "missing_attribute", "missing_argument",
           "reward_missing", "reward_error", "reward_argument", "scoring_failed", "index_range",
           "column_missing")  # fmt: skip
"""Markers whose meaning depends on the frames above them."""

SHAPES = ("mask_shape", "shape_mismatch", "ragged_batch", "ragged_tensor", "ragged_sequence", "broken_file", "bad_text",
          "wrong_device", "no_padding_token")  # fmt: skip
"""What does not fit is the batch's, or the program's, unless the frames belong to what scores or to the optimizer."""

SERVERS = ("read_timeout", "refused", "disconnected", "connection_reset", "server_unreachable", "no_route")
"""A server that does not answer is one of the trainer's, unless the frames belong to a reward function."""


CONFIDENCE = {"tooling": 0.7, "data": 0.65, "memory": 0.65, "gradient": 0.6, "optimizer": 0.6, "communication": 0.5}
"""How often such a verdict was right on logs in the shape of public threads, before they were learned from; rounded
down. Of communication few were, because a server or a rank that does not answer has mostly a reason elsewhere."""


def candidates_of_tracebacks(view: LogView) -> list[Candidate]:
    """Give a candidate for every traceback whose exception no marker explains by itself."""
    out = []
    told = beside_the_point(view)
    for traceback, marker in view.tracebacks:
        if marker is not None and marker not in (*GENERIC, *SHAPES, *SERVERS):
            continue
        found = _candidate(view, traceback, marker)
        if found is None or (marker in (*SHAPES, *SERVERS) and found.layer not in speaks_for(marker)):
            continue
        if traceback.ignored or (
            found.layer != "reward" and (_place_of(traceback.last) in told or _follows(view, traceback, found))
        ):
            continue
        out.append(found)
    return out or _bare(view)


def speaks_for(marker: str | None) -> tuple[str, ...]:
    """Layers whose frames say more than the marker of a traceback's last line."""
    return ("reward", "optimizer") if marker in SHAPES else ("reward",)


def beside_the_point(view: LogView) -> set[tuple[str, int | None]]:
    """Places of exceptions that were dealt with or ignored, or that tell in other words of the one they came from."""
    known = {_place_of(t.last): t for t, marker in view.tracebacks if marker or not PASSED_ON.search(t.type)}
    told = {_place_of(t.last) for t, _ in view.tracebacks if t.ignored or (t.last.source, t.wraps) in known}
    dealt_with = {(t.last.source, t.handled) for t, marker in view.tracebacks if t.handled and _own(marker)}
    return told | {place for place in dealt_with & known.keys() if _LOOKED_UP.search(known[place].type)}


def _own(marker: str | None) -> bool:
    """Tell whether a marker names a cause by itself."""
    return marker is not None and marker not in GENERIC


_LOOKED_UP = re.compile(r"(?:Key|Index|Attribute|Import|ModuleNotFound|FileNotFound)Error$|StopIteration|Empty$")
"""Exceptions that a program expects and goes round."""


def _follows(view: LogView, traceback: Traceback, found: Candidate) -> bool:
    """Tell whether a failure of no special kind came after lines that tell of one which it may follow from."""
    if found.layer not in ("tooling", "communication") or traceback.type.rpartition(".")[2] not in _GENERAL:
        return False
    return any(
        hits[0].marker.role in ("symptom", "witness")
        and name not in ("python_error", "reward_frame", "busy_scoring")
        and not view.survived(name)
        and hits[0].line.source == traceback.last.source
        and hits[0].line.number < traceback.first
        for name, hits in view.hits.items()
    )


_GENERAL = ("RuntimeError", "Exception", "OSError", "ConnectionError", "ConnectError", "TimeoutError")


def _place_of(line: Line) -> tuple[str, int]:
    return line.source, line.number


_RAY = re.compile(r"RayTaskError\((\w+)\)")
_PROGRAM = re.compile(
    r"(?:^|\.)(?:Value|Type|Attribute|Assertion|Import|ModuleNotFound|Name|Syntax|Indentation|FileNotFound|Permission)Error$"
)


_OF_DATA_SETS = re.compile(r"Data(?:set|Files)\w*Error$|Arrow\w+$")


_LACKS = re.compile(r"([\w.<>]+)\(\) missing \d+ required (?:positional|keyword-only) arguments?: (.{1,100})")
_SCORES = re.compile(r"^\s+(?:\w*(?:reward|score)\w*\s*[-+*/]?=[^=]|return\b.*(?:reward|score))")


def _own_arithmetic(view: LogView, line: Line, kind: str) -> bool:
    """Tell whether the source line right above an exception computes a score."""
    if kind not in ("ZeroDivisionError", "OverflowError", "FloatingPointError"):
        return False
    return any(_SCORES.search(one.text) for one in view.before(line)[-2:])


def _bare(view: LogView) -> list[Candidate]:
    """An exception without its frames: its type tells where it is a special one; else it is the program's own."""
    if view.survived("python_error"):
        return []
    for hit in view.hits.get("python_error", ()):
        passed = _RAY.search(hit.line.text)
        name, message = passed[1] if passed else hit.groups["type"], hit.groups["message"]
        if PASSED_ON.search(name):
            continue
        if _own_arithmetic(view, hit.line, name):
            says = f"what computes the score raised {name}: {message}"
            return [_frameless(view, hit, "reward_function_raised", "reward", "cause", 0.65, says)]
        layer = layer_of(Traceback(first=0, last=hit.line, frames=(), type=name, message=message))
        if layer is None or (layer == "tooling" and not _PROGRAM.search(name)):
            continue
        what = f"{name}: {message[:120]}" if message else name
        sure = layer == "tooling" or _OF_DATA_SETS.search(name) or OF_DATA.search(message)
        says = f"{what} ended the process; the log lacks its frames"
        return [_frameless(view, hit, "python_exception", layer, "symptom", 0.6 if sure else 0.4, says)]
    return []


def _frameless(view: LogView, hit: Hit, name: str, layer: str, role: str, confidence: float, says: str) -> Candidate:
    return Candidate(
        name=name, layer=layer, role=role, confidence=confidence, says=says,
        rank=rank_of(hit.line.text, hit.line.source), at=hit.line.number / max(view.lines, 1),
        evidence=(Evidence(source=hit.line.source, line=hit.line.number, text=hit.line.text.strip()[:300]),),
        would_decide=("the whole traceback of the rank that failed first",),
    )  # fmt: skip


def _candidate(view: LogView, traceback: Traceback, marker: str | None) -> Candidate | None:
    function = reward_function(traceback) or (scoring_model(traceback) if marker == "no_padding_token" else None)
    if PASSED_ON.search(traceback.type) and not (
        of_a_tracker(traceback) or of_a_compiler(traceback) or (function and traceback.type == "SystemExit")
    ):
        return None
    if traceback.message.startswith("Caught "):
        return None  # in a worker of a loader or a replica: the exception itself stands below
    what = f"{traceback.type}: {traceback.message[:120]}" if traceback.message else traceback.type
    rank = rank_of(traceback.last.text, traceback.last.source)
    at = traceback.last.number / max(view.lines, 1)
    seen = (Evidence(source=traceback.last.source, line=traceback.last.number, text=traceback.last.text.strip()[:300]),)
    if function is not None:
        lacks = _LACKS.match(traceback.message)
        if lacks is not None:
            return Candidate(
                name="reward_argument", layer="reward", confidence=0.75, rank=rank, at=at, evidence=seen,
                says=f"the reward function {lacks[1].rpartition('.')[2]} asks for {lacks[2]}, which the trainer does "
                "not pass",
            )  # fmt: skip
        return Candidate(
            name="reward_function_raised", layer="reward", confidence=0.75, rank=rank, at=at, evidence=seen,
            says=f"the reward function {function} raised {what}",
        )  # fmt: skip
    layer = layer_of(traceback)
    if layer is None:
        return None
    where = traceback.frames[-1]
    general = layer == "tooling" and traceback.type.rpartition(".")[2].endswith("RuntimeError")
    return Candidate(
        name="python_exception", layer=layer, confidence=0.65 if general else CONFIDENCE[layer], rank=rank, at=at,
        evidence=seen,
        says=f"{what} in {where.function} of {where.path.rpartition('/')[2]} ended the process",
    )  # fmt: skip
