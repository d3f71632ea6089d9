"""One look at a checkpoint: what is read is noted file by file, what is wrong with its level, code and place.

BROKEN       a restart fails, or goes on from bad numbers
CANNOT_TELL  something could not be judged, and why: unknown is not healthy
LOSS         a restart works and does not continue exactly: no optimizer state, no random states
DOUBTFUL     nothing breaks, and learning may suffer (the checks of data, reward, environment and configuration)
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_sentinel.halting.safetensors import FiniteReport, read_header, scan_file
from grpo_sentinel.halting.torch_file import CannotTell, TorchFile, scan_torch_file

_MOST_NAMED = 20  # non-finite tensors named one by one in each file


class Level(enum.Enum):
    """How much a problem matters to a restart."""

    BROKEN = "broken"
    CANNOT_TELL = "cannot tell"
    LOSS = "loss"
    DOUBTFUL = "doubtful"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong, in one sentence; `code` is stable for programs."""

    level: Level
    code: str  # missing, truncated, damaged, non-finite, step, unread, incomplete, no-state
    where: str  # path inside the checkpoint; "" = the whole
    message: str
    subject: str = ""  # tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRead:
    """One file that was read."""

    path: str
    bytes: int
    tensors: int
    elements: int  # floating-point numbers looked at; 0 with `quick`


@dataclass(slots=True)
class Look:
    """Everything noted about the checkpoint in `root` so far."""

    root: Path
    quick: bool = False
    problems: list[Problem] = field(default_factory=list)
    files: list[FileRead] = field(default_factory=list)

    def note(self, level: Level, code: str, where: Path | str, message: str, subject: str = "") -> None:
        """Note a problem; `where` inside the checkpoint."""
        self.problems.append(Problem(level=level, code=code, where=self.name(where), message=message, subject=subject))

    def broken(self, code: str, where: Path | str, message: str) -> None:
        """Note what makes a restart fail or go on from bad numbers."""
        self.note(Level.BROKEN, code, where, message)

    def loss(self, code: str, where: Path | str, message: str) -> None:
        """Note what a restart would lose."""
        self.note(Level.LOSS, code, where, message)

    def name(self, where: Path | str) -> str:
        """Write a path as seen from the checkpoint."""
        if isinstance(where, str):
            return where
        return str(where.relative_to(self.root)) if where != self.root and where.is_relative_to(self.root) else ""

    def safetensors(self, path: Path) -> tuple[str, ...]:
        """Read a safetensors file; gives the names of its tensors, () when it is not whole."""
        found: list[str] = []

        def scan() -> FiniteReport:
            entries = read_header(path)
            found.extend(entry.name for entry in entries)
            return FiniteReport(files=1, tensors=len(entries)) if self.quick else scan_file(path)

        return tuple(found) if self._read(path, scan) is not None else ()

    def torch_file(self, path: Path) -> Any:
        """Read a file of `torch.save`; gives the inert tree of what it describes, None when it is not known."""
        read = self.torch_content(path)
        return None if read is None else read.tree

    def torch_content(self, path: Path) -> TorchFile | None:
        """Read a file of `torch.save` and give all that is known of it; None when it is not whole."""
        read: list[TorchFile] = []

        def scan() -> FiniteReport:
            with path.open("rb") as file:
                read.append(scan_torch_file(file, path.name, quick=self.quick))
            return read[0].report

        return read[0] if self._read(path, scan) is not None else None

    def _read(self, path: Path, scan: Callable[[], FiniteReport]) -> FiniteReport | None:
        try:
            report = scan()
            size = path.stat().st_size
        except CannotTell as why:
            self.note(Level.CANNOT_TELL, "unread", path, f"{path.name}: {why}")
            return None
        except ValueError as error:
            text = str(error)
            code = "truncated" if "truncated" in text or "cut short" in text or "empty" in text else "damaged"
            self.broken(code, path, text if text.startswith(path.name) else f"{path.name}: {text}")
            return None
        except OSError as error:
            self.note(Level.CANNOT_TELL, "unread", path, f"{path.name} cannot be read: {error.strerror or error}")
            return None
        self.add(path, size, report)
        return report

    def add(self, path: Path, size: int, report: FiniteReport) -> None:
        """Note what one file holds."""
        self.files.append(FileRead(path=self.name(path), bytes=size, tensors=report.tensors, elements=report.elements))
        for name, count in list(report.nonfinite.items())[:_MOST_NAMED]:
            self.note(
                Level.BROKEN, "non-finite", path, f"{name} in {path.name} holds {count:,} NaN or infinite numbers", name
            )
        more = len(report.nonfinite) - _MOST_NAMED
        if more > 0:
            self.broken("non-finite", path, f"{more:,} more tensors in {path.name} hold NaN or infinite numbers")
        if report.unchecked:
            first = report.unchecked[0]
            more = len(report.unchecked) - 1
            self.note(
                Level.CANNOT_TELL, "unread", path,
                f"{path.name}: {first}{f' and {more:,} more' if more else ''}: a type of number that is not known here",
            )  # fmt: skip


__all__ = ["FileRead", "Level", "Look", "Problem"]
