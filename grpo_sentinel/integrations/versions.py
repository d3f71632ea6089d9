"""Versions of what trains, read without importing anything that is not loaded yet."""

from __future__ import annotations

import platform
import sys
from importlib import metadata

from grpo_sentinel._version import __version__


def versions(*packages: str) -> dict[str, str]:
    """Give the versions of Python, torch, this package and the named packages; a missing one is left out."""
    found = {"python": platform.python_version(), "grpo_sentinel": __version__}
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = str(torch.__version__)
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
