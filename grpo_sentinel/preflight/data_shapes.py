"""Which fields of a row are prompt, response, answer and reward: known shapes, or fields that are named.

trl            prompt (text or messages) [, completion] [, answer columns]
verl           prompt (messages), reward_model.ground_truth, data_source
openrlhf       input (text or messages) [, output] [, label]
preference     prompt, chosen, rejected
conversation   messages (the last one is the response when the assistant speaks)
groups         prompt, responses and rewards as lists
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grpo_sentinel.errors import SentinelError

_PROMPTS = ("prompt", "input", "question", "problem", "instruction", "query", "context_messages", "messages", "text")
_RESPONSES = ("completion", "response", "chosen", "output", "generated", "responses", "completions")
_ANSWERS = (
    "reward_model.ground_truth", "answer", "ground_truth", "solution", "label", "target", "final_answer", "gold",
    "reference_answer",
)  # fmt: skip
_REWARDS = ("reward", "score", "rewards", "scores")
_MEDIA = ("image", "images", "video", "videos", "audio", "audios")
_SYSTEM_ROLES = ("system", "developer")
_ROLES = frozenset(
    {
        "",
        *_SYSTEM_ROLES,
        "user",
        "assistant",
        "model",
        "tool",
        "function",
        "ipython",
        "environment",
        "observation",
        "tool_call",
        "tool_response",
        "context",
        "documents",
    }
)  # that chat templates know; "" is plain text
_LONG_ENOUGH = 24  # characters of a last turn that may stand for a whole conversation


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """Names of the fields, "" where there is none; dots lead into mappings; every row must have those in `required`."""

    shape: str = "named fields"
    prompt: str = ""
    response: str = ""
    answer: str = ""
    reward: str = ""
    required: tuple[str, ...] = ()
    answer_kind: str = ""  # what most answers are: text, number, list or mapping
    media: str = ""  # pictures or sound: the text alone is not the sample
    typed: bool = True  # the format tells numbers from text; CSV does not

    def named(self) -> tuple[str, ...]:
        """The fields that were found."""
        return tuple(name for name in (self.prompt, self.response, self.answer, self.reward) if name)


Messages = list[tuple[str, str]]
MISSING: Any = object()


def lookup(row: Mapping[str, Any], name: str) -> Any:
    """Follow a dotted name; `MISSING` when it is not there."""
    value = row.get(name, MISSING)
    if value is not MISSING or "." not in name:
        return value
    value = row
    for part in name.split("."):
        value = value.get(part, MISSING) if isinstance(value, Mapping) else MISSING
    return value


def recognise(rows: Sequence[Mapping[str, Any]], given: Fields | None = None) -> Fields:
    """Find the fields from the first rows; what `given` names wins.

    A field that is in at least half of them counts as one that every row must have. Raises `SentinelError` when no
    prompt is found.
    """
    given = given or Fields()
    half = max(1, (len(rows) + 1) // 2)

    def pick(choice: str, known: Sequence[str]) -> str:
        if choice:
            return choice
        return next((name for name in known if sum(_there(row, name) for row in rows) >= half), "")

    if given.prompt:
        require_named(rows, replace(Fields(), prompt=given.prompt))
    prompt = pick(given.prompt, _PROMPTS)
    response = pick(given.response, [name for name in _RESPONSES if name != prompt])
    answer = pick(given.answer, _ANSWERS)
    reward = pick(given.reward, _REWARDS)
    if not prompt:
        raise SentinelError(f"no prompt is recognised among the fields {_keys(rows)}; name it with --prompt FIELD")
    required = tuple(dict.fromkeys(name for name in (prompt, response, answer, reward, *given.required) if name))
    first = next((row for row in rows if _there(row, prompt)), {})
    kinds = Counter(kind for row in rows if answer and (kind := kind_of(lookup(row, answer))))
    found = Fields(
        prompt=prompt, response=response, answer=answer, reward=reward, required=required,
        answer_kind=max(kinds, key=lambda kind: kinds[kind], default=""), media=pick("", _MEDIA),
    )  # fmt: skip
    return replace(found, shape=_shape(found, first))


def require_named(rows: Sequence[Mapping[str, Any]], given: Fields) -> None:
    """Refuse a field that was named and that not one row has. Raises `SentinelError`."""
    for option, name in (("prompt", given.prompt), ("response", given.response), ("answer", given.answer)):
        if name and rows and not any(_there(row, name) for row in rows):
            raise SentinelError(f"--{option} {name}: no row has such a field among the first {len(rows)}; they have "
                                f"{_keys(rows)}")  # fmt: skip


def _keys(rows: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(sorted({str(key) for row in rows[:8] for key in row})[:12]) or "none"


_KINDS: dict[type, str] = {str: "text", int: "number", float: "number", list: "list", dict: "mapping"}


def kind_of(value: Any) -> str:
    """What an answer is, as a reward function meets it; "" for what is none."""
    return _KINDS.get(type(value), "")


def _there(row: Mapping[str, Any], name: str) -> bool:
    return lookup(row, name) is not MISSING


def _shape(fields: Fields, row: Mapping[str, Any]) -> str:
    kind = "conversational" if isinstance(lookup(row, fields.prompt), list) else "plain"
    if "reward_model" in row and "data_source" in row:
        return f"verl, {kind}"
    if fields.prompt in ("input", "context_messages"):
        return f"OpenRLHF, {kind}"
    if "chosen" in row and "rejected" in row:
        return f"preference, {kind}"
    if fields.response and isinstance(lookup(row, fields.response), list) and fields.reward:
        return f"groups, {kind}"
    if fields.prompt == "messages":
        return "conversation"
    return f"TRL, {kind}" if fields.prompt == "prompt" else kind


def texts_of(value: Any) -> tuple[Messages, str]:
    """Take a prompt or a response apart into (role, text); the second is what is wrong with it, "" when nothing."""
    if isinstance(value, str):
        return [("", value)], ""
    if value is None:
        return [], ""
    if not isinstance(value, list):
        return [], f"expected text or messages, got {type(value).__name__}"
    out: Messages = []
    for one in value:
        if (type(one) is not dict and not isinstance(one, Mapping)) or "role" not in one:
            return out, f"a message needs role and content, got {type(one).__name__}"
        content = one.get("content")
        if type(content) is not str:
            if isinstance(content, list):  # parts, as with images
                content = "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
            if content is not None and not isinstance(content, str):
                return out, f"content is {type(content).__name__}, not text"
        out.append((str(one["role"]), content or ""))
    return out, ""


def split_conversation(messages: Messages) -> tuple[Messages, Messages]:
    """Split a whole conversation into prompt and response: the last message is the response when it is the model's."""
    if messages and messages[-1][0] == "assistant":
        return messages[:-1], messages[-1:]
    return messages, []


def user_text(messages: Messages) -> str:
    """What a user wrote: everything but the system's and the assistant's own words."""
    if len(messages) == 1:
        return messages[0][1]
    return "\n".join(text for role, text in messages if role not in _SYSTEM_ROLES and role != "assistant")


def question_of(messages: Messages) -> str:
    """What is asked last, without system prompt and earlier turns; "" where the last turn is too short to say it."""
    turns = [text for role, text in messages if role not in _SYSTEM_ROLES and role != "assistant"]
    if not turns or (len(turns) > 1 and len("".join(turns[-1].split())) < _LONG_ENOUGH):
        return ""
    return turns[-1].strip()


def odd_role(messages: Messages) -> str:
    """Find the first role that no usual chat template knows; "" when there is none."""
    for role, _ in messages:
        if role not in _ROLES:
            return role
    return ""


def only_system(messages: Messages) -> bool:
    """Nobody but the system speaks."""
    return bool(messages) and all(role in _SYSTEM_ROLES for role, _ in messages)


def joined(messages: Messages) -> str:
    """All texts in order."""
    return messages[0][1] if len(messages) == 1 else "\n".join(text for _, text in messages)


__all__ = ["MISSING", "Fields", "Messages", "joined", "kind_of", "lookup", "odd_role", "only_system", "question_of",
           "recognise", "require_named", "split_conversation", "texts_of", "user_text"]  # fmt: skip
