"""On a busy processor the agent's own time is what it took itself: neighbours thin no probes, real cost still does."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ranks import environment

from grpo_sentinel.agent.guard import Guard
from grpo_sentinel.agent.processor import Processor

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel keeps no schedstat"),
]


def test_neighbours_on_the_same_processor_thin_nothing_and_what_costs_too_much_is_thinned_among_them_too(tmp_path):
    script = Path(__file__).with_name("crowded_loop.py")
    (tmp_path / "rings").mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, script], env=environment(tmp_path), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    alone, enough, scarce = said["alone"], said["enough"], said["scarce"]
    assert enough["wall"] > 3 * alone["own"], "the neighbours were not noisy, which this test needs"
    assert enough["own"] < 2.5 * alone["own"], said
    assert (alone["every"], enough["every"]) == (1, 1), said
    assert scarce["every"] > 1, said


def test_waiting_is_the_agents_own_time_whatever_the_processor_does():
    guard, processor = Guard(strict=True), Processor()
    processor.start()
    guard.by_processor = True
    guard.run("waits", time.sleep, 0.05)
    processor.next_step()
    assert guard.off_processor_seconds > 0.045
    assert guard.seconds - min(guard.off_processor_seconds, processor.held_up_seconds) > 0.03
    processor.close()


def test_a_kernel_that_says_nothing_takes_nothing_off(tmp_path):
    for text in (None, "", "12 x 3", "0 0 0"):
        file = tmp_path / "schedstat"
        if text is not None:
            file.write_text(text)
        processor = Processor()
        processor.start(str(file))
        processor.next_step()
        assert (processor.held_up_seconds, processor.contended) == (0.0, False)
        processor.close()
        processor.close()
