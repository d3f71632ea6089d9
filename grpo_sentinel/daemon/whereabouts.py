"""Where the history of a run is: notes beside its rings and its kept checkpoints, for commands without --config.

<run>/.history.json                          written by the sidecar that takes the run up, 0600
<sentinel-pinned>/<run>/.history.json        stays when the rings are gone, as after a reboot
{"state_dir": "/runs/state", "config": "/runs/sentinel.yaml"}

<usual state directory>/state_dirs           every other state directory that a sidecar of this user had, one a line
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

NAME = ".history.json"  # hidden: neither a ring nor a kept checkpoint
_LIST = "state_dirs"
_MOST_LISTED = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """Absolute paths; `config` is "" where the sidecar was given none."""

    state_dir: str
    config: str = ""


def write_whereabouts(directory: Path, state_dir: Path, config: Path | None = None, *, replace: bool = True) -> None:
    """Leave the note in `directory`; one of another sidecar stays unless `replace`. Never raises: it is a help only."""
    if not replace and read_whereabouts(directory) is not None:
        return
    here = Whereabouts(state_dir=str(state_dir.absolute()), config="" if config is None else str(config.absolute()))
    draft = directory / f"{NAME}.{os.getpid()}"
    with contextlib.suppress(OSError):
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(asdict(here), file)
        draft.replace(directory / NAME)


def read_whereabouts(directory: Path) -> Whereabouts | None:
    """Read the note in `directory`; None where there is none, or it is not ours to believe."""
    path = directory / NAME
    try:
        if path.stat().st_uid not in (os.geteuid(), 0):
            return None
        body = json.loads(path.read_text(encoding="utf-8"))
        found = Whereabouts(state_dir=str(body["state_dir"]), config=str(body["config"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if Path(found.state_dir).is_absolute() else None


def list_state_dir(usual: Path, state_dir: Path) -> None:
    """Add a state directory to the list in the `usual` one, so that it is found when rings are gone. Never raises."""
    known, here = listed_state_dirs(usual), state_dir.absolute()
    if here in (usual.absolute(), *known[:1]):
        return
    lines = [here, *(one for one in known if one != here)][:_MOST_LISTED]
    draft = usual / f".{_LIST}.{os.getpid()}"
    with contextlib.suppress(OSError):
        usual.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft.write_text("".join(f"{one}\n" for one in lines), encoding="utf-8")
        draft.replace(usual / _LIST)


def listed_state_dirs(usual: Path) -> list[Path]:
    """Give the state directories of that list, the newest first."""
    try:
        lines = (usual / _LIST).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []
    return [Path(line) for line in lines[:_MOST_LISTED] if line.startswith("/")]


__all__ = ["NAME", "Whereabouts", "list_state_dir", "listed_state_dirs", "read_whereabouts", "write_whereabouts"]
