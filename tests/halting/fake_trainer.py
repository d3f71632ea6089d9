"""A trainer without torch: real ring, real control file, real checkpoints of a kind. `python fake_trainer.py --help`.

It steps every `--interval` seconds, or once per line on stdin with `--stdin`, looks at the control file at the end of
each step, and does what is asked unless it is `--deaf`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import struct
import sys
import time
from pathlib import Path

from grpo_sentinel.protocol import (
    ControlReader,
    Geometry,
    RankWriter,
    choose_root,
    derive_parent_run_id,
    derive_run_id,
    new_identity,
    run_dir,
)  # fmt: skip
from grpo_sentinel.records import Ack, Action, HaltState, Kind, Phase


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, default=int(os.environ.get("RANK", "0")))
    parser.add_argument("--world", type=int, default=int(os.environ.get("WORLD_SIZE", "1")))
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--interval", type=float, default=0.02)
    parser.add_argument("--stdin", action="store_true")
    parser.add_argument("--output-dir", type=Path)
    parser.add_argument("--save-steps", type=int, default=0)
    parser.add_argument("--bad-from", type=int, default=0, help="NaN gradients from this step on")
    parser.add_argument("--lost-weights", action="store_true", help="and NaN weights from the same step on")
    parser.add_argument("--deaf", action="store_true")
    parser.add_argument("--exit-code", type=int, default=0)
    parser.add_argument("--kill-self-at", type=int, default=0)
    parser.add_argument("--signals-to", type=Path, help="write the names of caught signals here")
    parser.add_argument("--slots", type=int, default=256)
    parser.add_argument("--phase", default="forward", help="what each step is spent in ...")
    parser.add_argument("--phase-seconds", type=float, default=0.0, help="... for so long")
    parser.add_argument("--hang-at", type=int, default=0, help="stay in that phase for good at this step ...")
    parser.add_argument("--hang-seconds", type=float, default=600.0, help="... or for so long")
    return parser.parse_args()


def values(step: int, bad: bool) -> dict[str, float]:
    return {
        "policy.loss": 0.1, "reward.mean": 0.5, "gradient.norm_preclip": math.nan if bad else 1.0 + 0.01 * (step % 7),
        "gradient.nonfinite_tensors": float(bad), "gradient.nan_tensors": float(bad), "gradient.tensors": 10.0,
        "optimizer.step_skipped": float(bad), "optimizer.skipped_updates": float(bad), "optimizer.learning_rate": 1e-5,
        "time.step_seconds": 0.02, "sentinel.core_active": 1.0,
    }  # fmt: skip


def save(output: Path, step: int) -> Path:
    """Write a checkpoint that looks like transformers': weights, then the trainer's state last."""
    path = output / f"checkpoint-{step}"
    path.mkdir(parents=True, exist_ok=True)
    data = struct.pack("<4f", 1.0, 2.0, 3.0, float(step))
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return path


def main() -> None:
    args = options()
    if args.signals_to is not None:

        def note(number: int, _frame: object) -> None:
            with args.signals_to.open("a") as file:
                file.write(signal.Signals(number).name + "\n")
            if number == signal.SIGTERM:
                sys.exit(args.exit_code)

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            signal.signal(number, note)
    run_id = derive_run_id()
    directory = run_dir(choose_root(), run_id)
    identity = new_identity(args.rank, args.rank, args.world, run_id, derive_parent_run_id())
    writer = RankWriter(directory, identity, Geometry(slots=args.slots))
    writer.event(
        "config", {"trainer": "fake", "output_dir": str(args.output_dir or ""), "world_size": args.world}, step=0
    )
    control = ControlReader(directory)
    handled = 0
    print("ready", flush=True)
    for step in range(1, args.steps + 1):
        if args.stdin and not sys.stdin.readline():
            break
        bad = bool(args.bad_from) and step >= args.bad_from
        writer.phase(Phase[args.phase.upper()], step)
        writer.push({"data.samples": 4.0}, step=step, kind=Kind.DATA)
        time.sleep(args.hang_seconds if step == args.hang_at else args.phase_seconds)
        if bad:
            writer.event("nonfinite", {"names": ["layers.0.weight"], "where": "before_reduce"}, step=step)
            writer.event("skip", {"reason": "the gradient is not finite", "ranks": [args.rank]}, step=step)
        lost = {"optimizer.nonfinite_weights": 2.0} if bad and args.lost_weights else {}
        spent = {f"time.phase_seconds[{args.phase}]": args.phase_seconds} if args.phase_seconds else {}
        word = control.read()  # before the record is out: what the record makes the daemon ask for is the next step's
        writer.push({**values(step, bad), **lost, **spent}, step=step)
        if args.save_steps and step % args.save_steps == 0 and args.output_dir:
            path = save(args.output_dir, step)
            writer.event("checkpoint", {"path": str(path), "step": step}, step=step)
        if args.stdin:
            print(f"step {step}", flush=True)
        if args.kill_self_at == step:
            os.kill(os.getpid(), signal.SIGKILL)
        if word is not None and word.request_id > handled and word.action >= Action.CHECKPOINT and not args.deaf:
            handled = word.request_id
            carry_out(writer, word.request_id, word.action, step, args)
            if word.action is not Action.CHECKPOINT:
                writer.close("halted")
                sys.exit(args.exit_code)
        if not args.stdin:
            time.sleep(args.interval)
    writer.close()
    sys.exit(args.exit_code)


def carry_out(writer: RankWriter, request_id: int, action: Action, step: int, args: argparse.Namespace) -> None:
    def say(state: HaltState, detail: str = "") -> None:
        writer.acknowledge(Ack(request_id=request_id, state=state, step=step, wall_ns=time.time_ns(), detail=detail))

    writer.event("halt", {"action": action.name.lower(), "request_id": request_id, "reason": ""}, step=step)
    say(HaltState.VOTED)
    if action is Action.HALT_NOW:
        return say(HaltState.DONE)
    say(HaltState.CHECKPOINTING)
    path = save(args.output_dir, step) if args.output_dir else ""
    return say(HaltState.DONE, str(path))


if __name__ == "__main__":
    main()
