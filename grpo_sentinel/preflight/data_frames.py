"""What a chat template writes around the texts of one sequence of roles, learned from the template itself.

Rendering a template takes as long as tokenizing (Qwen3.5: 60 us), and what it writes around texts is nearly always the
same. A frame is learned by rendering marks in place of texts. It stands in for the template only for plain texts:
without `<` (templates look for `</think>` and the like) and without white space at the ends (which templates strip),
and it is compared with the template again and again; at the first difference it is given up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Chat = list[dict[str, str]]
_MARK = "mark{}of this text"
_MOST_ROLES = 16
_MOST_FRAMES = 64
_FIRST = 16  # uses that are all compared with the template
_EVERY = 64  # later on


@dataclass(slots=True)
class _Frame:
    between: tuple[str, ...]  # what stands before, between and after the texts; empty: not a frame
    uses: int = 0


@dataclass(slots=True)
class Frames:
    """Renders conversations by frames where that is the same, else by the template."""

    render: Callable[[Chat], str]
    _frames: dict[tuple[str, ...], _Frame] = field(default_factory=dict)

    def text(self, messages: Sequence[tuple[str, str]]) -> str:
        """Render messages of (role, text). Raises what the template raises."""
        roles = tuple([role for role, _ in messages])
        frame = self._frames.get(roles)
        if frame is None:
            frame = self._learned(roles)
        if not frame.between or not all(_plain(text) for _, text in messages):
            return self.render(_chat(messages))
        frame.uses += 1
        before, *after = frame.between
        joined = before + "".join([text + rest for (_, text), rest in zip(messages, after, strict=True)])
        if frame.uses > _FIRST and frame.uses % _EVERY:
            return joined
        exact = self.render(_chat(messages))
        if exact != joined:
            frame.between = ()
        return exact

    def _learned(self, roles: tuple[str, ...]) -> _Frame:
        marks = [_MARK.format(place) for place in range(len(roles))]
        between: tuple[str, ...] = ()
        if len(roles) <= _MOST_ROLES and len(self._frames) < _MOST_FRAMES:
            rest, pieces = self.render(_chat(list(zip(roles, marks, strict=True)))), []
            if all(rest.count(mark) == 1 for mark in marks):
                for mark in marks:
                    piece, found, rest = rest.partition(mark)
                    pieces.append(piece)
                    if not found:  # another order
                        break
                else:
                    between = (*pieces, rest)
        frame = _Frame(between)
        if len(self._frames) < _MOST_FRAMES:
            self._frames[roles] = frame
        return frame


def _plain(text: str) -> bool:
    return "<" not in text and text[:1].strip() == text[:1] != "" and text[-1:].strip() != ""


def _chat(messages: Sequence[tuple[str, str]]) -> Chat:
    return [{"role": role, "content": text} for role, text in messages]


__all__ = ["Chat", "Frames"]
