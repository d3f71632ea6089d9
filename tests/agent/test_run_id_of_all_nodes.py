"""Where no launcher names the run, ranks under different parents (as on different nodes) still write into one run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import environment, free_port

pytestmark = pytest.mark.torch
WORKER = Path(__file__).with_name("lone_rank.py")


def test_ranks_under_different_parents_take_rank_0s_name_of_the_run(tmp_path):
    port, started = str(free_port()), []
    for rank in (0, 1):
        env = {**environment(tmp_path), "RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        del env["GRPO_SENTINEL_RUN_ID"]
        for name in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "RAY_JOB_ID"):
            env.pop(name, None)
        # the shell stays the parent: what follows the command keeps it from becoming it
        command = ["sh", "-c", f"{sys.executable} {WORKER}; exit $?"]
        started.append(
            subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        )
    try:
        outs = [process.communicate(timeout=120) for process in started]
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait(10)
    assert [process.returncode for process in started] == [0, 0], outs
    said = [out.split() for out, _ in outs]
    assert [voting for voting, _ in said] == ["True", "True"]
    paths = [Path(path) for _, path in said]
    assert [path.name for path in paths] == ["rank-00000.ring", "rank-00001.ring"]
    assert paths[0].parent == paths[1].parent
