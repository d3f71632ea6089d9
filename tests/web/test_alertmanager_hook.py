"""An alert of Alertmanager's asks once for what the configuration says, for a run watched here, and for nothing else."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading

import pytest
import yaml
from sentinel_batches import RUN, WALL_NS, status

from grpo_sentinel.config import Config, load_config
from grpo_sentinel.daemon import parts
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.records import Action, HaltState
from grpo_sentinel.views import HaltStatus, Snapshot
from grpo_sentinel.web.app import build_app
from grpo_sentinel.web.server import WebServer
from grpo_sentinel.web.state import AlertActions, WebState

TOKEN = "t" * 24
LATER = "2023-11-14T22:14:00.123456789Z"  # WALL_NS is 22:13:20 of that day
ALERT = {
    "status": "firing", "startsAt": LATER, "labels": {"alertname": "GrpoSentinelRewardCollapsed", "run_id": RUN},
    "annotations": {"summary": "rewards have collapsed on 50% of the ranks"},
}  # fmt: skip


class Hook:
    def __init__(self):
        self.snapshots = {RUN: Snapshot(run_id=RUN, ranks={0: status()})}
        self.asked = []
        self.refusal = ""
        self.server = None

    def act(self, run_id, action, reason, who):
        if self.refusal:
            raise SentinelError(self.refusal)
        self.asked.append((run_id, action, reason, who))
        return len(self.asked)

    def serve(self, text="on_alerts: {GrpoSentinelRewardCollapsed: checkpoint-and-halt}", **changes):
        config = Config.model_validate({"halting": yaml.safe_load(text)})
        given = {
            "snapshots": lambda: self.snapshots, "problems": list, "act": lambda *_: 0, "act_token": TOKEN,
            "alerts": parts.alerts(config, self.act),
        }  # fmt: skip
        self.server = WebServer(build_app(WebState(**{**given, **changes})), "127.0.0.1", 0)
        self.server.start()
        return self

    def post(self, *alerts, token=TOKEN, body=None, **headers):
        data = json.dumps({"version": "4", "status": "firing", "alerts": alerts}).encode() if body is None else body
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=20)
        with contextlib.closing(connection):
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}", **headers}
            connection.request("POST", "/api/alertmanager", data, headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def result(self, *alerts):
        code, body = self.post(*alerts)
        return code, [(one["result"], one["detail"]) for one in body["alerts"]]


@pytest.fixture
def hook():
    made = Hook()
    yield made
    assert made.server.stop(10)


def changed(**changes):
    return {**ALERT, **changes}


def labelled(**labels):
    return {**ALERT, "labels": {**ALERT["labels"], **labels}}


def test_an_alert_that_is_listed_halts_the_run_that_it_names_once_however_often_it_comes(hook):
    hook.serve()
    assert hook.result(ALERT) == (200, [("asked", "request 1: checkpoint-and-halt")])
    assert hook.result(ALERT, ALERT) == (200, [("ignored", "it has acted already")] * 2)
    reason = "alert GrpoSentinelRewardCollapsed: rewards have collapsed on 50% of the ranks"
    who = "alert GrpoSentinelRewardCollapsed"
    assert hook.asked == [(RUN, Action.CHECKPOINT_AND_HALT, reason, who)]
    assert hook.result(changed(startsAt="2023-11-14T22:20:00Z"))[1][0][0] == "asked"  # it fires anew


@pytest.mark.parametrize(
    ("alert", "why"),
    [
        (changed(status="resolved"), "it does not fire"),
        (labelled(alertname="Other"), "its name is not in halting.on_alerts"),
        (labelled(run_id="elsewhere"), "its run is not watched here"),
        (changed(labels={"alertname": "GrpoSentinelRewardCollapsed"}), "its run is not watched here"),
        (changed(labels=["run_id"]), "its name is not in halting.on_alerts"),
        ({}, "it does not fire"),
        (changed(startsAt="2023-11-14T22:13:00Z"), "it began before the run's processes did"),
        (changed(startsAt="2023-11-15T00:12:00+02:00"), "it began before the run's processes did"),
    ],
)
def test_any_other_alert_asks_for_nothing_and_is_told_why(hook, alert, why):
    hook.serve()
    assert hook.result(alert) == (200, [("ignored", why)])
    assert hook.asked == []


def test_labels_that_the_configuration_asks_for_must_be_there(hook):
    hook.serve("{on_alerts: {GrpoSentinelRewardCollapsed: checkpoint}, on_alert_labels: {team: rl}}")
    assert hook.result(labelled(team="other"))[1][0][0] == "ignored"
    assert hook.result(ALERT)[1] == [("ignored", "its label team is not what halting.on_alert_labels asks for")]
    assert hook.result(labelled(team="rl")) == (200, [("asked", "request 1: checkpoint")])


@pytest.mark.parametrize(
    ("halt", "acts"),
    [
        (HaltStatus(request_id=1, state=HaltState.REQUESTED, action=Action.CHECKPOINT_AND_HALT), False),
        (HaltStatus(request_id=1, state=HaltState.DONE, action=Action.CHECKPOINT_AND_HALT), False),
        (HaltStatus(request_id=1, state=HaltState.VOTED, action=Action.CHECKPOINT), True),  # a stronger wish waits
        (HaltStatus(request_id=1, state=HaltState.DONE, action=Action.CHECKPOINT), True),
        (HaltStatus(request_id=1, state=HaltState.FAILED, action=Action.CHECKPOINT_AND_HALT), True),
    ],
)
def test_a_run_that_was_asked_already_is_not_asked_again(hook, halt, acts):
    hook.snapshots[RUN] = Snapshot(run_id=RUN, ranks={0: status()}, halt=halt)
    hook.serve()
    assert hook.result(ALERT)[1][0][0] == ("asked" if acts else "ignored")


def test_a_request_that_could_not_be_made_is_sent_again_by_alertmanager_and_then_acts(hook):
    hook.serve()
    hook.refusal = "the daemon did not take the request within 5 s; try again"
    assert hook.result(ALERT) == (503, [("failed", hook.refusal)])
    hook.refusal = ""
    assert hook.result(ALERT)[1][0][0] == "asked"


@pytest.mark.parametrize("off", ["dry_run: true", "enabled: false"])
def test_a_dry_run_only_says_what_it_would_ask(hook, off):
    hook.serve(f"{{on_alerts: {{GrpoSentinelRewardCollapsed: checkpoint}}, {off}}}")
    assert hook.result(ALERT)[1][0][0] == "dry run"
    assert hook.asked == []


def test_two_messages_at_the_same_time_ask_once(hook):
    hook.serve()
    threads = [threading.Thread(target=hook.post, args=(ALERT,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(hook.asked) == 1


@pytest.mark.parametrize(
    ("headers", "token", "code"),
    [
        ({}, "wrong", 401),
        ({}, "", 401),
        ({"Host": "evil.example"}, TOKEN, 403),
        ({"Origin": "http://evil.example"}, TOKEN, 403),
    ],
)
def test_without_the_token_or_from_elsewhere_nothing_is_asked(hook, headers, token, code):
    hook.serve()
    assert hook.post(ALERT, token=token, **headers)[0] == code
    assert hook.asked == []


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b'{"alerts": 3}', 400),
        (b'{"alerts": [3]}', 400),
        (b"[" * 100_000, 400),
        (b"x" * 300_000, 413),
    ],
)
def test_a_body_that_is_none_of_alertmanagers_is_refused_in_a_sentence(hook, body, code):
    hook.serve()
    status_code, answer = hook.post(body=body)
    assert status_code == code
    assert answer["error"]


def test_where_no_alert_is_listed_none_is_taken(hook):
    hook.serve("{}")
    assert hook.post(ALERT)[0] == 404


def test_a_message_of_very_many_alerts_is_looked_at_in_part(hook):
    hook.serve(alerts=AlertActions(by_name={}, labels={}, act=hook.act))
    assert hook.post(ALERT)[0] == 404
    hook.server.stop(10)
    hook.serve()
    code, body = hook.post(*[labelled(alertname="Other")] * 1000)
    assert (code, len(body["alerts"])) == (200, 200)


def test_the_token_comes_from_its_file_and_a_bad_file_is_said_and_never_an_open_door(tmp_path):
    said = []
    path = tmp_path / "token"
    config = Config.model_validate({"http": {"act_token_file": str(path)}})
    assert len(parts.act_token(config, lambda *text: said.append(text))) >= 24
    path.write_text("short\n")
    assert len(parts.act_token(config, lambda *text: said.append(text))) >= 24
    assert len(said) == 2
    path.write_text(f"  {TOKEN}\n")
    assert parts.act_token(config, lambda *text: said.append(text)) == TOKEN
    assert len(said) == 2
    assert "short" not in str(said)


def test_an_action_that_no_alert_may_ask_for_is_refused_with_the_line(tmp_path):
    path = tmp_path / "sentinel.yaml"
    path.write_text("halting:\n  on_alerts:\n    A: halt-now\n")
    with pytest.raises(SentinelError, match=r"line 3: halting\.on_alerts\.A"):
        load_config(path)


def test_the_clock_of_the_batches_is_the_one_the_times_above_were_chosen_for():
    assert WALL_NS == 1_700_000_000 * 10**9


def test_the_daemon_serves_the_names_the_token_and_the_alerts_of_its_configuration(tmp_path):
    from grpo_sentinel.daemon.daemon import Daemon

    (tmp_path / "token").write_text(TOKEN)
    body = {
        "state_dir": str(tmp_path / "state"), "collectors": {"nvml": {"enabled": False}, "host": {"enabled": False}},
        "http": {"allowed_hosts": ["node-1"], "act_token_file": str(tmp_path / "token")},
        "halting": {"on_alerts": {"A": "checkpoint"}, "on_alert_labels": {"team": "rl"}},
    }  # fmt: skip
    daemon = Daemon(Config.model_validate(body), roots=[tmp_path])
    try:
        state = daemon._web_state()
        assert (state.hosts, state.act_token) == (("node-1",), TOKEN)
        assert (dict(state.alerts.by_name), dict(state.alerts.labels)) == ({"A": Action.CHECKPOINT}, {"team": "rl"})
    finally:
        daemon.close()
