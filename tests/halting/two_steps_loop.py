"""One rank with the real agent and steps of 0.4 s; its gradient is NaN from the 4th step on. `two_steps_loop.py OUT`."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

import grpo_sentinel
from grpo_sentinel.daemon.claim import is_claimed
from grpo_sentinel.protocol import run_dir

torch.set_num_threads(1)
OUT = Path(sys.argv[1])
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
bad = [False]
net.weight.register_hook(lambda g: g * float("nan") if bad[0] else g)
agent = grpo_sentinel.attach(model=net, optimizer=optimizer, output_dir=str(OUT))
rings = run_dir(Path(os.environ["GRPO_SENTINEL_DIR"]), os.environ["GRPO_SENTINEL_RUN_ID"])
limit = time.monotonic() + 60
while not is_claimed(rings) and time.monotonic() < limit:
    time.sleep(0.02)
for step in range(1, 60):
    bad[0] = step >= 4
    time.sleep(0.4)
    (net(torch.randn(4, 8)) ** 2).mean().backward()
    agent.observe_gradients()
    optimizer.step()
    optimizer.zero_grad()
    verdict = agent.end_step(step)
    if verdict.checkpoint:
        path = OUT / f"checkpoint-{step}"
        path.mkdir(parents=True)
        save_file({name: tensor.contiguous() for name, tensor in net.state_dict().items()}, path / "model.safetensors")
        (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        agent.checkpoint_saved(path)
    if verdict.halt:
        break
agent.close()
