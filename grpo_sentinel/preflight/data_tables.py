"""Blocks of Parquet and of the Arrow files of `datasets`; pyarrow is imported when the first one is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.data_blocks import BLOCK_ROWS, Block, Row, Table, Values
from grpo_sentinel.preflight.git_lfs import TOLD, is_pointer

ENDINGS = (".parquet", ".arrow")
_MOST_BYTES = 4 << 20  # of the rows of one block: those of a table with long texts or pictures are fewer than usual


def table_blocks(source: str, ending: str, tick: Callable[[float], None]) -> Iterator[Block]:
    """Read one file; `tick` is told the share of it that is read.

    Raises `SentinelError` without pyarrow; what cannot be read is a row that says why.
    """
    try:
        pyarrow = import_module("pyarrow")
        parquet = import_module("pyarrow.parquet")
    except ImportError as error:
        raise SentinelError(f"{source} needs pyarrow, which is not installed here: pip install pyarrow") from error
    number = 0
    try:
        for batch, before, after in _parquet(parquet, source) if ending == ".parquet" else _arrow(pyarrow, source):
            rows = _rows_at_once(batch.nbytes, batch.num_rows)
            for at in range(0, batch.num_rows, rows):
                part = batch.slice(at, rows)
                yield Table(source, number, part)
                number += part.num_rows
                tick(before + (after - before) * min(1.0, (at + rows) / batch.num_rows))
    except (pyarrow.ArrowException, OSError) as error:
        reason = f"not a readable {ending[1:]} file: {' '.join(str(error).split())[:200]}"
        reason = TOLD if is_pointer(Path(source)) else reason
        yield Values(source, number, (Row(source, number + 1, None, None, reason, "unreadable"),))


def _rows_at_once(size: int, rows: int) -> int:
    return max(1, min(BLOCK_ROWS, _MOST_BYTES * rows // max(1, size)))


_Batch = tuple[Any, float, float]  # with the share of the file before it and after it


def _parquet(parquet: Any, source: str) -> Iterator[_Batch]:
    """Batches, read by this thread alone: a process that is forked meanwhile has no other."""
    with parquet.ParquetFile(source) as file:
        size = sum(file.metadata.row_group(group).total_byte_size for group in range(file.num_row_groups))
        total, number = file.metadata.num_rows, 0
        for batch in file.iter_batches(batch_size=_rows_at_once(size, total), use_threads=False):
            yield batch, number / total, (number := number + batch.num_rows) / total


def _arrow(pyarrow: Any, source: str) -> Iterator[_Batch]:
    """A file of `datasets`: an Arrow stream, or the file format."""
    with pyarrow.memory_map(source) as mapped:
        size, share = max(1, mapped.size()), 0.0
        try:
            for batch in pyarrow.ipc.open_stream(mapped):
                yield batch, share, (share := min(1.0, mapped.tell() / size))
        except pyarrow.ArrowInvalid:
            mapped.seek(0)
            file = pyarrow.ipc.open_file(mapped)
            for index in range(file.num_record_batches):
                count = file.num_record_batches
                yield file.get_batch(index), index / count, (index + 1) / count


__all__ = ["ENDINGS", "table_blocks"]
