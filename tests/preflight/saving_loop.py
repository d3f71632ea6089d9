"""A plain loop that saves every tenth step, by a relative path, and loses its weights at step 45. `saving_loop.py KIND`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch

import grpo_sentinel
from grpo_sentinel.daemon.claim import is_claimed
from grpo_sentinel.protocol import run_dir

torch.set_num_threads(1)
torch.manual_seed(0)
RINGS = run_dir(Path(os.environ["GRPO_SENTINEL_DIR"]), os.environ["GRPO_SENTINEL_RUN_ID"])
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(net.parameters())
agent = grpo_sentinel.attach(model=net, optimizer=optimizer, output_dir="out")
limit = time.monotonic() + 60
while not is_claimed(RINGS) and time.monotonic() < limit:
    time.sleep(0.02)
for step in range(1, 81):
    net(torch.randn(2, 4)).square().mean().backward()
    agent.observe_gradients()
    optimizer.step()
    optimizer.zero_grad()
    if step == 45:
        net.weight.data.fill_(float("nan"))
    agent.end_step(step)
    if step % 10 == 0:
        path = Path("out") / (f"step-{step}" if sys.argv[1] == "directory" else f"step-{step}.pt")
        path.parent.mkdir(exist_ok=True)
        if sys.argv[1] == "directory":
            path.mkdir()
            torch.save(net.state_dict(), path / "model.pt")
            torch.save(optimizer.state_dict(), path / "optim.pt")
        else:
            torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path)
        agent.checkpoint_saved(path)
    time.sleep(0.02)
agent.close()
