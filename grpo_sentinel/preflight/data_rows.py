"""Rows of a file and the shape they have: fields are recognised from the first of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.data_blocks import Block, Row
from grpo_sentinel.preflight.data_shapes import Fields, Messages, lookup, recognise, split_conversation, texts_of
from grpo_sentinel.preflight.data_sources import has_types

_FIRST_ROWS = 64  # looked at to recognise the shape


def prompt_of(row: Mapping[str, Any], fields: Fields) -> Messages:
    """The messages of a row's prompt; of a whole conversation, all but the model's last answer."""
    messages, _ = texts_of(lookup(row, fields.prompt))
    if not fields.response and fields.prompt == "messages":
        messages, _ = split_conversation(messages)
    return messages


def rows_of(blocks: Iterable[Block]) -> Iterator[Row]:
    """All rows, block after block."""
    return (row for block in blocks for row in block.rows())


def recognised(source: str, blocks: Iterator[Block], given: Fields) -> tuple[Iterator[Block], Fields | None]:
    """Look at the first rows; None when not one of them can be read."""
    first: list[Block] = []
    rows: list[Row] = []
    for block in blocks:
        first.append(block)
        rows += itertools.islice(block.rows(), _FIRST_ROWS - len(rows))
        if len(rows) >= _FIRST_ROWS:
            break
    values = [row.value for row in rows if row.value is not None]
    try:
        fields = replace(recognise(values, given), typed=has_types(source)) if values else None
    except SentinelError as error:
        raise SentinelError(f"{source}: {error}") from error
    return itertools.chain(first, blocks), fields


__all__ = ["prompt_of", "recognised", "rows_of"]
