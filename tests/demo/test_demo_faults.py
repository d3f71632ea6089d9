"""Faults strike where and when they are told to, and every one has something that it must lead to."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import expectations  # isort: skip
import faults  # isort: skip


def trainer_at(step: int, output_dir) -> SimpleNamespace:
    return SimpleNamespace(state=SimpleNamespace(global_step=step - 1), args=SimpleNamespace(output_dir=output_dir))


def test_every_fault_has_an_expectation_and_is_named_in_the_readme():
    readme = (Path(faults.__file__).parents[2] / "README.md").read_text()
    assert set(faults.FAULTS) == set(expectations.EXPECTATIONS)
    listed = readme.partition("Faults: `")[2].partition("`")[0].split()
    assert sorted(listed) == sorted(faults.FAULTS)


def test_a_specification_overrides_only_what_it_names():
    name, parameters = faults.parse("grad_nan:step=5,until=inf,rank=0")
    assert (name, parameters["step"], parameters["until"], parameters["rank"]) == ("grad_nan", 5, math.inf, 0)
    assert parameters["parameter"] == faults.FAULTS["grad_nan"][1]["parameter"]
    assert faults.FAULTS["grad_nan"][1]["step"] == 12


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("grad_nun", "unknown fault 'grad_nun'; known are none, grad_nan"),
        ("grad_nan:stop=3", "no parameter 'stop'; it has step, until"),
        ("grad_nan:step=soon", "step needs a number, got 'soon'"),
    ],
)
def test_a_wrong_specification_is_refused_in_one_sentence(spec, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        faults.parse(spec)


@pytest.mark.parametrize(
    ("step", "rank", "acts"), [(4, 1, False), (5, 1, True), (7, 1, True), (8, 1, False), (6, 0, False)]
)
def test_a_fault_acts_on_its_rank_from_step_to_until(step, rank, acts, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", str(rank))
    _, parameters = faults.parse("kill:step=5,until=7,rank=1")
    fault = faults.Fault("kill", parameters, trainer_at(step, tmp_path))
    assert fault.acts() is acts


def test_a_fault_that_strikes_writes_down_the_truth_once(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("RANK", "1")
    fault = faults.Fault("kill", faults.parse("kill:step=5,until=inf")[1], trainer_at(6, tmp_path))
    fault.subject = "some.weight"
    assert fault.acts()
    assert fault.acts()
    truth = json.loads((tmp_path / "fault-rank1.json").read_text())
    assert (truth["fault"], truth["step"], truth["rank"], truth["subject"]) == ("kill", 6, 1, "some.weight")
    assert capfd.readouterr().err.count("demo: rank 1 injects kill from step 6 (some.weight)") == 1
