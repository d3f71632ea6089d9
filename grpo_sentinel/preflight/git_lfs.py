"""Files that Git LFS keeps elsewhere: a clone without it holds a few lines of text in their place."""

from __future__ import annotations

from pathlib import Path

POINTER = b"version https://git-lfs.github.com/spec/"
TOLD = "a pointer of Git LFS and not the file itself: git lfs pull"
_MOST_BYTES = 1024


def is_pointer(path: Path) -> bool:
    """Whether a file is such a text; False where it cannot be read."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            return False
        with path.open("rb") as file:
            return file.read(len(POINTER)) == POINTER
    except OSError:
        return False


__all__ = ["POINTER", "TOLD", "is_pointer"]
