"""A loop on one processor, alone and then among neighbours; prints what the agent says of its own time as JSON."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time

import torch

from grpo_sentinel.agent import Settings, attach

STEPS = 60
ONE = sorted(os.sched_getaffinity(0))[0]


def train(name: str, floor_seconds: float) -> dict[str, float]:
    os.environ["GRPO_SENTINEL_RUN_ID"] = name
    net = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(8)])
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    made = Settings(strict=True, overhead_share=1e-9, overhead_floor_seconds=floor_seconds)
    agent = attach(model=net, optimizer=optimizer, settings=made)
    wall, own = [], []
    told = agent.own_time.governor.account

    def account(self_seconds: float, step_seconds: float, *, full: bool) -> object:
        own.append(self_seconds)
        return told(self_seconds, step_seconds, full=full)

    agent.own_time.governor.account = account
    every = 1
    for _ in range(STEPS):
        before = agent.guard.seconds
        net(torch.randn(256, 128)).square().mean().backward()
        agent.observe_gradients()
        optimizer.step()
        optimizer.zero_grad()
        agent.end_step()
        wall.append(agent.guard.seconds - before)
        every = max(every, agent.own_time.governor.every)
    agent.close()
    return {"wall": statistics.median(wall[10:]), "own": statistics.median(own[10:]), "every": every}


def crowded(name: str, floor_seconds: float) -> dict[str, float]:
    neighbours = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    try:
        time.sleep(0.2)  # they come up; how many of them run by the first step does not matter
        return train(name, floor_seconds)
    finally:
        for one in neighbours:
            one.kill()
            one.wait(10)


torch.set_num_threads(1)
os.sched_setaffinity(0, {ONE})
alone = train("alone", 10.0)
enough = crowded("enough", 3 * alone["own"])
scarce = crowded("scarce", 0.3 * alone["own"])
print(json.dumps({"alone": alone, "enough": enough, "scarce": scarce}))
