"""Prompts of a data set for checks that run the policy, with the response, answer and other columns of their rows."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.data_shapes import (
    MISSING,
    Fields,
    joined,
    lookup,
    recognise,
    require_named,
    split_conversation,
    texts_of,
)
from grpo_sentinel.preflight.data_sources import expand, read_rows
from grpo_sentinel.preflight.reward_target import Sample

_FIRST_ROWS = 64
_BUILT_IN = (
    "What is 17 + 25?", "Name three colours.",
    "Write one sentence about the sea.", "Is 91 a prime number?",
    "用一句话介绍北京。", "12 乘以 12 等于多少？", "Translate 'good morning' into French.",
    "List the first four primes.",
)  # fmt: skip


def built_in_prompts(count: int) -> list[Sample]:
    """Prompts in English and Chinese for a check that was given no data."""
    texts = itertools.islice(itertools.cycle(_BUILT_IN), count)
    return [
        Sample(prompt=[("user", text)], completion="", place=f"built-in:{number}")
        for number, text in enumerate(texts, 1)
    ]


def read_prompts(files: Sequence[str], fields: Fields, count: int) -> list[Sample]:
    """Take the first `count` rows that have a prompt; the completion is "" where the row has no response.

    Raises `SentinelError` when there is not one.
    """
    out: list[Sample] = []
    sources = expand(list(files))
    for source in sources:
        rows = read_rows(source)
        first = [row for row in itertools.islice(rows, _FIRST_ROWS) if row.value is not None]
        known = known_fields(source, [row.value for row in first if row.value is not None], fields)
        for row in itertools.chain(first, rows):
            if len(out) >= count:
                return out
            if row.value is not None and known is not None:
                sample = sample_of(row.value, known, f"{row.source}:{row.number}")
                out += [sample] if sample is not None else []
    if not out:
        raise SentinelError(f"{', '.join(sources)}: not one row with a prompt; name its field with --prompt FIELD")
    return out


def known_fields(source: str, first: Sequence[Mapping[str, object]], given: Fields) -> Fields | None:
    """Fields of a file, by its first rows; None without one. Raises `SentinelError` for a named one that none has."""
    if not first:
        return None
    try:
        require_named(first, given)
        return recognise(first, given)
    except SentinelError as error:
        raise SentinelError(f"{source}: {error}") from error


def sample_of(row: Mapping[str, object], fields: Fields, place: str) -> Sample | None:
    """Take a row's prompt, response ("" where it has none) and answer; None without a prompt."""
    prompt, wrong = texts_of(_value(row, fields.prompt))
    if wrong or not any(text.strip() for _, text in prompt):
        return None
    if not fields.response and fields.prompt == "messages":
        prompt, response = split_conversation(prompt)
    else:
        response = texts_of(_value(row, fields.response))[0] if fields.response else []
    answer = _value(row, fields.answer) if fields.answer else None
    return Sample(
        prompt=prompt, completion=joined(response) if response else "", answer="" if answer is None else str(answer),
        place=place, columns=row,
    )  # fmt: skip


def _value(row: Mapping[str, object], name: str) -> object:
    value = lookup(row, name)
    return None if value is MISSING else value


__all__ = ["built_in_prompts", "known_fields", "read_prompts", "sample_of"]
