"""Settings, guard, null agent, phases: nothing of ours reaches the trainer, and nothing passes silently."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import environment

from grpo_sentinel.agent import NullAgent, Verdict
from grpo_sentinel.agent.guard import Guard
from grpo_sentinel.agent.phases import PhaseClock
from grpo_sentinel.agent.settings import Settings, settings_from_environment
from grpo_sentinel.config import AgentConfig
from grpo_sentinel.errors import ConfigError
from grpo_sentinel.records import Phase


def boom():
    raise ValueError("broken on purpose")


def test_a_probe_that_raises_is_off_said_once_and_counted(capsys):
    told = []
    guard = Guard()
    guard.on_failure(lambda probe, reason, trace: told.append((probe, reason, "boom" in trace)))
    assert [guard.run("data", boom) for _ in range(3)] == [None] * 3
    assert guard.run("policy", lambda: 5) == 5
    assert guard.errors == 1
    assert guard.off == {"data": "ValueError: broken on purpose"}
    assert told == [("data", "ValueError: broken on purpose", True)]
    assert capsys.readouterr().err.count("\n") == 1


def test_an_essential_part_is_tried_again_and_said_once(capsys):
    guard = Guard()
    assert [guard.essential("halt", boom) for _ in range(3)] == [None] * 3
    assert (guard.errors, guard.off) == (3, {})
    assert capsys.readouterr().err.count("\n") == 1


def test_strict_lets_errors_out_and_a_report_that_raises_does_not():
    with pytest.raises(ValueError, match="on purpose"):
        Guard(strict=True).run("data", boom)
    guard = Guard()
    guard.on_failure(lambda *args: boom())
    assert guard.run("data", boom) is None
    assert guard.errors == 2


def test_keyboard_interrupt_is_not_ours_to_swallow():
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Guard().run("data", interrupt)


def test_nested_calls_count_their_time_once():
    now = [0.0]

    def pass_time(seconds):
        now[0] += seconds

    guard = Guard(clock=lambda: now[0])
    guard.run("outer", lambda: [pass_time(1), *(guard.run("inner", pass_time, 2) for _ in range(3))])
    assert guard.seconds == 7
    guard.charge(0.5)
    guard.exempt(3)
    assert guard.seconds == 4.5


def test_the_null_agent_has_every_public_method_of_the_agent():
    pytest.importorskip("torch")
    from grpo_sentinel.agent import Agent

    others = ("phase", "scoring", "end_step", "event", "close")
    for_loops = {n for n in dir(Agent) if n.startswith("observe_") or n in others}
    assert {*for_loops, "checkpoint_saved", "__enter__", "__exit__"} <= set(vars(NullAgent))
    with NullAgent("off") as agent:
        with agent.phase("generate"), agent.scoring("accuracy"):
            agent.observe_data({"input_ids": None})
        assert agent.end_step(3) == Verdict()
        assert agent.active is False


def test_settings_hold_every_field_of_the_launchers_agent_section():
    fields = json.loads(AgentConfig().model_dump_json())
    read = settings_from_environment({"GRPO_SENTINEL_SETTINGS": json.dumps(fields)})
    assert {name: getattr(read, name) for name in fields} == fields
    assert read == Settings(), "defaults on both sides are the same"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "not JSON"),
        ("[1]", "list"),
        ('{"gait": "skip"}', "gait"),
        ('{"gate": "maybe"}', "maybe"),
        ('{"vote_every": 0}', "vote_every"),
        ('{"handshake_seconds": true}', "handshake_seconds"),
        ('{"skip_above_norm": -1}', "skip_above_norm"),
    ],
)
def test_a_bad_setting_is_named_in_one_sentence(text, named):
    with pytest.raises(ConfigError, match=named):
        settings_from_environment({"GRPO_SENTINEL_SETTINGS": text})


def test_inner_phases_take_their_time_from_the_outer_one():
    now, stamps = [0.0], []
    phases = PhaseClock(lambda phase, step: stamps.append((phase, step)), clock=lambda: now[0])
    phases.step = 4

    def at(seconds, action, *args):
        now[0] = seconds
        action(*args)

    at(1, phases.enter, Phase.GENERATE)
    at(3, phases.enter, Phase.REWARD)
    at(7, phases.leave, Phase.REWARD)
    at(8, phases.leave, Phase.GENERATE)
    at(8, phases.leave, Phase.FORWARD)
    now[0] = 10
    assert phases.take() == {Phase.IDLE: 3.0, Phase.GENERATE: 3.0, Phase.REWARD: 4.0}
    assert stamps == [(p, 4) for p in (Phase.GENERATE, Phase.REWARD, Phase.GENERATE, Phase.IDLE)]


def test_leaving_an_outer_phase_ends_what_an_exception_left_open():
    phases = PhaseClock(lambda phase, step: None)
    phases.enter(Phase.GENERATE)
    phases.enter(Phase.REWARD)
    phases.leave(Phase.GENERATE)
    assert phases.now is Phase.IDLE


def test_an_exception_keeps_the_innermost_phase_in_which_it_was_raised_after_that_has_ended():
    phases, error = PhaseClock(lambda phase, step: None), ValueError("no answer")
    assert phases.of(error) is Phase.IDLE
    phases.enter(Phase.GENERATE)
    phases.enter(Phase.REWARD)
    for phase in (Phase.REWARD, Phase.GENERATE):
        phases.raised(error)
        phases.leave(phase)
    assert phases.of(error) is Phase.REWARD
    assert phases.of(ValueError("another")) is phases.now is Phase.IDLE


FORK = """
import os, torch
from grpo_sentinel.agent import attach, NullAgent
net = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
agent = attach(model=net, optimizer=optimizer)
def step():
    net(torch.ones(1, 2)).sum().backward(); optimizer.step(); optimizer.zero_grad(); agent.end_step()
step()
if os.fork() == 0:
    step(); agent.event("note", {"text": "from the child"}); agent.close()
    assert not agent.active and isinstance(attach(model=net, optimizer=optimizer), NullAgent)
    raise SystemExit(0)
assert os.wait()[1] == 0
step()
"""


@pytest.mark.torch
def test_a_forked_child_is_inert_and_the_parent_goes_on(tmp_path):
    from ranks import Segment

    from grpo_sentinel.protocol import RankReader, run_dir

    done = subprocess.run(
        [sys.executable, "-c", FORK], env=environment(tmp_path), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    reader = RankReader(run_dir(Path(tmp_path / "rings"), "run") / "rank-00000.ring")
    segment = Segment(reader)
    reader.close()
    assert list(segment.steps()) == [1, 2]
    assert segment.of("note") == []
    assert segment.closed == "finished", "closed at exit by the parent"


@pytest.mark.torch
def test_a_crash_leaves_the_segment_open(tmp_path):
    from grpo_sentinel.protocol import RankReader, run_dir

    code = "from grpo_sentinel.agent import attach; import torch; attach(model=torch.nn.Linear(1, 1)); raise RuntimeError('dies')"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(tmp_path), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    reader = RankReader(run_dir(Path(tmp_path / "rings"), "run") / "rank-00000.ring")
    assert reader.closed is None
    reader.close()


@pytest.mark.torch
@pytest.mark.parametrize("trouble", ["file in the way", "read-only", "relative nonsense"])
def test_no_place_for_a_ring_is_one_line_and_training_runs(tmp_path, trouble):
    place = tmp_path / "place"
    if trouble == "file in the way":
        place.write_text("")
    elif trouble == "read-only":
        place = Path("/proc/sys")
    else:
        place = Path("/dev/null/deep")
    code = (
        "import torch; from grpo_sentinel.agent import attach; n=torch.nn.Linear(1,1);"
        "o=torch.optim.SGD(n.parameters(),lr=.1); a=attach(model=n, optimizer=o);"
        "n(torch.ones(1,1)).backward(); o.step(); v=a.end_step(); print('ran', v.skipped)"
    )
    env = environment(tmp_path, GRPO_SENTINEL_DIR=str(place))
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "ran False", done.stderr
    ours = [line for line in done.stderr.splitlines() if line.startswith("grpo-sentinel:")]
    assert len(ours) == 1
    assert str(place) in ours[0]


def test_importing_the_package_loads_no_torch():
    code = (
        "import sys, grpo_sentinel, grpo_sentinel.agent, grpo_sentinel.agent.autoattach; print('torch' in sys.modules)"
    )
    env = {**os.environ, "PYTHONPATH": environment(Path("/"))["PYTHONPATH"]}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr
