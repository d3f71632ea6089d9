"""A real agent in a loop that breaks several rules at every step, and saves where it is asked to and never stops.

storm_loop.py OUT STEPS
"""

from __future__ import annotations

import json
import math
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
OUT, STEPS = Path(sys.argv[1]), int(sys.argv[2])
RINGS = run_dir(Path(os.environ["GRPO_SENTINEL_DIR"]), os.environ["GRPO_SENTINEL_RUN_ID"])
net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
agent = grpo_sentinel.attach(
    model=net, optimizer=optimizer, vocab_size=100, group_size=4, max_grad_norm=1.0, output_dir=str(OUT)
)
limit = time.monotonic() + 60
while not is_claimed(RINGS) and time.monotonic() < limit:
    time.sleep(0.02)
halts: set[int] = set()  # requests that asked for one
for step in range(1, STEPS + 1):
    bad = step > 20
    ids = torch.randint(0, 100, (8, 16))
    mask = torch.ones_like(ids)
    if bad:
        ids[0, step % 16] = 100 + step
        ids[3] = ids[2]
        mask[5] = 0
    agent.observe_data(completion_ids=ids, completion_mask=mask)
    rewards = torch.rand(8)
    if bad:
        rewards[step % 8], rewards[(step + 1) % 8] = math.nan, math.inf
    agent.observe_rewards(rewards)
    logp = -torch.rand(8, 16)
    reference = logp - (50.0 if bad else 0.01) * torch.rand(8, 16)
    advantages = (2 * torch.rand(8) - 1) * (1e6 if bad and step % 2 else 1.0)
    loss = net(torch.randn(8, 8)).square().mean() * (math.nan if bad and step % 3 else 1.0)
    agent.observe_policy(
        logp_BT=logp, ref_logp_BT=reference, advantages=advantages, mask_BT=mask, loss=loss.detach()
    )
    loss.backward()
    agent.observe_gradients()
    optimizer.step()
    optimizer.zero_grad()
    verdict = agent.end_step(step)
    if verdict.checkpoint or step == 15:
        path = OUT / f"checkpoint-{step}"
        path.mkdir(parents=True)
        save_file({name: one.contiguous() for name, one in net.state_dict().items()}, path / "model.safetensors")
        (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        agent.checkpoint_saved(path)
    halts |= {verdict.request_id} if verdict.halt else set()  # it does not heed them
    time.sleep(0.03)
agent.close()
print(json.dumps({"halts": len(halts)}))
