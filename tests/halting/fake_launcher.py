"""Starts N fake trainers as torchrun does: each rank in a session of its own, SIGTERM ends them all.

python fake_launcher.py N [options of fake_trainer.py]      prints the pid of every rank, then waits
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path


def main() -> None:
    world = int(sys.argv[1])
    ranks = [
        subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("fake_trainer.py")), *sys.argv[2:]],
            env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)},
            stdout=subprocess.DEVNULL, start_new_session=True,
        )
        for rank in range(world)
    ]  # fmt: skip

    def end(number: int, _frame: object) -> None:
        print(f"launcher got {signal.Signals(number).name}", flush=True)
        for rank in ranks:
            os.kill(rank.pid, signal.SIGKILL)
        os._exit(1)

    signal.signal(signal.SIGTERM, end)
    print(" ".join(str(rank.pid) for rank in ranks), flush=True)
    codes = [rank.wait() for rank in ranks]
    sys.exit(max(codes, key=abs))


if __name__ == "__main__":
    main()
