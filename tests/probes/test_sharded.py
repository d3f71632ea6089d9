"""On two ranks each rank reads what it holds, and the squares add up to the norm that the engine computed itself."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
WORKER = Path(__file__).with_name("sharded_worker.py")
ROOT = Path(__file__).parents[2]


def run(mode):
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "DS_ACCELERATOR": "cpu"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(WORKER), mode]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line.partition("RESULT ")[2]) for line in done.stdout.splitlines() if "RESULT " in line]
    assert len(lines) == 4
    return {(line["step"], line["rank"]): line for line in lines}


def number(line, name):
    return float(line["values"][f"gradient.{name}"])


@pytest.mark.parametrize("mode", ["ddp", "fsdp1", "fsdp2", "zero1", "zero2", "zero3"])
def test_local_norms_add_up_to_the_engines_own(mode):
    if mode.startswith("zero") and importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed")
    seen = run(mode)
    norms = [number(seen[1, rank], "norm_local") for rank in (0, 1)]
    engine = float(seen[1, 0]["engine"])
    assert engine > 0
    total = norms[0] if mode == "ddp" else math.hypot(*norms)
    assert total == pytest.approx(engine, rel=1e-5)
    for rank in (0, 1):
        line = seen[1, rank]
        if mode == "ddp":
            assert number(line, "norm_preclip") == number(line, "norm_local")
        else:
            assert "gradient.norm_preclip" not in line["values"]  # one rank does not know the norm of all
        assert seen[2, rank]["names"]["after_reduce"]
        assert not line["names"]["after_reduce"]
    if mode == "ddp":
        check_ddp(seen)


def check_ddp(seen):
    """Only the hooks name the rank: after the all-reduce both ranks hold the same NaN."""
    assert seen[2, 0]["names"]["after_reduce"] == seen[2, 1]["names"]["after_reduce"]
    assert seen[2, 0]["names"]["before_reduce"] == []
    assert "0.weight" in seen[2, 1]["names"]["before_reduce"]
    assert number(seen[1, 0], "norm_before_reduce") != number(seen[1, 1], "norm_before_reduce")
    digests = {line["values"]["optimizer.parameter_digest"] for (step, _), line in seen.items() if step == 1}
    assert len(digests) == 1
