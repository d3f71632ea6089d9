"""Python tracebacks in a log: frames and exception of each, whatever prefix every line of it carries.

Ranks and actors interleave, so lines belong together by their prefix (`[rank1]: `, `(TaskRunner pid=7) `, a logger's
time), in which all digits but those of rank and process are ignored. A traceback whose head was cut off counts as
well. Memory is constant: the last `MAX_FRAMES` frames of one, the first `MAX_KEPT` of all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from grpo_sentinel.history.logs.lines import Line

MAX_FRAMES = 40
MAX_KEPT = 40
_MAX_OPEN = 64
_MAX_GAP = 400  # lines of other ranks between two lines of one traceback


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One frame: file and function as printed, and the source line below, which most tracebacks hold."""

    path: str
    function: str
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traceback:
    """One finished traceback; `last` is the line of its exception, `first` the number of its first line.

    Exceptions raised from others are one: `first` is then where the first of them begins.
    """

    first: int
    last: Line
    frames: tuple[Frame, ...]
    type: str
    message: str


_FRAME = re.compile(r'^(.{0,200}?)\s*File "([^"]{1,400})", line \d+, in (\S+)')
_RICH_FRAME = re.compile(r"^(.{0,200}?)\s*[│|] (/\S{1,400}\.py):\d+ in (\S+)\s*[│|]")  # as the library rich draws it
_HEAD = re.compile(r"^(.{0,200}?)\s*Traceback \(most recent call last\)")
_ERROR = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:: (.{0,300})|:?$)")
_DIGITS = re.compile(r"((?:[Rr]ank ?|pid=)\d+)|\d+")
_TAIL = re.compile(r"\s*[|+]?\s*$")
_CHAIN = ("direct cause of the following exception", "During handling of the above exception")
_NEAR = 12  # lines of other ranks between the sentence that chains two tracebacks and the second of them


@dataclass(slots=True)
class _Open:
    prefix: str  # as printed at the first line: only its length and its shape matter
    shape: str
    first: int
    seen: int
    frames: list[Frame] = field(default_factory=list)


@dataclass(slots=True)
class TracebackReader:
    """Collect tracebacks line by line."""

    kept: list[Traceback] = field(default_factory=list)
    _open: dict[tuple[str, str], _Open] = field(default_factory=dict)
    _ended: dict[str, int] = field(default_factory=dict)  # by source: where the last finished one began
    _chained: dict[str, tuple[int, int]] = field(default_factory=dict)  # by source: place of the sentence, that begin

    def feed(self, line: Line) -> Traceback | None:
        """Take one line; give the traceback that it ends."""
        text = line.text
        if 'File "' in text or "Traceback (most" in text or ("│ /" in text and ".py:" in text):
            self._note(line)
            return None
        if "exception" in text and line.source in self._ended and any(sentence in text for sentence in _CHAIN):
            self._chained[line.source] = line.number, self._ended[line.source]
        return self._finish(line) if self._open else None

    def _note(self, line: Line) -> None:
        frame = _FRAME.match(line.text) or _RICH_FRAME.match(line.text)
        head = None if frame else _HEAD.match(line.text)
        found = frame or head
        if found is None:
            return
        prefix = found[1].rstrip(" ╭─│╰")
        shape = _shape(prefix)
        key = (line.source, shape)
        one = self._open.get(key)
        if one is None or head is not None or line.number - one.seen > _MAX_GAP:
            if len(self._open) >= _MAX_OPEN:
                del self._open[next(iter(self._open))]
            one = self._open[key] = _Open(prefix, shape, self._begin(line), line.number)
        one.seen = line.number
        if frame is not None:
            one.frames.append(Frame(path=frame[2], function=frame[3]))
            del one.frames[:-MAX_FRAMES]

    def _begin(self, line: Line) -> int:
        """Number of the first line: that of the exception which this one was raised from, if there is one."""
        sentence, first = self._chained.pop(line.source, (-_NEAR - 1, 0))
        return first if line.number - sentence <= _NEAR else line.number

    def _finish(self, line: Line) -> Traceback | None:
        for key, one in self._open.items():
            if key[0] != line.source:
                continue
            head = line.text[: len(one.prefix)]
            rest = line.text[len(one.prefix) :]
            if _shape(head) != one.shape:
                # a number in the prefix may have grown a digit since the first line
                grown = re.match(_loose(one.shape), line.text[:240])
                if grown is None:
                    continue
                rest = line.text[grown.end() :]
            body = rest[1:] if one.prefix and rest.startswith(" ") else rest
            if not body.strip() or body[0] in " \t^~|│╭╰":
                _note_source(one, line, body)
                if one.prefix:
                    one.seen = line.number
                    return None
                continue  # a source line of the frame, or someone's empty line
            found = _ERROR.match(_TAIL.sub("", body))
            if found is None or not one.frames:
                if line.number - one.seen > _MAX_GAP:
                    del self._open[key]
                    return None
                continue
            if not _is_exception(found[1]):
                continue
            del self._open[key]
            self._ended[line.source] = one.first
            done = Traceback(
                first=one.first, last=line, frames=tuple(one.frames), type=found[1], message=found[2] or ""
            )
            if len(self.kept) < MAX_KEPT:
                self.kept.append(done)
            return done
        return None


def _note_source(one: _Open, line: Line, body: str) -> None:
    """Keep the line right below a frame: what it was doing."""
    if one.frames and not one.frames[-1].source and line.number <= one.seen + 2 and body.startswith("    "):
        one.frames[-1] = replace(one.frames[-1], source=body.strip()[:200])


_WORDS = ("Error", "Exception", "Exit", "Interrupt", "Timeout", "Warning", "Died", "Failure", "Stop", "Iteration")


def _is_exception(name: str) -> bool:
    """Tell an exception's class from an ordinary word with a colon: dotted, or named like one."""
    last = name.rpartition(".")[2]
    return last[:1].isupper() and (last.endswith(_WORDS) or "." in name)


def _shape(prefix: str) -> str:
    """A prefix with its numbers as `#`, those of rank and process excepted: a time changes from line to line."""
    return _DIGITS.sub(lambda found: found[1] or "#", prefix)


def _loose(shape: str) -> str:
    return re.escape(shape).replace(r"\#", r"\d+")
