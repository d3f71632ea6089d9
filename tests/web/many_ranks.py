"""A trainer without torch that plays all ranks of a node: real rings, real control file, checkpoints of a kind.

Rank `--odd` goes wrong from step `--bad-from` on: its step takes longer, its reward falls, its gradient becomes NaN.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from pathlib import Path

from grpo_sentinel.protocol import (
    ControlReader,
    Geometry,
    RankWriter,
    choose_root,
    derive_run_id,
    new_identity,
    run_dir,
)  # fmt: skip
from grpo_sentinel.records import Ack, Action, HaltState, Kind, Phase


def values(rank: int, step: int, bad: bool, noise: random.Random) -> dict[str, float]:
    common = random.Random(step)  # what replicas agree on
    return {
        "policy.loss": noise.gauss(0.1, 0.03),
        "policy.entropy_nats": 1.4 - 0.0005 * step + noise.gauss(0, 0.02),
        "policy.kl_k3_nats": 0.01 + 0.0001 * step + abs(noise.gauss(0, 0.002)),
        "reward.mean": (0.05 if bad else 0.5) + noise.gauss(0, 0.03),
        "reward.std": 0.2 + noise.gauss(0, 0.01),
        "data.completion_length_mean": 180 + noise.gauss(0, 6),
        "gradient.norm_preclip": math.nan if bad else 1.0 + 0.2 * common.random(),
        "gradient.nonfinite_tensors": float(bad) * 3,
        "gradient.nan_tensors": float(bad) * 3,
        "gradient.tensors": 120.0,
        "optimizer.step_skipped": float(bad),
        "optimizer.skipped_updates": float(bad),
        "optimizer.learning_rate": 1e-5,
        "memory.rss_bytes": 4e9 + 1e6 * rank + 1e4 * step,
        "time.step_seconds": (4.9 if bad else 1.2) + abs(noise.gauss(0, 0.05)),
        "sentinel.core_active": 1.0,
        "sentinel.agent_share": 0.004 + 0.001 * noise.random(),
    }


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--interval", type=float, default=0.05)
    parser.add_argument("--fast-until", type=int, default=0, help="no waiting before this step")
    parser.add_argument("--bad-from", type=int, default=0)
    parser.add_argument("--odd", type=int, default=0)
    parser.add_argument("--output-dir", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    args = options()
    run_id = derive_run_id()
    directory = run_dir(choose_root(), run_id)
    writers = [RankWriter(directory, new_identity(r, r, args.ranks, run_id), Geometry()) for r in range(args.ranks)]
    for writer in writers:
        writer.event(
            "config", {"trainer": "many", "output_dir": str(args.output_dir), "world_size": args.ranks}, step=0
        )
    control, noise = ControlReader(directory), random.Random(7)
    handled = 0
    for step in range(1, args.steps + 1):
        for rank, writer in enumerate(writers):
            bad = bool(args.bad_from) and step >= args.bad_from and rank == args.odd
            writer.phase(Phase.FORWARD, step)
            writer.push({"data.samples": 4.0}, step=step, kind=Kind.DATA)
            if bad:
                writer.event("nonfinite", {"names": ["layers.0.weight"], "where": "before_reduce"}, step=step)
                writer.event("skip", {"reason": "the gradient is not finite", "ranks": [rank]}, step=step)
            writer.push(values(rank, step, bad, noise), step=step)
        word = control.read()
        if word is not None and word.request_id > handled and word.action >= Action.CHECKPOINT:
            handled = word.request_id
            path = args.output_dir / f"checkpoint-{step}"
            path.mkdir(parents=True, exist_ok=True)
            (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
            for writer in writers:
                for state, detail in ((HaltState.VOTED, ""), (HaltState.DONE, str(path))):
                    now = time.time_ns()
                    writer.acknowledge(Ack(request_id=handled, state=state, step=step, wall_ns=now, detail=detail))
            if word.action is not Action.CHECKPOINT:
                for writer in writers:
                    writer.close("halted")
                sys.exit(0)
        time.sleep(args.interval if step >= args.fast_until else 0.002)
    for writer in writers:
        writer.close()


if __name__ == "__main__":
    main()
