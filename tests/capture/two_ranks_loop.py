"""Two ranks under DDP that train until they are halted, with the real agent. `two_ranks_loop.py OUT`."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import grpo_sentinel

torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
agent = grpo_sentinel.attach(model=model, optimizer=optimizer)
torch.manual_seed(1 + dist.get_rank())
for step in range(1, 20_000):
    batch = {"inputs": torch.randn(4, 8)}
    agent.observe_data(batch)
    loss = (model(batch["inputs"]) ** 2).mean()
    agent.observe_policy(loss=loss.detach())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    verdict = agent.end_step(step)
    if verdict.checkpoint:
        path = Path(sys.argv[1]) / f"checkpoint-{step}"
        if int(os.environ["RANK"]) == 0:
            path.mkdir(parents=True)
            torch.save(net.state_dict(), path / "model.pt")
        agent.checkpoint_saved(path)
    if verdict.halt:
        break
    time.sleep(0.02)
agent.close()
dist.destroy_process_group()
