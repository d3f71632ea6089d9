"""One rank of a small loop under no launcher that names the run: attaches, makes a step, prints where its ring lies."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from grpo_sentinel.agent import attach

torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
agent = attach(model=model, optimizer=optimizer)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
agent.end_step()
os.write(1, f"{agent.core.voting} {agent.writer.path}\n".encode())
agent.close()
dist.barrier()  # gloo of a rank that is still closing may abort when its peer has gone
dist.destroy_process_group()
os._exit(0)  # the groups have been taken down; torch's own threads abort now and then in the interpreter's last moments
