"""Run the bench and write what came of it (`make faultbench`).

    python -m benchmarks.faultbench [--mechanisms NAME,LAYER,...] [--seeds 1,2,3] [--trainers loop1,loop2,trl1,trl2]
                                    [--minutes N] [--parallel 2] [--report] [--healthy STEPS] [--synthetic STEPS]
                                    [--rescore PREFIX,...]

Every run's result lies in build/faultbench/results and is not made again; `--report` only scores and writes
build/faultbench.json and the table of docs/faultbench.md. `--rescore` first judges the stored records of the runs whose
names begin so by the rules as they are now.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
OUT = REPOSITORY / "build" / "faultbench"


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="faultbench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mechanisms", default="", help="names or layers, comma-separated; default all")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--trainers", default="loop1,loop2,trl1,trl2")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no run after so long")
    parser.add_argument("--parallel", type=int, default=2, help="runs at a time")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--rescore", default="", help="beginnings of names, comma-separated: judge their records again")
    parser.add_argument("--report", action="store_true", help="score what is stored, run nothing")
    parser.add_argument(
        "--healthy", type=int, default=0, metavar="STEPS", help="real healthy steps a configuration; 0 = none"
    )
    parser.add_argument("--only-healthy", default="", help="names of healthy configurations, comma-separated")
    parser.add_argument(
        "--synthetic", type=int, default=0, metavar="STEPS", help="synthetic healthy steps a source; 0 = none"
    )
    parser.add_argument("--no-peers", action="store_true", help="leave out the peers that need runs of their own")
    parser.add_argument("--no-faults", action="store_true", help="only the healthy runs")
    args = parser.parse_args()
    from benchmarks.faultbench.table import chosen

    try:
        args.rows = chosen(args.mechanisms)
        args.seed_list = [int(seed) for seed in args.seeds.split(",") if seed]
    except ValueError as error:
        parser.error(str(error))
    return args


def rules_in_use() -> str:
    """Name the thresholds: the commit of the rules, and a digest of the catalogue as it lies there."""
    digest = hashlib.sha256()
    for part in ("catalogue", "profiles"):
        for file in sorted((REPOSITORY / "grpo_sentinel" / "rules" / part).glob("*.yaml")):
            digest.update(file.read_bytes())
    argv = ["git", "-C", str(REPOSITORY), "log", "-1", "--format=%h", "--", "grpo_sentinel/rules"]
    commit = subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()
    return f"{commit or 'no-git'}+{digest.hexdigest()[:12]}"


def build_assets(out: Path, trl: bool) -> None:
    """Build what the runs train with, in processes of their own: this one must stay clean to fork from."""
    place = out / "assets"
    if not (place / "loop.pt").is_file():
        subprocess.run(
            [sys.executable, "-m", "benchmarks.faultbench.policy", str(place / "loop.pt")], check=True, cwd=REPOSITORY
        )
    if trl and not (place / "trl" / "train.jsonl").is_file():
        subprocess.run(
            [sys.executable, "-m", "benchmarks.faultbench.trl_assets", str(place / "trl")], check=True, cwd=REPOSITORY
        )


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    args = options()
    if args.rescore:
        from benchmarks.faultbench.rescore import rescore

        rescore(args.out, args.rescore.split(","), rules_in_use(), tell)
    elif not args.report:
        run(args)
    from benchmarks.faultbench import report

    report.write(args.out, REPOSITORY, rules_in_use())
    return 0


def run(args: argparse.Namespace) -> None:
    """Make the runs that are missing."""
    from benchmarks.faultbench import healthy
    from benchmarks.faultbench.fault import LOOP1, LOOP2
    from benchmarks.faultbench.runs import Runner
    from benchmarks.faultbench.sidecar import Sidecar

    deadline = time.monotonic() + 60 * args.minutes
    trainers = [kind for kind in args.trainers.split(",") if kind]
    trl = any(kind not in (LOOP1, LOOP2) for kind in trainers)
    if args.synthetic:
        healthy.synthetic(args.out, args.synthetic, rules_in_use())
    build_assets(args.out, trl)
    import torch  # noqa: F401 - imported here so that forked ranks have it

    from benchmarks.faultbench import loop  # noqa: F401
    from grpo_sentinel.agent import attach  # noqa: F401 - it is imported lazily

    if trl:
        from benchmarks.faultbench import trl_run  # noqa: F401
    sidecar = Sidecar(args.out / "state" / f"{time.strftime('%H%M%S')}-{os.getpid()}")
    try:
        runner = Runner(
            args.out,
            sidecar,
            parallel=args.parallel,
            rules=rules_in_use(),
            tell=tell,
        )
        if args.healthy:
            runner.make(healthy.jobs(trainers, args.healthy, args.only_healthy), deadline)
        if not args.no_faults:
            from benchmarks.faultbench.plan import jobs

            runner.make(jobs(args.rows, trainers, args.seed_list, peers=not args.no_peers), deadline)
    finally:
        sidecar.close()


if __name__ == "__main__":
    os.environ.update(
        HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1", TRL_EXPERIMENTAL_SILENCE="1"
    )
    sys.exit(main())
