"""Messages as they arrive: a real mail server, a real web server, quiet hours, and channels that give way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from smtp_receiver import taking_mail
from stand_in import serving
from test_notify_groups import CHILD, ROOT, shows

from grpo_sentinel.clock import ManualClock
from grpo_sentinel.config import NotifyConfig
from grpo_sentinel.records import Severity
from grpo_sentinel.sinks import notify_process
from grpo_sentinel.sinks.notify import open_notify

pytest.importorskip("apprise")
ADDRESSES = (
    "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#alerts", "discord://4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js",
    "mailtos://user:pass@example.org", "pagerduty://0123456789abcdef0123456789abcdef@0123456789abcdef0123456789abcdef",
    "tgram://123456789:AAEabcdefghijklmnopqrstuvwxyz012345/12345678/", "ntfy://topic", "opsgenie://a-secret-api-key/",
    "pover://ujzwAUTHaaaaaaaaaaaaaaaaaaaaaaaa@azwAUTHbbbbbbbbbbbbbbbbbbbbbbbb",
    "workflows://prod.logic.example:443/643e69f8/BGlOtl5ZLhn4dKm5",
)  # fmt: skip


@pytest.fixture
def mails():
    with taking_mail() as made:
        yield made


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def make(tmp_path, clock, monkeypatch):
    """Make the sink with one file of addresses for each route."""
    monkeypatch.delenv("GRPO_SENTINEL_NOTIFY_URLS", raising=False)

    def made(routes, **changes):
        sections = {}
        for name, urls in routes.items():
            (tmp_path / name).write_text("\n".join(urls))
            sections[name] = {"urls_file": str(tmp_path / name)}
        given = {"group_wait_seconds": 0, "timeout_seconds": 1, **sections, **changes}
        sinks.append(open_notify(NotifyConfig.model_validate(given), clock, lambda: "http://127.0.0.1:9477"))
        return sinks[-1]

    sinks = []
    yield made
    for sink in sinks:
        sink._process.close()


def mail(port, to="oncall@example.org"):
    return f"mailto://127.0.0.1:{port}?from=sentinel@example.org&to={to}&mode=insecure&format=text"


def test_a_mail_names_run_layer_rank_and_step_says_what_to_do_and_where_to_look(mails, make):
    make({"note": [mail(mails.port)]}).write(shows(ROOT, CHILD))
    ((recipients, message),) = mails.taken
    assert recipients == ["oncall@example.org"]
    assert message["subject"] == "[critical] run-1: nan_reward (reward) at step 10"
    text = message.get_body().get_content()
    for part in (
        "layer reward, rank 1, since step 10, node node-a", "What to do:", "- look at the loss of rank 1",
        "nan_loss (policy), layer policy, rank 1, since step 11",
        "http://127.0.0.1:9477 on node-a; from elsewhere: ssh -L 9477:127.0.0.1:9477 node-a",
    ):  # fmt: skip
        assert part in text


@pytest.mark.slow  # apprise leaves five seconds between two mails
def test_the_end_is_mailed_once_and_without_a_remedy(mails, make, clock):
    sink = make({"note": [mail(mails.port)]}, group_interval_seconds=0)
    sink.write(shows(ROOT))
    clock.advance(60)
    sink.write(shows(at=60))
    sink.write(shows(at=120))
    subjects = [message["subject"] for _, message in mails.taken]
    assert subjects == [
        "[critical] run-1: nan_reward (reward) at step 10", "[resolved] run-1: nan_reward (reward) at step 10",
    ]  # fmt: skip
    assert "What to do" not in mails.taken[1][1].get_body().get_content()


def test_in_quiet_hours_the_warning_waits_and_the_critical_one_is_sent(mails, make, clock):
    sink = make({"note": [mail(mails.port)]}, quiet_hours="00:00-23:59")
    sink.write(shows(replace(ROOT, severity=Severity.WARNING, finding_id="mild"), ROOT))
    assert [message["subject"].partition("]")[0] for _, message in mails.taken] == ["[critical"]


def test_mail_goes_to_whom_the_severity_concerns(mails, make):
    routes = {"warning": [mail(mails.port, "team@example.org")], "critical": [mail(mails.port, "oncall@example.org")]}
    for severity, told in ((Severity.WARNING, ["team"]), (Severity.CRITICAL, ["oncall", "team"])):
        mails.taken.clear()
        make(routes).write(shows(replace(ROOT, severity=severity)))
        assert sorted(to.partition("@")[0] for (to,), _ in mails.taken) == told


@pytest.mark.parametrize("mode", ["refuse", "hang"])
def test_a_mail_server_in_trouble_is_counted_and_the_other_channel_gets_its_message(mails, make, mode):
    mails.mode = mode
    with serving() as server:
        sink = make({"note": [mail(mails.port), server.url.replace("http", "json")]}, timeout_seconds=0.5)
        sink.write(shows(ROOT))
        assert len(server.requests) == 1
    assert sink.problem() == "mailto (channel 1): the message was not taken"
    assert sink.health()["failures_total"] == 1


def test_the_addresses_of_the_usual_services_are_taken(make):
    sink = make({"note": ADDRESSES})
    assert len(sink.channels) == len(ADDRESSES)
    assert sink.problem() == ""


def test_apprise_lives_in_a_process_of_its_own_that_leaves_when_there_is_nothing_to_say(mails, make, monkeypatch):
    sink = make({"note": [mail(mails.port)]})
    first = sink._process._process
    sink.tick()
    assert first.poll() is None
    assert b"example.org" not in Path(f"/proc/{first.pid}/cmdline").read_bytes(), "addresses are no arguments"
    monkeypatch.setattr(notify_process, "IDLE_SECONDS", 0)
    sink.tick()
    assert first.wait(10) is not None
    sink.write(shows(ROOT))
    assert len(mails.taken) == 1, "it is started again for a message"


@pytest.mark.parametrize("how", ["dies", "hangs"])
def test_a_process_that_dies_or_hangs_in_a_message_is_a_failed_try_and_the_next_one_works(mails, make, clock, how):
    sink = make({"note": [mail(mails.port)]}, timeout_seconds=0.1)
    process = sink._process._process
    if how == "dies":
        process.kill()
        process.wait(10)
        sink.write(shows(ROOT))  # found dead before the message: started again at once
        assert len(mails.taken) == 1
        return
    sink._process._patience = 0.3
    os.kill(process.pid, signal.SIGSTOP)
    sink.write(shows(ROOT))
    assert sink.problem() == "mailto (channel 1): no answer within 0.3 s"
    assert process.poll() is not None, "it was ended"
    sink._process._patience = 20
    clock.advance(5)
    sink.tick()
    assert (len(mails.taken), sink.problem()) == (1, "")


def test_it_does_not_outlive_a_parent_that_was_killed(mails, tmp_path):
    (tmp_path / "urls").write_text(mail(mails.port))
    program = (
        "import sys, time\n"
        "from grpo_sentinel.clock import SystemClock\n"
        "from grpo_sentinel.config import NotifyConfig\n"
        "from grpo_sentinel.sinks.notify import open_notify\n"
        f"sink = open_notify(NotifyConfig(note={{'urls_file': {str(tmp_path / 'urls')!r}}}), SystemClock())\n"
        "print(sink._process._process.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        child.wait(20)
