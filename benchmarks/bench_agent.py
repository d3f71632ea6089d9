"""What the agent costs the trainer: its own time per step, the step vote, and the vote's all-reduce on two processes.

Promises: the constant part, that is a step of every probe with a model and a batch of next to nothing, at most 2 ms on
this CPU; the vote, its all-reduce left out, at most 20 microseconds. What a batch adds is shown by a larger one.

The cost of a step is the CPU time of the training thread with the agent less that without it: hooks and memory that is
freed are in it. Only steps count that no other process interrupted, since that leaves cold caches behind; with fewer
than `CALM` of them the machine is too crowded to judge. What the agent says of itself, in wall time, stands beside it.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch

from grpo_sentinel.agent import Settings, attach
from grpo_sentinel.agent.agent import Agent
from grpo_sentinel.agent.core import Core
from grpo_sentinel.agent.handshake import Alone
from grpo_sentinel.protocol import RankReader
from grpo_sentinel.records import Kind

STEPS = 300
WARM_UP = 20
CALM = 20  # steps without a context switch that a judgement needs
CONSTANT_MS = 2.0
VOTE_US = 20.0
SIZES = {"constant": (8, 4, 8), "16x64": (16, 32, 64)}  # rows, prompt tokens, completion tokens


class Step(NamedTuple):
    """What one step took."""

    milliseconds: float  # of CPU
    switches: int  # context switches


def main(record: Callable[..., None]) -> None:
    """Measure and hand over the figures. Raises `RuntimeError` when a promise is broken."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        broken = [*constant(record), *vote(record)]
        all_reduce(record)
    finally:
        torch.set_num_threads(threads)
    if broken:
        raise RuntimeError("; ".join(broken))


def constant(record: Callable[..., None]) -> list[str]:
    """Cost per step of a plain loop over a model of two tensors, with every observation of a GRPO step."""
    broken = []
    for size, shape in SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            ours, own = watched(Path(folder), *shape)
        cost = typical(ours) - typical(unwatched())
        promise = {"peer": "promised at most", "peer_value": CONSTANT_MS}
        record(f"agent_cpu_per_step_{size}", cost, "ms", **(promise if size == "constant" else {}))
        record(f"agent_self_time_per_step_{size}", 1e3 * statistics.median(own), "ms")
        if size != "constant" or cost <= CONSTANT_MS:
            continue
        fault = f"constant part of the agent: {cost:.2f} ms a step, promised {CONSTANT_MS:g}"
        if len(calm(ours)) < CALM:
            print(f"not judged, other processes interrupted nearly every step: {fault}", flush=True)
        else:
            broken.append(fault)
    return broken


def calm(steps: list[Step]) -> list[float]:
    """List the times of steps that were not interrupted, nor the one before them."""
    return [now.milliseconds for before, now in pairwise(steps) if not before.switches and not now.switches]


def typical(steps: list[Step]) -> float:
    """Give the median of the calm steps; the best tenth of all where there are too few."""
    times = calm(steps)
    every = sorted(step.milliseconds for step in steps)
    return statistics.median(times) if len(times) >= CALM else every[len(every) // 10]


def watched(folder: Path, rows: int, prompt: int, completion: int) -> tuple[list[Step], list[float]]:
    """Run the loop with sampling at every step; gives the steps, and the agent's own seconds of each."""
    os.environ |= {"GRPO_SENTINEL_DIR": str(folder), "GRPO_SENTINEL_RUN_ID": "bench"}
    settings = Settings(overhead_share=1.0, overhead_floor_seconds=1.0, segment_slots=4 * STEPS)
    net = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    context = {"vocab_size": 512, "pad_id": 0, "eos_id": 1, "group_size": 8, "max_completion_length": completion}
    agent = attach(model=net, optimizer=optimizer, settings=settings, **context)
    assert isinstance(agent, Agent)
    observed = batch(rows, prompt, completion)
    times = [spent(lambda: one_step(agent, net, optimizer, *observed)) for _ in range(STEPS)]
    agent.close()
    (ring,) = folder.rglob("*.ring")
    reader = RankReader(ring)
    records = [r.values for r in reader.poll(None).records if r.kind is Kind.STEP]
    reader.close()
    return times[WARM_UP:], [values["sentinel.agent_seconds"] for values in records[WARM_UP:]]


def unwatched() -> list[Step]:
    """Run the same loop without an agent."""
    net = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def step() -> None:
        net(torch.ones(2, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return [spent(step) for _ in range(STEPS)][WARM_UP:]


def spent(call: Callable[[], None]) -> Step:
    """Call it and see what CPU time this thread took, and how often it lost its core."""
    before, begun = resource.getrusage(resource.RUSAGE_THREAD), time.thread_time_ns()
    call()
    ended, after = time.thread_time_ns(), resource.getrusage(resource.RUSAGE_THREAD)
    switches = after.ru_nivcsw + after.ru_nvcsw - before.ru_nivcsw - before.ru_nvcsw
    return Step((ended - begun) / 1e6, switches)


def batch(
    rows: int, prompt: int, completion: int
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], torch.Tensor]:
    """Make one GRPO micro-batch, everything that its loss may be made of, and its rewards."""
    torch.manual_seed(0)
    data = {
        "prompt_ids": torch.randint(3, 500, (rows, prompt)),
        "prompt_mask": torch.ones(rows, prompt, dtype=torch.long),
        "completion_ids": torch.randint(3, 500, (rows, completion)),
        "completion_mask": torch.ones(rows, completion, dtype=torch.long),
    }
    logp = -torch.rand(rows, completion)
    policy = {
        "logp_BT": logp,
        "old_logp_BT": logp + 0.1 * torch.randn(rows, completion),
        "ref_logp_BT": logp + 0.1 * torch.randn(rows, completion),
        "sampling_logp_BT": logp + 0.1 * torch.randn(rows, completion),
        "mask_BT": data["completion_mask"],
        "advantages": torch.randn(rows),
        "entropy_BT": torch.rand(rows, completion),
        "completion_ids_BT": data["completion_ids"],
    }
    return data, policy, torch.rand(rows, 2)


def one_step(
    agent: Agent,
    net: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    data: dict[str, torch.Tensor],
    policy: dict[str, torch.Tensor],
    rewards: torch.Tensor,
) -> None:
    """Do what a GRPO loop does in a step, with a model that costs nothing."""
    lengths = [5] * len(rewards)
    agent.observe_rewards(rewards, func_names=["a", "b"], group_size=8, completion_lengths_B=lengths)
    agent.observe_data(data)
    loss = net(torch.ones(2, 8)).square().mean()
    agent.observe_policy(**policy, loss=loss)
    loss.backward()
    agent.observe_gradients()
    optimizer.step()
    optimizer.zero_grad()
    agent.end_step()


def vote(record: Callable[..., None]) -> list[str]:
    """Time of one decision of the core without any other rank: ballot, tally, outcome."""
    core = Core(rank=0, transport=Alone())
    times = []
    for _ in range(5000):
        started = time.perf_counter_ns()
        core.decide(1.25, digest=12345)
        times.append(time.perf_counter_ns() - started)
    median = statistics.median(times) / 1e3
    record("vote_without_all_reduce", median, "µs", peer="promised at most", peer_value=VOTE_US)
    return [] if median <= VOTE_US else [f"vote without all-reduce: {median:.1f} µs, promised {VOTE_US:g}"]


def all_reduce(record: Callable[..., None]) -> None:
    """Time of the vote's all-reduce and of gathering vitals, on two processes with gloo."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", "from benchmarks.bench_agent import rank; rank()"],
            env={**shared, "RANK": str(index), "OMP_NUM_THREADS": "1"},
            cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=240)[0] for process in ranks]
    finally:
        for process in ranks:
            if process.poll() is None:
                process.kill()
                process.wait(10)
    figures = json.loads(outputs[0].splitlines()[-1])
    record("vote_all_reduce_2_ranks", figures["maximum"], "µs")
    record("vitals_gather_2_ranks", figures["gather"], "µs")


def rank() -> None:
    """One of the two processes: print the median times of both collectives."""
    import torch.distributed as dist

    from grpo_sentinel.agent.ballot import Ballot, fill
    from grpo_sentinel.agent.handshake import shake_hands

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    transport = shake_hands(timeout_s=60, vote_timeout_s=60).transport
    assert transport is not None
    words = fill(Ballot(rank=dist.get_rank(), norm=1.0))
    figures = {}
    for name, call in (("maximum", lambda: transport.maximum(words)), ("gather", lambda: transport.gather([1.0] * 7))):
        times = []
        for _ in range(500):
            started = time.perf_counter_ns()
            call()
            times.append(time.perf_counter_ns() - started)
        figures[name] = statistics.median(times) / 1e3
    print(json.dumps(figures), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    from benchmarks.record import record as store

    main(store)
