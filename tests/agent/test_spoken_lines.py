"""Rank 0 says in the trainer's log that nobody reads its record, and that an update was skipped."""

from __future__ import annotations

import fcntl
import os

import pytest
import torch

import grpo_sentinel
from grpo_sentinel.agent.ballot import ABOVE_BOUND, NONFINITE
from grpo_sentinel.agent.core import Outcome
from grpo_sentinel.agent.spoken import Spoken
from grpo_sentinel.protocol.watched import LOCK_NAME

FINE = Outcome(voted=True)
BAD = Outcome(voted=True, skip=True, flag=NONFINITE, first_flagged=1, last_flagged=1)


class Said:
    def __init__(self, rank=0, directory=None, **options):
        self.lines, self.now = [], 0.0
        self.spoken = Spoken(rank, directory, say=self.lines.append, clock=lambda: self.now, **options)

    def step(self, step, outcome=FINE, names=(), seconds=1.0):
        self.now += seconds
        self.spoken.step_ended(step, outcome)
        self.spoken.landed(step, names)


def test_a_run_that_no_sidecar_reads_says_so_once_at_its_first_steps(tmp_path):
    said = Said(0, tmp_path)
    for step in range(1, 40):
        said.step(step)
        assert bool(said.lines) == (step >= 3)
    said.spoken.closed()
    assert len(said.lines) == 1
    assert f"recording to {tmp_path}" in said.lines[0]
    assert "start `grpo-sentinel run`" in said.lines[0]
    silent = Said(1, tmp_path)
    for step in range(1, 9):
        silent.step(step)
    assert silent.lines == [], "one rank speaks for all"


def test_a_run_that_is_read_says_nothing(tmp_path):
    said = Said(0, tmp_path)
    held = os.open(tmp_path / LOCK_NAME, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        for step in range(1, 9):
            said.step(step)
    finally:
        os.close(held)
    assert said.lines == []


def test_a_launcher_has_time_to_bring_its_sidecar_up_and_a_short_run_is_told_at_its_end(tmp_path):
    launched, short = Said(0, tmp_path, launched=True), Said(0, tmp_path)
    for step in range(1, 9):
        launched.step(step)
        short.step(step, seconds=0.01)
    assert (launched.lines, short.lines) == ([], [])
    short.spoken.closed()
    launched.spoken.closed()
    assert launched.lines == []
    assert "was read by no sidecar" in short.lines[0]


def test_skips_of_a_kind_are_said_once_with_step_and_tensors_and_then_once_a_minute():
    said = Said(world=2)
    said.step(4, BAD, ["a.weight", "b.weight", "c.weight", "d.weight", "a.weight"])
    assert said.lines == [
        "step 4: the gradient is not finite (a.weight, b.weight, c.weight and 1 more; flagged by rank 1); "
        "the update is skipped on every rank"
    ]
    said.step(5, BAD, ["a.weight"])
    said.step(6, Outcome(voted=False, skip=True, flag=ABOVE_BOUND))
    assert said.lines[1:] == ["step 6: the gradient norm is above the bound; the update is skipped on this rank alone"]
    said.step(70, BAD, ["a.weight"], seconds=60)
    assert said.lines[2].endswith("the update is skipped on every rank; 1 more since it was last said")
    said.step(71, Outcome(voted=True, skip=True, flag=NONFINITE, by_scaler=True))
    assert len(said.lines) == 3, "a loss scaler's overflow is its daily business"


def test_a_loop_of_ones_own_hears_of_its_skipped_update(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GRPO_SENTINEL_DIR", str(tmp_path / "rings"))
    model = torch.nn.Linear(2, 1)
    agent = grpo_sentinel.attach(model=model, optimizer=(optimizer := torch.optim.SGD(model.parameters(), lr=0.1)))
    for step in range(1, 5):
        model(torch.full((1, 2), float("nan") if step == 2 else 1.0)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        agent.end_step(step)
    agent.close()
    lines = [line for line in capsys.readouterr().err.splitlines() if "skipped" in line]
    assert len(lines) == 1
    assert "step 2: the gradient is not finite (weight); the update is skipped" in lines[0]


@pytest.fixture(autouse=True)
def _nothing_attached():
    yield
    grpo_sentinel.attach(model=torch.nn.Linear(1, 1)).close()
