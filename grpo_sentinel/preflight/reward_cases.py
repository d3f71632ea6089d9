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
    "the answer is": "the result is", "therefore": "so", "thus": "hence", "because": "since", "we get": "we obtain",
    "for example": "for instance", "however": "but", "first": "to begin with", "in order to": "to", "big": "large",
}  # fmt: skip
_CHINESE_WORDS = {
    "因此": "所以",
    "答案是": "结果是",
    "首先": "第一",
    "例如": "比如",
    "但是": "不过",
    "我们得到": "可得",
}
_ENGLISH = re.compile("|".join(rf"\b{re.escape(word)}\b" for word in _ENGLISH_WORDS), re.IGNORECASE)
_CHINESE_FIND = re.compile("|".join(_CHINESE_WORDS))


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
    return {name: text for name, text in found.items() if text != gold and (text or name == "empty")}


def paraphrase(text: str) -> str:
    """Say it a little differently: other connecting words, an opening, other spacing; the answer stays as it is."""
    if _CHINESE.search(text):
        swapped = _CHINESE_FIND.sub(lambda found: _CHINESE_WORDS[found[0]], text)
        return swapped if swapped != text else f"好的，{text}"
    swapped = _ENGLISH.sub(lambda found: _ENGLISH_WORDS[found[0].lower()], text)
    return swapped if swapped != text else f"Well, {text}"


def _appending(end: str) -> Perturbation:
    return lambda text: text + end


def _spaced(text: str) -> str:
    return re.sub(r" +", "  ", text) + "\n"


PERTURBATIONS: Mapping[str, tuple[Perturbation, ...]] = MappingProxyType({
    "special tokens": tuple(map(_appending, ("<|endoftext|>", "</s>", "<|im_end|>", "<pad>"))),
    "symbols": tuple(map(_appending, ("!", " .", "\n", " ✓", " 。"))),
    "paraphrase": (paraphrase, _spaced),
})  # fmt: skip
"""Class -> ways to perturb; applied in turn over the samples."""

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


__all__ = ["PERTURBATIONS", "Perturbation", "canaries", "of_lengths", "paraphrase", "with_typo", "without_format"]
