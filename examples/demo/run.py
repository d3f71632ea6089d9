"""Show grpo-sentinel at work: a real two-process TRL run, a fault, and what came of it (`make demo`).

    python examples/demo/run.py [--fault grad_nan] [--steps N] [--compare] [--keep]

--compare runs the same fault without grpo-sentinel too and sets both side by side (with --fault none: compares every
logged number and the weights bit by bit). --keep leaves the sidecar up to look at until Ctrl-C.
Exit code 0: everything that the fault must lead to was seen; 1: something was not, and which; 130: interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
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

from grpo_sentinel.protocol import choose_root, run_dir

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
    screen: Screen, args: argparse.Namespace, expected: Expectation, folder: Path, run_id: str = ""
) -> launching.Run:
    """Train once in `folder`, showing progress; with a run id, under `grpo-sentinel launch`."""
    steps = args.steps or expected.steps
    argv = launching.command(folder / "run", assets.DEFAULT_OUT, steps)
    variables = environment(args.fault)
    if run_id:
        variables["GRPO_SENTINEL_RUN_ID"] = run_id
        argv = launching.watched(argv, folder / "sentinel.yaml", sidecar=not args.keep)
    screen.line(f"  $ {' '.join(map(shown, argv))}", "dim")
    screen.progress("starting two ranks", 0.0)
    run = launching.train(
        argv, folder / "run", variables, timeout_s=args.timeout,
        on_step=lambda step, text: screen.progress(text, step / steps),
        on_line=lambda line: screen.line(f"  {line}", "yellow"),
    )  # fmt: skip
    screen.line(f"  exit code {run.exit_code} after {run.steps} steps and {run.seconds:.0f} s; log: {run.log}")
    return run


def shown(word: str) -> str:
    """Shorten a path as one would type it: programs by name, files from here."""
    path = Path(word)
    if not path.is_absolute():
        return word
    if path.parent == Path(sys.executable).parent:
        return path.name
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else word


def stay_up(screen: Screen, folder: Path, rings: Path, sidecar: subprocess.Popen[bytes]) -> None:
    """Tell where the sidecar answers and wait for Ctrl-C, or for its end."""
    note = rings / "daemon.json"
    shown = "page" if sys.stdout.isatty() else "url"  # the first holds the token that reading needs
    url = json.loads(note.read_text())[shown] if note.is_file() else ""
    screen.title("The sidecar stays up, until Ctrl-C")
    screen.fact("page", url or f"not served, see {folder / 'sidecar.log'}")
    screen.fact("in words", f"{launching.sentinel()} status --config {folder / 'sentinel.yaml'}")
    try:
        sidecar.wait()
    except KeyboardInterrupt:
        screen.line("  stopped")


def main() -> int:
    args = options()
    screen = Screen()
    expected = EXPECTATIONS[args.name]
    run_id = f"demo-{args.name}-{os.getpid()}"
    rings = run_dir(choose_root(), run_id)
    folder = (args.out / args.name).absolute()
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "without").mkdir(parents=True)
    (folder / "with").mkdir()
    config = folder / "with" / "sentinel.yaml"
    config.write_text(f"state_dir: {folder / 'with' / 'state'}\nhttp: {{port: 0}}\nlaunch: {{linger_seconds: 2}}\n")
    started = time.monotonic()

    screen.title(f"grpo-sentinel demo, FAULT={args.fault}: {expected.tells}")
    screen.title("1. A tiny policy, tokenizer and reward model, built here (no model hub)")
    assets.ensure(progress=screen.progress)
    screen.line(f"  in {assets.DEFAULT_OUT}")
    plain = None
    if args.compare:
        screen.title("2. The run without grpo-sentinel")
        plain = train(screen, args, expected, folder / "without")
    screen.title(f"{'3' if plain else '2'}. The run with grpo-sentinel, without a line of it in the training script")
    with contextlib.ExitStack() as stack:
        sidecar = stack.enter_context(launching.sidecar_of_its_own(config, run_id)) if args.keep else None
        stack.callback(shutil.rmtree, rings, ignore_errors=True)
        run = train(screen, args, expected, folder / "with", run_id)
        if sidecar is not None:
            time.sleep(2.5)  # its last look at the rings and its commit, as `launch` would have lingered
        good = conclude(screen, args, expected, plain, run, time.monotonic() - started)
        if sidecar is not None:
            stay_up(screen, folder / "with", rings, sidecar)
    return 0 if good else 1


def conclude(
    screen: Screen, args: argparse.Namespace, expected: Expectation, plain: launching.Run | None, run: launching.Run,
    seconds: float,
) -> bool:  # fmt: skip
    """Tell what came of it and whether it is what the fault must lead to."""
    screen.title("What came of it")
    checks = report.show(screen, expected, run, run.output_dir.parent)
    if plain is not None:
        checks += report.compare(screen, args.name, plain, run)
    screen.title("Checked")
    for check in checks:
        screen.verdict(check.text, check.good)
    report.attach_lines(screen)
    failed = [check for check in checks if not check.good]
    screen.line()
    if failed:
        screen.line(f"FAILED after {seconds:.0f} s: {failed[0].text} (log: {run.log})", "red", "bold")
    else:
        screen.line(f"Done in {seconds:.0f} s: what FAULT={args.fault} must lead to was seen.", "green", "bold")
    return not failed


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\ninterrupted: the training run was ended", file=sys.stderr)
        sys.exit(130)
