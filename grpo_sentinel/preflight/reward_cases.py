"""Texts that a reward must survive: canaries that must not win, and perturbations that must not move it (S15).

English and Chinese are built in. A module given with `--perturbations` adds classes: `PERTURBATIONS`, a mapping from a
name to a function from text to text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from grpo_sentinel.preflight.data_shapes import joined
from grpo_sentinel.preflight.reward_target import Sample

Perturbation = Callable[[str], str]
_CHINESE = re.compile("[\u4e00-\u9fff]")
_WRAPPERS = re.compile(r"</?(?:answer|think|solution|reasoning)>|\\boxed|####|\*\*|[{}$]")
_ENGLISH_WORDS = {
    "therefore": "so", "thus": "hence", "because": "since", "we get": "we obtain",
    "for example": "for instance", "however": "but", "first": "to begin with", "in order to": "to", "big": "large",
}  # fmt: skip
_CHINESE_WORDS = {
    "因此": "所以",
    "首先": "第一",
    "例如": "比如",
    "但是": "不过",
    "我们得到": "可得",
}
_ENGLISH = re.compile("|".join(rf"\b{re.escape(word)}\b" for word in _ENGLISH_WORDS), re.IGNORECASE)
_CHINESE_FIND = re.compile("|".join(_CHINESE_WORDS))
_LEADING_TAG = re.compile(r"^(?:\s*<\w+>\s*)?")
_WORD = re.compile(r"[^\W\d_]{2,}")
_FEWEST_WORDS = 3
_NO_PROSE = ("{", "[", "def ", "import ", "from ", "class ", "#include", "SELECT ")


def with_typo(text: str, answer: str) -> str | None:
    """Change one character of the last occurrence of the answer: another digit or letter; None when there is none."""
    at = text.rfind(answer) if answer else -1
    begin, end = (at, at + len(answer)) if at >= 0 else (0, len(text))
    for index in range(end - 1, begin - 1, -1):
        if text[index].isalnum():
            return text[:index] + _other(text[index]) + text[index + 1 :]
    return None


def _other(character: str) -> str:
    if character.isdigit():
        return str((int(character) + 1) % 10) if character.isascii() else "0"
    return "b" if character in "aA" else "a"


def without_format(text: str) -> str:
    """Take tags, boxes and markers off, so that only the bare answer is left."""
    return " ".join(_WRAPPERS.sub(" ", text).split())


def canaries(sample: Sample) -> dict[str, str]:
    """Completions that must not score above the gold one; by name. One that equals the gold is left out."""
    gold = sample.completion
    word = "的" if _CHINESE.search(gold) else "the"
    found = {
        "empty": "",
        "repeated token": " ".join([word] * 200),
        "copied prompt": joined(sample.prompt) if sample.prompt else "",
        "typo in the answer": with_typo(gold, sample.answer) or gold, "wrong format": without_format(gold),
    }  # fmt: skip
    if found["wrong format"] == " ".join(gold.split()):
        del found["wrong format"]  # it has no format but its spacing
    return {name: text for name, text in found.items() if text != gold and (text or name == "empty")}


def paraphrase(text: str) -> str:
    """Say it a little differently: other connecting words, else an opening (inside a leading tag).

    "The answer is" stays: to many a grader it is the mark of the answer and no wording.
    """
    if _CHINESE.search(text):
        swapped = _CHINESE_FIND.sub(lambda found: _CHINESE_WORDS[found[0]], text)
        return swapped if swapped != text else _LEADING_TAG.sub(lambda found: f"{found[0]}好的，", text, count=1)
    swapped = _ENGLISH.sub(lambda found: _ENGLISH_WORDS[found[0].lower()], text)
    return swapped if swapped != text else _LEADING_TAG.sub(lambda found: f"{found[0]}Well, ", text, count=1)


def is_prose(sample: Sample) -> bool:
    """Whether its completion has wording that can be said otherwise, beside its answer: no bare answer, no code."""
    text = sample.completion.strip()
    if text.startswith(_NO_PROSE) or "```" in text:
        return False
    rest = without_format(text.replace(sample.answer.strip(), " ") if sample.answer.strip() else text)
    return len(_WORD.findall(rest)) >= _FEWEST_WORDS or len(_CHINESE.findall(rest)) >= _FEWEST_WORDS


def _appending(end: str) -> Perturbation:
    return lambda text: text + end


def _spaced(text: str) -> str:
    """Twice the space between words, and a new line at the end; indentation, which code needs, stays."""
    return re.sub(r"(?<=\S) +(?=\S)", "  ", text) + "\n"


PERTURBATIONS: Mapping[str, tuple[Perturbation, ...]] = MappingProxyType({
    "special tokens": tuple(map(_appending, ("<|endoftext|>", "</s>", "<|im_end|>", "<pad>"))),
    "symbols": (*map(_appending, ("!", " .", "\n", " ✓", " 。")), _spaced),
    "paraphrase": (paraphrase,),
})  # fmt: skip
"""Class -> ways to perturb; applied in turn over the samples."""

EDITS = frozenset({"special tokens", "symbols"})
"""Classes that edit the answer's form: a strict grader may refuse them, and none may be paid for them."""

_FILLER = {False: " That is all there is to say about it.", True: "关于这个问题就说到这里。"}


def of_lengths(text: str, limit: int, count: int) -> list[str]:
    """Lengthen one text with neutral words to `count` lengths from its own to 1.1 times the limit, in characters."""
    filler = _FILLER[bool(_CHINESE.search(text))]
    out = []
    for index in range(count):
        target = len(text) + (int(limit * 1.1) - len(text)) * index // max(1, count - 1)
        room = max(0, target - len(text))
        out.append((filler * (room // len(filler) + 1))[:room] + ("\n" if room else "") + text)
    return out


__all__ = [
    "EDITS", "PERTURBATIONS", "Perturbation", "canaries", "is_prose", "of_lengths", "paraphrase", "with_typo",
    "without_format",
]  # fmt: skip
