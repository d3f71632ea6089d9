"""Where the history of a run is: notes beside its rings and its kept checkpoints, for commands without --config.

<run>/.history.json                          written by the sidecar that takes the run up, 0600
<sentinel-pinned>/<run>/.history.json        stays when the rings are gone, as after a reboot
{"state_dir": "/runs/state", "config": "/runs/sentinel.yaml"}
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

NAME = ".history.json"  # hidden: neither a ring nor a kept checkpoint


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


__all__ = ["NAME", "Whereabouts", "read_whereabouts", "write_whereabouts"]
