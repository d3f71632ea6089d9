"""The webhook tells a real server what is wrong, waits out one that is not well, and never shows its secrets."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import replace

import pytest
from sentinel_batches import batch, finding
from stand_in import refusing_url, serving
from test_notify_groups import CHILD, ROOT, shows

from grpo_sentinel.clock import ManualClock
from grpo_sentinel.config import WebhookConfig
from grpo_sentinel.errors import ConfigError
from grpo_sentinel.sinks.webhook import make_webhook
from grpo_sentinel.sinks.webhook_http import DeliveryError, Secret, post_json

URL = "GRPO_SENTINEL_WEBHOOK_URL"


@pytest.fixture
def server():
    with serving() as made:
        yield made


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def make(server, clock, monkeypatch):
    monkeypatch.setenv(URL, server.url + "/hook/secret-path")

    def made(**changes):
        return make_webhook(WebhookConfig(**{"group_wait_seconds": 0, "timeout_seconds": 0.3, **changes}), clock)

    return made


def test_a_message_has_the_shape_of_alertmanagers_webhook(server, make):
    sink = make(page_url="http://node-a:9477/")
    sink.write(shows(replace(ROOT, ranks=(0, 3)), CHILD))
    ((path, headers, message),) = server.requests
    assert (path, headers["Content-Type"]) == ("/hook/secret-path", "application/json")
    assert set(message) == {
        "version", "groupKey", "truncatedAlerts", "status", "receiver", "groupLabels", "commonLabels",
        "commonAnnotations", "externalURL", "alerts",
    }  # fmt: skip
    assert (message["version"], message["status"]) == ("4", "firing")
    assert message["groupLabels"] == {"run_id": "run-1", "node": "node-a", "root": "root"}
    assert message["commonLabels"]["run_id"] == "run-1"
    labels = [alert["labels"] for alert in message["alerts"]]
    assert [(one["rule"], one["layer"], one["rank"]) for one in labels] == [
        ("nan_reward", "reward", "0"), ("nan_reward", "reward", "3"), ("nan_loss", "policy", "1"),
    ]  # fmt: skip
    first = message["alerts"][0]
    assert first["startsAt"] == "2023-11-14T22:13:20.000Z"
    assert first["annotations"]["remedy"] == "look at the loss of rank 1"
    assert first["generatorURL"] == "http://node-a:9477/"
    assert len({alert["fingerprint"] for alert in message["alerts"]}) == 3


def test_the_end_is_told_once(server, make, clock):
    sink = make()
    sink.write(shows(ROOT))
    clock.advance(60)
    for at in (60, 61, 62):
        sink.write(shows(at=at))
    assert [message["status"] for message in server.bodies] == ["firing", "resolved"]
    assert server.bodies[1]["groupKey"] == server.bodies[0]["groupKey"]


def test_a_token_is_read_from_its_file_each_time(server, make, clock, tmp_path):
    token = tmp_path / "token"
    token.write_text("one\n")
    sink = make(token_file=str(token))
    sink.write(shows(ROOT))
    token.write_text("two\n")
    clock.advance(60)
    sink.write(shows(at=60))
    assert [headers["Authorization"] for _, headers, _ in server.requests] == ["Bearer one", "Bearer two"]


@pytest.mark.parametrize("mode", [500, 503, 429, "hang"])
def test_a_server_that_is_not_well_is_asked_again_later_and_gets_the_newest_state(server, make, clock, mode):
    server.mode = mode
    sink = make()
    began = time.monotonic()
    sink.write(shows(ROOT))
    assert time.monotonic() - began < 5
    assert str(mode) in sink.problem() or "no answer within 0.3 s" in sink.problem()
    assert "secret-path" not in sink.problem()
    tries = len(server.requests)
    for _ in range(50):
        sink.write(shows(ROOT))  # no try before its time
    assert (len(server.requests), sink.health()["failures_total"]) == (tries, 1)
    server.mode = 200
    server.requests.clear()
    clock.advance(1)
    sink.write(shows(ROOT, CHILD, at=1))
    assert [len(message["alerts"]) for message in server.bodies] == [2]
    assert sink.problem() == ""


def test_a_server_that_is_gone_is_asked_less_and_less_often(clock, monkeypatch):
    monkeypatch.setenv(URL, refusing_url())
    sink = make_webhook(WebhookConfig(group_wait_seconds=0), clock)
    for _ in range(1000):
        sink.write(shows(ROOT))
        clock.advance(1)
    assert 15 <= sink.health()["failures_total"] <= 25
    assert "refused" in sink.problem()
    began = time.monotonic()
    sink.close()
    assert time.monotonic() - began < 1
    assert sink.health()["lost_total[reason=closing]"] == 1


@pytest.mark.parametrize("mode", [400, 404, 302])
def test_a_message_that_will_never_be_taken_is_counted_and_not_repeated(server, make, clock, mode):
    server.mode, server.headers = mode, {"Location": server.url + "/elsewhere"}
    sink = make()
    for _ in range(3):
        sink.write(shows(ROOT))
        clock.advance(100)
    assert [path for path, _, _ in server.requests] == ["/hook/secret-path"]  # redirects are not followed
    assert sink.health()["lost_total[reason=rejected]"] == 1
    assert str(mode) in sink.problem()


def test_what_waits_is_told_when_it_closes(server, make):
    sink = make(group_wait_seconds=100)
    sink.write(shows(ROOT))
    assert server.requests == []
    sink.close()
    assert len(server.requests) == 1
    assert sink.health()["lost_total[reason=closing]"] == 0


def test_a_message_of_many_alerts_is_cut_and_says_so(server, make):
    sink = make()
    many = [finding(finding_id=str(number), root_id="0", ranks=tuple(range(8))) for number in range(20)]
    sink.write(shows(*many))
    (message,) = server.bodies
    assert (len(message["alerts"]), message["truncatedAlerts"]) == (50, 110)


def test_odd_text_makes_a_valid_message(server, make):
    sink = make()
    sink.write(shows(finding(message="\ud800\x00" + "x" * 10_000, subject="\udcff", value=float("nan"))))
    assert len(json.dumps(server.bodies[0])) < 10_000


def test_without_a_url_it_cannot_be_made_and_says_where_the_url_belongs(monkeypatch, clock, tmp_path):
    monkeypatch.delenv(URL, raising=False)
    with pytest.raises(ConfigError, match=r"\$GRPO_SENTINEL_WEBHOOK_URL"):
        make_webhook(WebhookConfig(), clock)
    with pytest.raises(ConfigError, match="missing"):
        make_webhook(WebhookConfig(url_file=str(tmp_path / "missing")), clock)


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://h/x", "http://[bad", "http://h:no/", "gopher:x", "http://a b/"]
)
def test_what_is_no_http_address_is_refused_without_quoting_it(url):
    with pytest.raises(DeliveryError) as error:
        post_json(url + "?key=hidden", [], timeout_seconds=1)
    assert "hidden" not in str(error.value)


def test_a_token_with_a_line_break_is_refused_without_quoting_it(server, monkeypatch):
    monkeypatch.setenv("BAD_TOKEN", "hidden\nX-Other: 1")
    with pytest.raises(DeliveryError) as error:
        post_json(server.url, [], timeout_seconds=1, token=Secret("BAD_TOKEN"))
    assert "hidden" not in str(error.value)
    assert error.value.final


def test_credentials_in_an_address_go_as_basic_auth_and_a_token_goes_before_them(server, monkeypatch):
    address = server.url.replace("http://", "http://ada:p%40ss@") + "/x"
    post_json(address, [], timeout_seconds=5)
    monkeypatch.setenv("A_TOKEN", "the-token")
    post_json(address, [], timeout_seconds=5, token=Secret("A_TOKEN"))
    assert [headers["Authorization"] for _, headers, _ in server.requests] == [
        "Basic " + base64.b64encode(b"ada:p@ss").decode(),
        "Bearer the-token",
    ]
    assert {path for path, _, _ in server.requests} == {"/x"}


def test_a_batch_without_findings_costs_no_request(server, make):
    make().write(batch())
    assert server.requests == []
