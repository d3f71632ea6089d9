"""A trainer without torch that has secrets everywhere: its settings, its command line, its log and its exceptions.

`secretive_trainer.py --hub-token TOKEN`; it breaks at step 20 and leaves when it is told to.
"""

from __future__ import annotations

import os
import sys
import time

from grpo_sentinel.protocol import (
    ControlReader,
    Geometry,
    RankWriter,
    choose_root,
    derive_run_id,
    new_identity,
    run_dir,
)
from grpo_sentinel.records import Phase

token, key = sys.argv[2], os.environ["WANDB_API_KEY"]
run_id = derive_run_id()
directory = run_dir(choose_root(), run_id)
writer = RankWriter(directory, new_identity(0, 0, 1, run_id, ""), Geometry(slots=256))
settings = {
    "trainer": "fake", "hub_token": token, "env": {"HF_TOKEN": "planted-env-setting", "WANDB_API_KEY": key},
    "args": ["--hub-token", token], "data": "https://user:planted-data-url@host/x", "note": "password=planted-note",
}  # fmt: skip
writer.event("config", settings, step=0)
print(f"logging in with {key} and HF_TOKEN=planted-in-the-log, --hub-token {token}", flush=True)
control = ControlReader(directory)
for step in range(1, 30_000):  # until it is asked to halt
    bad = float(step >= 20)
    writer.phase(Phase.FORWARD, step)
    writer.push({"policy.loss": 0.1, "gradient.norm_preclip": 1.0, "gradient.nonfinite_tensors": bad,
                 "gradient.nan_tensors": bad, "gradient.tensors": 10.0, "optimizer.step_skipped": bad}, step=step)  # fmt: skip
    if step == 18:
        text = (
            f"401 for https://user:planted-exception-url@hub/x, Authorization: Bearer planted-exception-bearer, {key}"
        )
        trace = f"Traceback\n  File 'x.py', line 1\nHTTPError: {text} api_key='planted-traceback-key'"
        writer.event("exception", {"type": "HTTPError", "message": text, "traceback": trace, "where": "hub"}, step=step)
    if control.read() is not None and step > 100:
        break
    time.sleep(0.02)
writer.close()
