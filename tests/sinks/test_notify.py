"""apprise sends what the routes say, through channels that do not disturb each other."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from stand_in import refusing_url, serving
from test_notify_groups import CHILD, ROOT, shows

from grpo_sentinel.clock import ManualClock
from grpo_sentinel.config import NotifyConfig
from grpo_sentinel.errors import ConfigError
from grpo_sentinel.records import Severity
from grpo_sentinel.sinks import notify_text
from grpo_sentinel.sinks.notify import open_notify
from grpo_sentinel.sinks.notify_groups import Notification


@pytest.fixture
def server():
    with serving() as made:
        yield made


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def make(server, clock, tmp_path, monkeypatch):
    """Make the sink with apprise URLs of each route; `json://` posts to the stand-in."""
    pytest.importorskip("apprise")
    monkeypatch.delenv("GRPO_SENTINEL_NOTIFY_URLS", raising=False)

    def made(routes, **changes):
        sections = {}
        for name, urls in routes.items():
            (tmp_path / name).write_text("\n".join(urls))
            sections[name] = {"urls_file": str(tmp_path / name)}
        config = {"group_wait_seconds": 0, "timeout_seconds": 0.3, **sections, **changes}
        sinks.append(open_notify(NotifyConfig.model_validate(config), clock))
        return sinks[-1]

    sinks = []
    yield made
    for sink in sinks:
        sink.close()


def json_url(url, path=""):
    return url.replace("http://", "json://") + path


def note(*findings):
    return Notification(key=("run-1", findings[0].finding_id), node="node-a", findings=findings)


def test_a_message_says_which_run_layer_rank_and_step_and_what_to_do():
    told = note(ROOT, CHILD)
    assert notify_text.title(told) == "[critical] run-1: nan_reward (reward) at step 10"
    assert notify_text.body(told, "http://node-a:9477/").splitlines() == [
        "a gradient is not finite",
        "layer reward, rank 1, since step 10, node node-a",
        "Why it matters: it poisons the weights",
        "What to do:",
        "- look at the loss of rank 1",
        "What followed:",
        "- nan_loss (policy), layer policy, rank 1, since step 11: a gradient is not finite",
        "http://node-a:9477/",
    ]


def test_each_route_gets_what_is_grave_enough(server, make):
    sink = make({
        "note": [json_url(server.url, "/note")],
        "warning": [json_url(server.url, "/warning")],
        "critical": [json_url(server.url, "/critical")],
    })  # fmt: skip
    sink.write(shows(ROOT))
    mild = [replace(CHILD, root_id="", finding_id=name, severity=Severity[name]) for name in ("WARNING", "NOTE")]
    sink.write(shows(ROOT, *mild))
    paths = [path for path, _, _ in server.requests]
    assert [paths.count(path) for path in ("/note", "/warning", "/critical")] == [3, 2, 1]
    assert server.bodies[0]["title"] == "[critical] run-1: nan_reward (reward) at step 10"
    assert server.bodies[0]["type"] == "failure"


def test_a_dead_channel_does_not_keep_the_others_from_being_told(server, make, clock):
    sink = make({"note": [json_url(refusing_url(), "/?token=hidden"), json_url(server.url)]})
    began = time.monotonic()
    for _ in range(100):
        sink.write(shows(ROOT))
    assert time.monotonic() - began < 10
    assert len(server.requests) == 1
    assert sink.problem() == "json (channel 1): the message was not taken"
    assert sink.health()["failures_total"] == 1
    sink.close()


def test_a_hanging_channel_is_bounded(server, make):
    server.mode = "hang"
    sink = make({"note": [json_url(server.url)]})
    began = time.monotonic()
    sink.write(shows(ROOT))
    sink.write(shows(ROOT))
    sink.close()
    assert time.monotonic() - began < 20
    assert sink.health()["lost_total[reason=closing]"] == 1


def test_a_url_that_apprise_does_not_know_is_refused_without_being_quoted(make):
    with pytest.raises(ConfigError) as error:
        make({"note": ["nothing://hidden"]})
    assert "hidden" not in str(error.value)


def test_without_any_url_it_says_where_one_belongs(clock, monkeypatch):
    monkeypatch.delenv("GRPO_SENTINEL_NOTIFY_URLS", raising=False)
    with pytest.raises(ConfigError, match="GRPO_SENTINEL_NOTIFY_URLS"):
        open_notify(NotifyConfig(), clock)
