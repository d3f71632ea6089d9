"""Ranks with different numbers of batches, under torch's Join: a vote would wait for a rank that has none left."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

from ranks import free_port  # noqa: E402

SCRIPT = Path(__file__).with_name("uneven_ranks.py")


def run(tmp_path, watch):
    port = str(free_port())
    ranks = []
    for rank in range(2):
        place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ours = {"GRPO_SENTINEL_DIR": str(tmp_path), "GRPO_SENTINEL_RUN_ID": "run", "WATCH": watch}
        command = [sys.executable, str(SCRIPT)]
        ranks.append(subprocess.Popen(command, env={**os.environ, **place, **ours}, stdout=subprocess.PIPE, text=True))
    try:
        return [one.communicate(timeout=60)[0].rpartition("DONE ")[2].split(maxsplit=1)[1].strip() for one in ranks]
    finally:
        for one in ranks:
            one.kill()
            one.wait()


def test_a_rank_that_has_no_batch_left_is_not_waited_for_and_the_gate_stays_shut(tmp_path):
    watched, plain = run(tmp_path, "1"), run(tmp_path, "0")
    assert [said.split()[1:] for said in watched] == [["True", "[4]"]] * 2
    assert {said.split()[0] for said in watched} == {said.split()[0] for said in plain}
