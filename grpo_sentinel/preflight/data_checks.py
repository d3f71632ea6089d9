"""Judge one sample at a time (S1-S5): fields, texts, answer, reward, duplicates, leakage. No input, no output."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_sentinel.preflight.data_invisible import invisible
from grpo_sentinel.preflight.data_leakage import Evaluated
from grpo_sentinel.preflight.data_repeats import Repeats, row_key, text_hash
from grpo_sentinel.preflight.data_shapes import (
    MISSING,
    Fields,
    Messages,
    joined,
    kind_of,
    lookup,
    odd_role,
    only_system,
    split_conversation,
    texts_of,
    user_text,
)
from grpo_sentinel.preflight.report import excerpt
from grpo_sentinel.stats import Moments

# controls without \t \n \r; U+FFFD stands for lost text, surrogates cannot be encoded, U+FFFE and U+FFFF are none
_POISON = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufffd-\uffff\ud800-\udfff]")
_CONTROLS = bytes(code for code in range(128) if _POISON.match(chr(code)))
_NAMES = {"\x00": "NUL", "\ufffd": "U+FFFD"}
_SPECIAL = (  # of well-known families, where no tokenizer is given; <s> is HTML more often than a token
    r"<\|[a-zA-Z0-9_]{2,40}\|>|<(?:bos|eos|pad|unk|start_of_turn|end_of_turn)>|\[/?INST\]|<</?SYS>>"
    r"|<｜[^｜<>]{2,40}｜>"
)
Faults = list[tuple[str, str, str]]  # code, text for the example, detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the caller asks for; None = not judged."""

    reward_low: float | None = None
    reward_high: float | None = None
    max_length: int | None = None  # tokens where there is a tokenizer, else characters
    repeats: float = 0.01  # share of rows that may repeat an earlier one before that is a fault


@dataclass(slots=True)
class Judged:
    """One sample as judged: its faults as (code, example text, detail), and what was read of it."""

    faults: Faults
    prompt: Messages
    response: Messages
    rewards: list[float]
    length: int  # characters of prompt and response
    key: int | None = None  # of `row_key`, where repeats are sought
    faulty: bool = False  # before tokens were looked at
    asked: int | None = None  # hash of the prompt, where there is a key
    answer: Any = None
    group: bool = False  # the rewards are those of several responses


class Judge:
    """Judges samples of one shape; `repeats` remembers them, where this process sees all of them."""

    def __init__(
        self,
        limits: Limits,
        *,
        special_tokens: Iterable[str] = (),
        evaluated: Evaluated | None = None,
        repeats: Repeats | None = None,
    ) -> None:
        own = sorted((re.escape(token) for token in special_tokens if len(token) > 2), key=len, reverse=True)
        self._special = re.compile("|".join(own) or _SPECIAL)
        self._special_starts = tuple({token[0] for token in special_tokens if len(token) > 2} or {"<", "["})
        self._limits = limits
        self._repeats = repeats
        self._evaluated = evaluated or Evaluated()

    def judge(self, row: Mapping[str, Any], fields: Fields) -> Judged:
        """Judge one row; the order of faults is the order of the checks."""
        faults: Faults = []
        for name in fields.required:
            if name not in row and lookup(row, name) is MISSING:
                faults.append(("missing-field", "", name))
        prompt, response = self._texts(row, fields, faults)
        whole = joined(prompt) if prompt else ""
        answered = joined(response) if response else ""
        rewards = self._rewards(row, fields, faults)
        self._poison("prompt", whole, faults)
        if answered:
            self._poison("response", answered, faults)
        if fields.answer:
            self._answer(lookup(row, fields.answer), fields.answer_kind, faults)
        asked = user_text(prompt) if prompt else ""
        for start in self._special_starts:
            if start in asked and (found := self._special.search(asked)):
                faults.append(("special-token", asked[max(0, found.start() - 20) :], found[0]))
                break
        answer = lookup(row, fields.answer) if fields.answer else None
        key = hashed = None
        if whole and not fields.media:
            hashed = text_hash(whole)
            key = self._repeated(hashed, prompt, answered, answer, faults)
        return Judged(
            faults, prompt, response, rewards, len(whole) + len(answered), key, bool(faults), hashed,
            None if answer is MISSING else answer, _is_group(row, fields),
        )  # fmt: skip

    def _texts(self, row: Mapping[str, Any], fields: Fields, faults: Faults) -> tuple[Messages, Messages]:
        value = lookup(row, fields.prompt)
        prompt, wrong = texts_of(None if value is MISSING else value)
        if wrong:
            faults.append(("bad-field", wrong, fields.prompt))
        response: Messages = []
        if fields.response:
            response = self._response(row, fields, faults)
        elif fields.prompt == "messages":
            prompt, response = split_conversation(prompt)
        if value is not MISSING and not wrong and not _says_something(prompt):
            faults.append(("empty-prompt", "", ""))
        elif only_system(prompt):
            faults.append(("no-question", joined(prompt), ""))
        if role := odd_role(prompt) or odd_role(response):
            faults.append(("odd-role", joined(prompt), repr(role[:40])))
        if fields.response == "chosen" and _same(lookup(row, "chosen"), lookup(row, "rejected")):
            faults.append(("same-pair", joined(response) if response else "", ""))
        return prompt, response

    def _response(self, row: Mapping[str, Any], fields: Fields, faults: Faults) -> Messages:
        value = lookup(row, fields.response)
        if value is MISSING:
            return []
        if isinstance(value, list) and (not value or not isinstance(value[0], Mapping)):
            return self._group(value, row, fields, faults)
        response, wrong = texts_of(value)
        if wrong:
            faults.append(("bad-field", wrong, fields.response))
        elif not _says_something(response):
            faults.append(("empty-response", "", ""))
        return response

    def _group(self, value: list[Any], row: Mapping[str, Any], fields: Fields, faults: Faults) -> Messages:
        if not value:
            faults.append(("empty-group", "", ""))
            return []
        rewards = lookup(row, fields.reward) if fields.reward else MISSING
        if isinstance(rewards, list) and len(rewards) != len(value):
            faults.append(("group-mismatch", f"{len(value)} responses, {len(rewards)} rewards", ""))
        out: Messages = []
        for one in value:
            messages, wrong = texts_of(one)
            if wrong:
                faults.append(("bad-field", wrong, fields.response))
            elif not _says_something(messages):
                faults.append(("empty-response", "", ""))
            out += messages
        return out

    def _rewards(self, row: Mapping[str, Any], fields: Fields, faults: Faults) -> list[float]:
        if not fields.reward:
            return []
        value = lookup(row, fields.reward)
        if value is MISSING:
            return []
        low, high = self._limits.reward_low, self._limits.reward_high
        if low is high is None and type(value) is float and math.isfinite(value):
            return [value]  # nearly always: nothing to say
        out = []
        for one in value if isinstance(value, list) else (value,):
            number = None if fields.typed and isinstance(one, str) else _number(one)
            if number is None:
                faults.append(("reward-not-a-number", repr(one), ""))
            elif not math.isfinite(number):
                faults.append(("reward-not-finite", repr(one), ""))
            else:
                out.append(number)
                if (low is not None and number < low) or (high is not None and number > high):
                    faults.append(("reward-range", repr(one), ""))
        return out

    def _poison(self, part: str, text: str, faults: Faults) -> None:
        if text.isascii():  # a table of bytes, ten times faster than the search
            raw = text.encode()
            if len(raw.translate(None, _CONTROLS)) == len(raw):
                return
        elif text.isprintable() and "\ufffd" not in text:
            return
        found = _POISON.search(text)
        if found:
            what = _NAMES.get(found[0]) or f"U+{ord(found[0]):04X}"
            faults.append(("poison", text[max(0, found.start() - 20) :], f"{what} in the {part}"))
        if not text.isascii():
            place, name = invisible(text)
            if name:
                faults.append(("invisible", text[max(0, place - 20) :], f"{name} in the {part}"))

    def _answer(self, value: Any, usual: str, faults: Faults) -> None:
        if value is MISSING:
            return  # told as a missing field
        if value is None or (isinstance(value, (str, list, dict)) and (not value or str(value).isspace())):
            faults.append(("empty-answer", "", ""))
        elif isinstance(value, float) and math.isnan(value):
            faults.append(("empty-answer", "nan", ""))
        elif usual and (kind := kind_of(value)) != usual:
            faults.append(("odd-answer", repr(value)[:80], f"{kind or type(value).__name__} among {usual}"))

    def _repeated(
        self, asked: int, prompt: Messages, answered: str, answer: Any, faults: Faults
    ) -> int:  # fmt: skip
        how = self._evaluated.holds(asked, prompt)
        if how is not None:
            faults.append(("leakage", joined(prompt), how))
        key = row_key(asked, answered, answer)
        if self._repeats is not None and (code := self._repeats.code(key, bool(faults))):
            faults.append((code, joined(prompt), ""))
        return key


def _says_something(messages: Messages) -> bool:
    for _, text in messages:  # noqa: SIM110 - a generator takes three times as long, and every row comes by here
        if text and not text.isspace():
            return True
    return False


def _is_group(row: Mapping[str, Any], fields: Fields) -> bool:
    """Rewards in a list belong to several responses, not to several reward functions of one."""
    if not fields.reward or not isinstance(lookup(row, fields.reward), list):
        return False
    responses = lookup(row, fields.response) if fields.response else []
    return isinstance(responses, list) and not (responses and isinstance(responses[0], Mapping))


def _same(chosen: Any, rejected: Any) -> bool:
    if isinstance(chosen, str) and isinstance(rejected, str):
        return chosen.strip() == rejected.strip()
    return chosen is not MISSING and chosen is not None and chosen == rejected


def _number(value: Any) -> float | None:
    if isinstance(value, (int, float)):
        return float(value) if abs(value) < 1e308 or isinstance(value, float) else math.inf
    if isinstance(value, str):  # CSV has nothing else
        try:
            return float(value)
        except ValueError:
            return None
    return None


def judge_rewards(moments: Moments) -> Faults:
    """Judge all rewards together: constant, or with values far from the others."""
    std = moments.std()
    if std is None or moments.count < 32:
        return []
    if moments.low == moments.high:
        return [("constant-reward", f"{moments.count:,.0f} times {moments.low:g}", "")]
    far = max(moments.high - moments.mean, moments.mean - moments.low)
    if far > 10 * std:
        value = moments.high if moments.high - moments.mean == far else moments.low
        return [("reward-outlier", f"{value:g}; mean {moments.mean:.4g}, standard deviation {std:.4g}", "")]
    return []


def shown(source: str, number: int, text: str) -> str:
    """Write an example: place and excerpt."""
    return f"{source}:{number}" + (f": {excerpt(text)}" if text else "")


__all__ = ["Judge", "Judged", "Limits", "judge_rewards", "shown"]
