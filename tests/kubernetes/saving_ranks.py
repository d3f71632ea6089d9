"""A plain DDP loop that saves what it is asked for as transformers would. `saving_ranks.py OUT`, under torchrun."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

import grpo_sentinel

torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank = dist.get_rank()
net = torch.nn.Linear(8, 1)
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.AdamW(net.parameters())
agent = grpo_sentinel.attach(model=model, optimizer=optimizer, output_dir=sys.argv[1])
for step in range(1, 5000):
    model(torch.randn(4, 8)).square().mean().backward()
    agent.observe_gradients()
    optimizer.step()
    optimizer.zero_grad()
    verdict = agent.end_step(step)
    if verdict.checkpoint:
        path = Path(sys.argv[1]) / f"checkpoint-{step}"
        if rank == 0:
            path.mkdir(parents=True)
            save_file({name: one.contiguous() for name, one in net.state_dict().items()}, path / "model.safetensors")
            torch.save(optimizer.state_dict(), path / "optimizer.pt")
            (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        dist.barrier()
        agent.checkpoint_saved(path)
    if verdict.halt:
        break
    time.sleep(0.05)
agent.close()
dist.barrier()
os._exit(0)  # gloo's threads may abort while ranks leave one by one
