"""Take secrets out of what is kept, shown or sent: by the name before them, by their form, and by value.

    without_secrets   a tree of settings: values whose name says that they are secret
    scrub             a text: `NAME_TOKEN=value`, headers, options of a command, addresses with a password, known forms
    learn             what this process itself knows to be secret, removed wherever it turns up
    clean             an event of a trainer; samples stay, what is kept of them is said in the configuration

`token` alone says nothing here: `pad_token`, `max_tokens` and `token_id` belong to the data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import unquote, urlsplit

from grpo_sentinel.records import EventRecord

REMOVED = "(removed)"
SAMPLE_KINDS = frozenset({"sample", "capture"})
LEAST_PATH = 16
LEAST = 8  # characters of a value to learn: what is shorter turns up in ordinary words

_TOKENIZER = r"(?<!pad_)(?<!eos_)(?<!bos_)(?<!unk_)(?<!sep_)(?<!cls_)(?<!mask_)(?<!stop_)(?<!image_)(?<!special_)"
_SECRET_KEY = re.compile(
    _TOKENIZER + r"token(?!s|i[sz]|_?id|_?type)|passw|secret|api_?key|credential|authori[sz]ation|private_?key|webhook",
    re.IGNORECASE,
)
_SECRET_VARIABLE = re.compile(_SECRET_KEY.pattern + r"|notify_urls|otlp\w*_headers", re.IGNORECASE)
_OWNER = r"hub|hf|access|auth|api|bearer|refresh|session|act|read|write|bot|github|gitlab|slack"
_OPTION = rf"(?<![\w-])--?(?:[\w-]{{0,64}}[_-])?(?:(?:{_OWNER})[_-]token|token|password|passwd|secret|api[_-]?key)"
_NAME = (
    rf"(?i:[\w-]{{0,64}}(?:secret|passw(?:or)?d|api[_-]?key|credential)[\w-]{{0,64}}|[\w-]{{0,64}}(?:{_OWNER})[_-]?token)"
    r"|(?!(?:PAD|EOS|BOS|UNK|SEP|CLS|MASK|STOP|SPECIAL)_)[A-Z0-9_]*TOKEN"
)
_HEADER = r"(?i)\b(authorization['\"]?\s*[:=]\s*['\"]?(?:bearer|basic|token)|bearer)"
_VALUE = r"[^\s'\",;&}\])]+"
_FORMS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"([a-z][a-z0-9+.-]{0,30}://)[^/@\s'\"]{1,4096}@", re.IGNORECASE), rf"\1{REMOVED}@"),
    (re.compile(rf"{_HEADER}\s+{_VALUE}"), rf"\1 {REMOVED}"),
    (re.compile(rf"(?i)({_OPTION})(=|\s+|['\"],\s*['\"]){_VALUE}"), rf"\1\2{REMOVED}"),
    (re.compile(rf"(?<![\w-])({_NAME})(['\"]?\s*[=:]\s*['\"]?){_VALUE}"), rf"\1\2{REMOVED}"),
    (
        re.compile(r"\b(?:hf|sk|ghp|gho|ghs|github_pat|glpat|npm|xox[abp]|AKIA|ASIA|AIza)[_-]?[A-Za-z0-9_-]{16,}"),
        REMOVED,
    ),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?"), REMOVED),  # a JSON web token
)  # fmt: skip
_known: list[str] = []  # of this process, as its log is; the longest first


def learn(*values: str) -> None:
    """Remember values that `scrub` removes from now on; of an address also its password, path and query."""
    parts = {part for value in values for part in (value, *_parts(value)) if len(part) >= LEAST}
    _known[:] = sorted({*_known, *parts}, key=len, reverse=True)


def learn_environment(environ: Mapping[str, str]) -> None:
    """Remember the values of all variables whose name says that they are secret."""
    for name, value in environ.items():
        if _SECRET_VARIABLE.search(name):
            learn(*value.split())


def learn_settings(value: Any, key: str = "") -> None:
    """Remember what is secret in a tree of settings: by name, and passwords in addresses."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            learn_settings(item, str(name))
    elif isinstance(value, (list, tuple)):
        for item in value:
            learn_settings(item, key)
    elif isinstance(value, str):
        if _SECRET_KEY.search(key) and not key.endswith(("_env", "_file")):
            learn(value)
        elif "@" in value and "://" in value:
            learn(_password(value))


def _password(address: str) -> str:
    try:
        return urlsplit(address).password or ""
    except ValueError:
        return ""


def _parts(value: str) -> Iterable[str]:
    if "://" in value:
        try:
            address = urlsplit(value)
        except ValueError:
            return
        path = address.path.strip("/")
        yield from (address.password or "", address.query, path if len(path) >= LEAST_PATH else "")
    elif "=" in value:  # OTLP's headers
        for pair in value.split(","):
            yield from (unquote(pair.partition("=")[2]), unquote(pair.partition("=")[2]).rpartition(" ")[2])


def scrub(text: str) -> str:
    """Give a text without the secrets that can be told."""
    for value in _known:
        if value in text:
            text = text.replace(value, REMOVED)
    for form, replacement in _FORMS:
        text = form.sub(replacement, text)
    return text


def without_secrets(value: Any, key: str = "") -> Any:
    """Copy a tree of settings with secret values removed; numbers are none."""
    if isinstance(value, Mapping):
        return {str(name): without_secrets(item, str(name)) for name, item in value.items()}
    if key and value and _SECRET_KEY.search(key) and not isinstance(value, (bool, int, float)):
        return REMOVED
    if isinstance(value, (list, tuple)):
        options = ["", *(item if isinstance(item, str) else "" for item in value)]
        return [
            REMOVED if re.fullmatch(_OPTION, option, re.IGNORECASE) else without_secrets(item)
            for option, item in zip(options, value, strict=False)
        ]
    return scrub(value) if isinstance(value, str) else value


def scrubbed(value: Any, through: Callable[[str], str] = scrub) -> Any:
    """Pass every text of a tree through `scrub` or another function; keys stay."""
    if isinstance(value, str):
        return through(value)
    if isinstance(value, Mapping):
        return {key: scrubbed(item, through) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrubbed(item, through) for item in value]
    return value


def clean(event: EventRecord) -> EventRecord:
    """Give an event without secrets."""
    if event.kind in SAMPLE_KINDS:
        return event
    return replace(event, body=without_secrets(event.body) if event.kind == "config" else scrubbed(event.body))


__all__ = [
    "REMOVED",
    "SAMPLE_KINDS",
    "clean",
    "learn",
    "learn_environment",
    "learn_settings",
    "scrub",
    "scrubbed",
    "without_secrets",
]
