"""`grpo-sentinel notify test` says of every channel whether a message got through."""

from __future__ import annotations

import pytest
from stand_in import refusing_url, serving

from grpo_sentinel.cli import main


@pytest.fixture
def server():
    with serving() as made:
        yield made


@pytest.fixture
def run(tmp_path, capsys):
    def made(text, *more):
        config = tmp_path / "sentinel.yaml"
        config.write_text(text)
        code = main(["notify", "test", "--config", str(config), *more])
        done = capsys.readouterr()
        return code, done.out + done.err

    return made


def test_every_channel_that_is_on_gets_one_message(server, run, monkeypatch):
    monkeypatch.setenv("GRPO_SENTINEL_WEBHOOK_URL", server.url + "/hook")
    text = f"sinks: {{alertmanager: {{enabled: true, url: '{server.url}'}}, webhook: {{enabled: true}}}}"
    assert run(text) == (0, "alertmanager: sent\nwebhook: sent\n")
    assert [path for path, _, _ in server.requests] == ["/api/v2/alerts", "/hook"]
    assert "This is a test of grpo-sentinel: nothing is wrong." in str(server.bodies[1])


def test_a_channel_that_does_not_take_it_is_named_and_makes_the_exit_code_1(server, run, monkeypatch):
    monkeypatch.setenv("GRPO_SENTINEL_WEBHOOK_URL", server.url + "/secret")
    server.mode = 403
    text = f"sinks: {{alertmanager: {{enabled: true, url: '{refusing_url()}'}}, webhook: {{enabled: true}}}}"
    code, said = run(text)
    assert code == 1
    assert "alertmanager: http://127.0.0.1" in said
    assert "refused" in said
    assert "webhook: http://127.0.0.1" in said
    assert "answered 403" in said
    assert "secret" not in said


def test_a_message_milder_than_a_channel_wants_is_not_called_sent(server, run):
    text = f"sinks: {{alertmanager: {{enabled: true, url: '{server.url}'}}}}"
    assert run(text, "--severity", "note") == (1, "alertmanager: not sent: it wants more than note\n")


def test_without_a_channel_it_says_what_to_switch_on(run):
    code, said = run("{}")
    assert code == 2
    assert "sinks.alertmanager" in said


def test_apprise_channels_are_tried_one_by_one(server, run, monkeypatch):
    pytest.importorskip("apprise")
    urls = [server.url.replace("http", "json"), refusing_url().replace("http", "json") + "/hidden"]
    monkeypatch.setenv("GRPO_SENTINEL_NOTIFY_URLS", " ".join(urls))
    code, said = run("sinks: {notify: {enabled: true, quiet_hours: '00:00-23:59'}}")
    assert (code, said) == (
        1,
        "json (channel 1): sent\njson (channel 2): json (channel 2): the message was not taken\n",
    )
