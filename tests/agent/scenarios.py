"""Several scenarios in one process: torch is started once, everything else is each scenario's own."""

import contextlib
import json
import os
from pathlib import Path


def each_scenario(place, rank):
    """Give (folder, options) of each; environment and stderr are set apart while a scenario runs."""
    for scenario in json.loads(Path(place).read_text()):
        folder, options = Path(scenario["folder"]), scenario["options"]
        environ = dict(os.environ)
        os.environ["GRPO_SENTINEL_DIR"] = str(folder / "rings")
        os.environ.update(options.get("env", {}))
        with open(folder / f"rank{rank}.log", "w", buffering=1) as log, contextlib.redirect_stderr(log):
            yield str(folder), options
        os.environ.clear()
        os.environ.update(environ)
