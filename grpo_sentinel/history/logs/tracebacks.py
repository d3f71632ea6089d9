"""Python tracebacks in a log: frames and exception of each, whatever prefix every line of it carries.

Ranks and actors interleave, so lines belong together by their prefix (`[rank1]: `, `(TaskRunner pid=7) `, a logger's
time), in which all digits but those of rank and process are ignored. A traceback whose head was cut off counts as
well, and one that a notebook printed. Memory is constant: the last `MAX_FRAMES` frames of one, the first `MAX_KEPT` of
all.
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

    Exceptions raised from others are one: `first` is then where the first of them begins, and `wraps` the number of the
    line that ended the one before, when this one only tells of it in other words; `handled` that number when the one
    before was dealt with, and this one came up in doing so.
    """

    first: int
    wraps: int | None = None
    handled: int | None = None
    ignored: bool = False  # raised while an object was thrown away: the program went on
    last: Line
    frames: tuple[Frame, ...]
    type: str
    message: str


_FRAME = re.compile(r'^(.{0,200}?)\s*File ["“]([^"”]{1,400})["”], line \d+, in (\S+)')
# as the library rich draws it
_RICH_FRAME = re.compile(r"^(.{0,200}?)\s*[│|] ((?:/|[A-Z]:\\)\S{1,400}\.py):\d+ in (\S+)\s*[│|]")
_HEAD = re.compile(r"^(.{0,200}?)\s*Traceback \(most recent call last\)")
_NOTEBOOK = re.compile(r"^(.{0,200}?)([A-Za-z_][\w.]*)\s{3,}Traceback \(most recent call last\)")
_NOTEBOOK_FRAME = re.compile(
    r"^\s*(?:File )?\[?([~/<]\S{1,400}?|[A-Za-z]:\\\S{1,400}?)(?::\d+)?,? in ((?:<[^>]*>|[\w.]+))\s*\(?"
    r"|^\s*((?:Cell|Input) In ?\[\d+\])(?:, line \d+)?(?:, in ((?:<[^>]*>|[\w.]+)))?"
)
_ARROW = re.compile(r"^-+> ?\d+ ?(.*)$")
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
    indent: str = ""  # what the whole of it is moved in by, as a quoted one is
    notebook: bool = False
    wrapped: int | None = None  # the line that ended the exception which this one was raised from or after
    ignored: bool = False
    handling: bool = False  # it came up while that one was handled: it may be another one, or the same in other words


@dataclass(slots=True)
class TracebackReader:
    """Collect tracebacks line by line."""

    kept: list[Traceback] = field(default_factory=list)
    _open: dict[tuple[str, str], _Open] = field(default_factory=dict)
    _ended: dict[str, tuple[int, int]] = field(default_factory=dict)  # by source: first and last line of the last one
    _ignored: dict[str, int] = field(default_factory=dict)  # by source: the last line that tells of one
    _chained: dict[str, tuple[int, int, int, bool]] = field(default_factory=dict)  # place of the sentence, those, how

    def feed(self, line: Line) -> Traceback | None:
        """Take one line; give the traceback that it ends."""
        text = line.text
        if 'File "' in text or "File “" in text or "Traceback (most" in text or ("│" in text and ".py:" in text):
            self._note(line)
            return None
        if "Exception ignored in" in text:
            self._ignored[line.source] = line.number
        if "exception" in text and line.source in self._ended and any(sentence in text for sentence in _CHAIN):
            self._chained[line.source] = line.number, *self._ended[line.source], _CHAIN[1] in text
        return self._finish(line) if self._open else None

    def _note(self, line: Line) -> None:
        frame = _FRAME.match(line.text) or _RICH_FRAME.match(line.text)
        head = None if frame else _NOTEBOOK.match(line.text) or _HEAD.match(line.text)
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
            one = self._open[key] = self._begin(prefix, shape, line)
            one.notebook = head is not None and head.re is _NOTEBOOK
            if head is not None and not prefix:
                one.indent = line.text[: len(line.text) - len(line.text.lstrip())]
        one.seen = line.number
        if frame is not None:
            _add(one, Frame(path=frame[2], function=frame[3]))

    def _begin(self, prefix: str, shape: str, line: Line) -> _Open:
        """Open one; it begins with the exception which it was raised from, if there is one."""
        sentence, first, last, handling = self._chained.pop(line.source, (-_NEAR - 1, 0, 0, False))
        if line.number - sentence > _NEAR:
            ignored = line.number - self._ignored.pop(line.source, -_NEAR) <= 3
            return _Open(prefix, shape, line.number, line.number, ignored=ignored)
        return _Open(prefix, shape, first, line.number, wrapped=last, handling=handling)

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
            if one.indent:
                body = body.removeprefix(one.indent)
            if one.notebook and _note_notebook(one, line, body):
                return None
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
            self._ended[line.source] = one.first, line.number
            doing = one.frames[-1].source
            told = not one.handling or doing.startswith("raise ")
            done = Traceback(
                first=one.first,
                wraps=one.wrapped if told else None,
                handled=one.wrapped if doing and not told else None,
                last=line,
                frames=tuple(one.frames),
                type=found[1],
                message=found[2] or "",
                ignored=one.ignored,
            )
            if len(self.kept) < MAX_KEPT:
                self.kept.append(done)
            return done
        return None


def _add(one: _Open, frame: Frame) -> None:
    one.frames.append(replace(frame, path=frame.path.replace("\\", "/")) if "\\" in frame.path else frame)
    del one.frames[:-MAX_FRAMES]


def _note_notebook(one: _Open, line: Line, body: str) -> bool:
    """Take a line of a notebook's traceback: `FILE in f(x)`, `File FILE:3, in f(x)`, or `----> 3 code` below it."""
    arrow = _ARROW.match(body)
    frame = None if arrow else _NOTEBOOK_FRAME.match(body)
    if arrow and one.frames:
        one.frames[-1] = replace(one.frames[-1], source=arrow[1].strip()[:200])
    elif frame:
        _add(
            one,
            Frame(
                path=(frame[1] or frame[3]).partition("](")[0],
                function=(frame[2] or frame[4] or "<module>").rpartition(".")[2],
            ),
        )
    if arrow or frame:
        one.seen = line.number
    return bool(arrow or frame)


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
