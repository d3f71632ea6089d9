"""A plain loop with a fault at one step, and the builder that `grpo-sentinel reproduce` needs. `faulty_loop.py FATE`.

From step 30 on a score below zero reaches a square root: its loss is NaN. FATE: `finish`, or `kill` at step 45.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch

import grpo_sentinel


def build():
    """Give model and loss as they were when training began; the captured weights are loaded over them."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(11, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 11))

    def loss(batch):
        logp = model(batch["completion_ids"]).log_softmax(-1)
        taken = logp.gather(-1, batch["completion_ids"].unsqueeze(-1)).squeeze(-1)
        weights = torch.sqrt(batch["scores"])
        return -(taken * weights.unsqueeze(1)).mean()

    return model, loss


def main(fate: str) -> None:
    torch.set_num_threads(1)
    model, loss_of = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    agent = grpo_sentinel.attach(model=model, optimizer=optimizer, vocab_size=11, learning_rate=1e-2)
    for step in range(1, 80):
        batch = {"completion_ids": torch.randint(0, 11, (4, 6)), "scores": torch.rand(4)}
        if step >= 30:
            batch["scores"][2] = -1.0
        agent.observe_data(batch)
        loss = loss_of(batch)
        agent.observe_policy(loss=loss.detach())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        verdict = agent.end_step(step)
        if verdict.halt:
            break
        if fate == "kill" and step == 45:
            print("about to die", flush=True)
            time.sleep(2)  # the sidecar has long seen the fault when the process dies
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.03)
    agent.close()


if __name__ == "__main__":
    main(sys.argv[1])
