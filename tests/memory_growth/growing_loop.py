"""A plain loop that keeps more memory at every step, of one kind. `growing_loop.py KIND OUT STEPS SECONDS MEGABYTES`.

host: tensors that are never let go    shm: files in /dev/shm    cache: files on a disk, written and read
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

import grpo_sentinel
from grpo_sentinel.daemon.claim import is_claimed
from grpo_sentinel.protocol import run_dir

KIND, OUT, STEPS = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
SECONDS, BYTES = float(sys.argv[4]), int(float(sys.argv[5]) * 1e6)
torch.set_num_threads(1)
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(net.parameters())
agent = grpo_sentinel.attach(model=net, optimizer=optimizer, output_dir=OUT)
rings = run_dir(Path(os.environ["GRPO_SENTINEL_DIR"]), os.environ["GRPO_SENTINEL_RUN_ID"])
limit = time.monotonic() + 60
while not is_claimed(rings) and time.monotonic() < limit:
    time.sleep(0.02)
place = (Path("/dev/shm") / f"growing-{os.getpid()}") if KIND == "shm" else OUT / "files"
place.mkdir(parents=True)
kept = []
try:
    for step in range(1, STEPS + 1):
        if step > 10 and KIND == "host":
            kept.append(torch.ones(BYTES // 4))
        elif step > 10:
            (place / str(step)).write_bytes(b"x" * BYTES)
            if KIND == "cache":
                os.sync()  # clean pages: what the kernel may drop
                (place / str(step)).read_bytes()
        net(torch.randn(4, 8)).square().mean().backward()
        agent.observe_gradients()
        optimizer.step()
        optimizer.zero_grad()
        verdict = agent.end_step(step)
        if verdict.checkpoint:
            path = OUT / f"checkpoint-{step}"
            path.mkdir(parents=True)
            save_file({name: one.contiguous() for name, one in net.state_dict().items()}, path / "model.safetensors")
            (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
            agent.checkpoint_saved(path)
        if verdict.halt:
            break
        time.sleep(SECONDS)
    agent.close()
finally:
    shutil.rmtree(place, ignore_errors=True)
