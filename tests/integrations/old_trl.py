"""Environments of older TRL versions under build/: torch and the rest come from the running one, through a `.pth`."""

import fcntl
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERSIONS = {
    "0.19.1": ["trl==0.19.1", "transformers==4.53.3"],
    "0.24.0": ["trl==0.24.0", "transformers==4.57.1"],
    "1.5.1": ["trl==1.5.1", "transformers==5.2.0"],
}
"""TRL version -> what pip installs: TRL does not say which newer transformers break it."""


def environment_of(version: str) -> Path:
    """Give the interpreter of an environment with this TRL; builds it at first, in about a minute."""
    place = ROOT / "build" / f"trl-{version}-py{sys.version_info[0]}{sys.version_info[1]}"
    place.parent.mkdir(exist_ok=True)
    python, ready = place / "bin" / "python", place / "ready"
    with open(place.parent / f"{place.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            venv.create(place, with_pip=True, clear=True)
            site = next((place / "lib").glob("python*/site-packages"))
            (site / "zz-parent.pth").write_text(sysconfig.get_path("purelib") + "\n")
            command = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *VERSIONS[version]]
            subprocess.run(command, check=True, timeout=280, stdin=subprocess.DEVNULL)
            ready.touch()
    return python
