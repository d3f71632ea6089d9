"""Show grpo-sentinel at work: a real two-process TRL run, a fault, and what came of it (`make demo`).

    python examples/demo/run.py [--fault grad_nan] [--steps N] [--compare] [--keep]

--compare runs the same fault without grpo-sentinel too and sets both side by side (with --fault none: compares every
logged number and the weights bit by bit). --keep leaves the sidecar up to look at until Ctrl-C.
Exit code 0: everything that the fault must lead to was seen; 1: something was not, and which; 130: interrupted.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import assets
import faults
import launching
import report
from expectations import EXPECTATIONS, Expectation
from screen import Screen

BUILD = Path(__file__).resolve().parents[2] / "build"


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fault", default="grad_nan", help="NAME[:key=value,...], see faults.py")
    parser.add_argument("--steps", type=int, default=0, help="optimizer steps; default as the fault needs")
    parser.add_argument("--compare", action="store_true", help="run it without grpo-sentinel too")
    parser.add_argument("--keep", action="store_true", help="leave the sidecar up until Ctrl-C")
    parser.add_argument("--out", type=Path, default=BUILD / "demo")
    parser.add_argument("--timeout", type=float, default=420.0, help="seconds after which a training run is ended")
    args = parser.parse_args()
    try:
        args.name = faults.parse(args.fault)[0]
    except ValueError as error:
        parser.error(str(error))
    return args


def environment(fault: str) -> dict[str, str]:
    """Set what both runs share: no network, one thread per rank, the fault."""
    return {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "DEMO_FAULT": fault,
    }


def train(
    screen: Screen, args: argparse.Namespace, expected: Expectation, folder: Path, *, watched: bool
) -> launching.Run:
    """Train once in `folder`, with or without grpo-sentinel, showing progress."""
    steps = args.steps or expected.steps
    folder.mkdir(parents=True)
    argv = launching.command(folder / "run", assets.DEFAULT_OUT, steps)
    variables = environment(args.fault)
    if watched:
        config = folder / "sentinel.yaml"
        config.write_text(f"state_dir: {folder / 'state'}\nhttp: {{port: 0}}\nlaunch: {{linger_seconds: 2}}\n")
        variables["GRPO_SENTINEL_RUN_ID"] = f"demo-{args.name}-{os.getpid()}"
        argv = launching.watched(argv, config)
    screen.line(f"  $ {' '.join(os.path.relpath(part) if part.startswith('/') else part for part in argv)}", "dim")
    screen.progress("starting two ranks", 0.0)
    run = launching.train(
        argv, folder / "run", variables, timeout_s=args.timeout,
        on_step=lambda step, text: screen.progress(text, step / steps),
        on_line=lambda line: screen.line(f"  {line}", "yellow"),
    )  # fmt: skip
    screen.line(f"  exit code {run.exit_code} after {run.steps} steps and {run.seconds:.0f} s; log: {run.log}")
    return run


def keep_up(screen: Screen, folder: Path, run_id: str) -> None:
    """Run the sidecar on what the run left until the user presses Ctrl-C."""
    screen.title("The sidecar stays up (Ctrl-C ends it)")
    program = str(Path(sys.executable).with_name("grpo-sentinel"))
    argv = [program, "run", "--config", str(folder / "sentinel.yaml"), "--run-id", run_id]
    screen.line(f"  $ {' '.join(argv)}", "dim")
    try:
        subprocess.run(argv, check=False)
    except KeyboardInterrupt:
        screen.line("  stopped")


def main() -> int:
    args = options()
    screen = Screen()
    expected = EXPECTATIONS[args.name]
    folder = args.out / args.name
    shutil.rmtree(folder, ignore_errors=True)
    started = time.monotonic()

    screen.title(f"grpo-sentinel demo, FAULT={args.fault}: {expected.tells}")
    screen.title("1. A tiny policy, tokenizer and reward model, built here (no model hub)")
    assets.ensure(progress=screen.progress)
    screen.line(f"  in {assets.DEFAULT_OUT}")

    plain = None
    if args.compare:
        screen.title("2. The run without grpo-sentinel")
        plain = train(screen, args, expected, folder / "without", watched=False)
    screen.title(f"{'3' if plain else '2'}. The run with grpo-sentinel, without a line of it in the training script")
    run = train(screen, args, expected, folder / "with", watched=True)

    screen.title("What came of it")
    checks = report.show(screen, args.name, expected, run, folder / "with")
    if plain is not None:
        checks += report.compare(screen, args.name, plain, run)
    screen.title("Checked")
    for check in checks:
        screen.verdict(check.text, check.good)
    report.attach_lines(screen)
    failed = [check for check in checks if not check.good]
    screen.line()
    took = f"{time.monotonic() - started:.0f} s"
    if failed:
        screen.line(f"FAILED after {took}: {failed[0].text} (log: {run.log})", "red", "bold")
    else:
        screen.line(f"Done in {took}: what FAULT={args.name} must lead to was seen.", "green")
    if args.keep:
        keep_up(screen, folder / "with", report.run_id(folder / "with"))
    return 1 if failed else 0


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\ninterrupted: the training run was ended", file=sys.stderr)
        sys.exit(130)
