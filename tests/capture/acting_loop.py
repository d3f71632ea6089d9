"""A plain loop whose loss is NaN from step 30 on (the root of a negative score); it saves when asked. `acting_loop.py OUT`."""

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
torch.manual_seed(0)
OUT = Path(sys.argv[1])
model = torch.nn.Sequential(torch.nn.Embedding(11, 8), torch.nn.Linear(8, 11))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
agent = grpo_sentinel.attach(model=model, optimizer=optimizer, vocab_size=11, output_dir=OUT)
rings = run_dir(Path(os.environ["GRPO_SENTINEL_DIR"]), os.environ["GRPO_SENTINEL_RUN_ID"])
limit = time.monotonic() + 60
while not is_claimed(rings) and time.monotonic() < limit:
    time.sleep(0.02)
for step in range(1, 91):
    ids, scores = torch.randint(0, 11, (4, 6)), torch.rand(4)
    if step >= 30:
        scores[2] = -1.0
    agent.observe_data({"completion_ids": ids, "scores": scores})
    logp = model(ids).log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    loss = -(logp * torch.sqrt(scores).unsqueeze(1)).mean()
    agent.observe_policy(loss=loss.detach())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    verdict = agent.end_step(step)
    if verdict.checkpoint:
        path = OUT / f"checkpoint-{step}"
        path.mkdir(parents=True)
        save_file({name: one.contiguous() for name, one in model.state_dict().items()}, path / "model.safetensors")
        (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        agent.checkpoint_saved(path)
    if verdict.halt:
        break
    time.sleep(0.04)
agent.close()
