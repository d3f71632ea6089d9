"""One rank of two under torch's Join: rank 0 has ten batches, rank 1 six. Prints its steps and the end of its weights."""

import hashlib
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join

from grpo_sentinel.agent import Settings, attach

dist.init_process_group("gloo", timeout=timedelta(seconds=15))
rank = dist.get_rank()
torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
agent = attach(model=model, optimizer=optimizer, settings=Settings(strict=True)) if os.environ["WATCH"] == "1" else None
skipped = []
with Join([model]):
    for step in range(1, 11 if rank == 0 else 7):
        (model(torch.full((2, 4), 1.0 + step + rank)).sum() * (float("nan") if step == 4 else 1.0)).backward()
        if agent is None and step == 4:
            optimizer.zero_grad()
        optimizer.step()
        optimizer.zero_grad()
        if agent is not None and agent.end_step().skipped:
            skipped.append(step)
if agent is not None:
    agent.close()
digest = hashlib.sha256(net.weight.detach().numpy().tobytes()).hexdigest()[:12]
print("DONE", rank, digest, bool(net.weight.isfinite().all()), skipped, flush=True)
dist.destroy_process_group()
