"""A child that speaks the protocol of trackers and misbehaves as told: `fake_tracker.py FILE MODE`.

Every line that it takes goes to FILE; lines survive the death of the process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from grpo_sentinel.sinks import child

path, mode = sys.argv[1:3]


class Fake:
    def __init__(self, settings, report):
        self.report = report
        self.tries = 0

    def take(self, lines):
        if mode == "hang":
            time.sleep(3600)
        self.tries += 1
        if mode == "down" or (mode == "down at first" and self.tries < 3):
            raise child.TrackerDown("http://user:secret@host refused")
        if mode == "noise":
            sys.stderr.write("x" * 100_000)
            print("y" * 100_000, flush=True)
        for line in lines:
            if mode == "poison" and line.get("step") == 3:
                os._exit(9)
            if mode == "dies every fifth" and line["n"] % 5 == 0 and not os.path.exists(f"{path}.{line['n']}"):
                open(f"{path}.{line['n']}", "w").close()
                os._exit(9)
            with open(path, "a") as file:
                file.write(f"{line['type']} {line.get('step')}\n")
            self.report({"done": line["n"]})

    def close(self):
        if mode == "hangs at the end":
            time.sleep(3600)
        with open(path, "a") as file:
            file.write("closed\n")


if mode == "cannot be loaded":
    child.TRACKERS["fake"] = "nothing_of_that_name:Fake"
    sys.exit(child.main(["fake"]))
if mode == "leaves a child":
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    with open(path + ".pid", "w") as file:
        file.write(str(left.pid))
child._load = lambda name: Fake
sys.exit(child.main(["fake"]))
