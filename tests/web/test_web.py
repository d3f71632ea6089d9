"""Page and API over real HTTP: what they answer, whom they refuse, and that they always end."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import re
import socket
import subprocess
import sys
import threading
import time
from importlib import resources
from pathlib import Path

import pytest
from sentinel_batches import RUN, WALL_NS, batch, event, finding, record, sample, status

from grpo_sentinel.clock import ManualClock
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.history import HistoryReader, HistoryStore
from grpo_sentinel.records import Action, Liveness
from grpo_sentinel.sinks import MetricsRenderer
from grpo_sentinel.views import Snapshot
from grpo_sentinel.web import WebServer, WebState, build_app
from grpo_sentinel.web import server as server_module
from grpo_sentinel.web import stream as stream_module

ACT, READ = "act-token-1", "read-token-1"
EVIL = "<img src=x onerror=alert(1)>\"'</script>"


class World:
    """A sidecar's worth of state that a test changes by hand, and a client for it."""

    def __init__(self, tmp_path: Path) -> None:
        self.snapshots = {RUN: Snapshot(run_id=RUN, node="node-a", wall_ns=WALL_NS, ranks={0: status()})}
        self.problems: list[str] = []
        self.asked: list[tuple[str, Action, str]] = []
        self.refusal = ""
        self.history_file = tmp_path / "history.sqlite"
        self.server: WebServer | None = None

    def act(self, run_id: str, action: Action, reason: str) -> int:
        if self.refusal:
            raise SentinelError(self.refusal)
        self.asked.append((run_id, action, reason))
        return 7

    def serve(self, **changes) -> World:
        renderer = MetricsRenderer(clock=ManualClock(wall_ns=WALL_NS))
        given = {
            "snapshots": lambda: self.snapshots,
            "problems": lambda: self.problems,
            "act": self.act,
            "act_token": ACT,
            "metrics": lambda accept: renderer.render(accept, self.snapshots.values()),
            "history": lambda: HistoryReader(self.history_file),
        }
        self.server = WebServer(build_app(WebState(**{**given, **changes})), "127.0.0.1", 0)
        self.server.start()
        return self

    def ask(self, path: str, method: str = "GET", body: bytes | None = None, **headers: str):
        """Status, headers and body of one request; header names are written with underscores."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=20)
        with contextlib.closing(connection):
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()

    def json(self, path: str, **headers: str):
        code, _, body = self.ask(path, **headers)
        return code, json.loads(body, parse_constant=lambda text: pytest.fail(f"not strict JSON: {text}"))

    def post(self, body: object, token: str | None = ACT, **headers: str):
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        code, _, answer = self.ask("/api/v1/requests", "POST", data, **headers)
        return code, json.loads(answer)

    def store(self, *batches) -> None:
        store = HistoryStore(self.history_file, clock=ManualClock())
        for one in batches:
            store.write(one)
        store.close()


@pytest.fixture
def world(tmp_path):
    one = World(tmp_path)
    yield one
    if one.server is not None:
        assert one.server.stop(10)


# ---- what it answers


def test_metrics_are_served_and_negotiated(world):
    world.serve()
    code, headers, body = world.ask("/metrics")
    assert (code, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert b"grpo_sentinel_policy_loss{" in body
    code, headers, body = world.ask("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert headers["content-type"].startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


def test_liveness_fails_only_for_a_loop_that_stands_still_and_readiness_for_every_part_that_is_off(world):
    stuck = ""
    world.serve(stuck=lambda: stuck)
    well = {"live": True, "healthy": True, "problems": []}
    assert [world.json(path) for path in ("/livez", "/healthz", "/readyz")] == [(200, well)] * 3
    world.problems = ["the sink webhook is degraded: Connection refused"]
    off = {"live": True, "healthy": False, "problems": world.problems}
    assert [world.json(path) for path in ("/livez", "/healthz", "/readyz")] == [(200, off), (200, off), (503, off)]
    stuck = "the loop has not turned for 11 s"
    world.problems = [stuck]
    still = {"live": False, "healthy": False, "problems": [stuck]}
    assert [world.json(path) for path in ("/livez", "/healthz", "/readyz")] == [(503, still)] * 3


def test_status_is_strict_json_with_values_that_are_not_finite_as_text(world):
    values = {"policy.loss": math.nan, "reward.max": math.inf, "reward.min": -math.inf, "data.tokens": 3.0}
    world.snapshots[RUN] = Snapshot(run_id=RUN, ranks={0: status(values=values)}, findings=(finding(value=math.nan),))
    world.serve()
    code, body = world.json("/api/v1/status")
    assert code == 200
    assert body["ranks"]["0"]["values"] == {
        "policy.loss": "NaN", "reward.max": "Infinity", "reward.min": "-Infinity", "data.tokens": 3.0
    }  # fmt: skip
    assert body["findings"][0]["value"] == "NaN"
    assert body["runs"] == [RUN]


def test_another_run_is_chosen_by_name_and_an_unknown_one_is_404(world):
    world.snapshots["other"] = Snapshot(run_id="other")
    world.serve()
    assert world.json("/api/v1/status?run=other")[1]["run_id"] == "other"
    code, body = world.json("/api/v1/status?run=nothing")
    assert code == 404
    assert "'nothing' is not watched here" in body["error"]


def test_layers_say_what_is_wrong_what_is_well_and_what_is_not_seen(world):
    world.snapshots[RUN] = Snapshot(run_id=RUN, ranks={0: status()}, findings=(finding(),))
    world.serve()
    layers = {one["layer"]: one for one in world.json("/api/v1/status")[1]["layers"]}
    assert layers["gradient"]["state"] == "critical"
    assert layers["gradient"]["root"] == "a gradient is not finite"
    assert (layers["policy"]["state"], layers["reward"]["state"]) == ("ok", "unknown")


def test_findings_are_those_that_fire_or_every_change(world):
    world.store(batch(findings=(finding(),)))
    world.snapshots[RUN] = Snapshot(run_id=RUN, abstaining={"kl": "no kl"})
    world.serve()
    assert world.json("/api/v1/findings")[1] == {"findings": [], "abstaining": {"kl": "no kl"}}
    (one,) = world.json("/api/v1/findings?all=1")[1]["findings"]
    assert (one["rule"], one["state"]) == ("nan_gradient", "firing")


def test_series_signals_runs_events_and_requests_come_from_the_history(world):
    world.store(batch(*(record(s) for s in range(1, 201))), batch(events=(event(1), event(2, "skip"))))
    world.serve()
    code, body = world.json("/api/v1/series?signal=policy.loss&rank=0&max_points=50")
    assert code == 200
    assert 10 < len(body["steps"]) <= 50
    assert max(body["high"]) == 200
    several = world.json("/api/v1/series?signal=policy.loss&ranks=0,7&max_points=50")[1]["series"]
    assert several[0] == body
    assert (several[1]["rank"], several[1]["steps"]) == (7, [])
    signals = world.json("/api/v1/signals")[1]
    assert signals["signals"] == ["policy.loss"]
    assert "local loss of the step" in signals["about"]["policy.loss"]["help"]
    assert [run["run_id"] for run in world.json("/api/v1/runs")[1]["runs"]] == [RUN]
    assert [one["kind"] for one in world.json("/api/v1/events?kind=skip")[1]["events"]] == ["skip"]
    assert world.json(f"/api/v1/history?run={RUN}")[1]["latest"]["ranks"]["0"]["values"] == {"policy.loss": 200.0}
    assert world.json("/api/v1/history?run=nothing")[0] == 404


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        ("/api/v1/series", 400, "signal is missing"),
        ("/api/v1/series?signal=x&rank=one", 400, "rank: expected a whole number, got 'one'"),
        ("/api/v1/series?signal=x&ranks=0,one", 400, "ranks: expected a whole number, got 'one'"),
        ("/api/v1/series?signal=x&ranks=" + ",".join("0" * 17), 400, "ranks: expected at most 16, got 17"),
        ("/api/v1/series?signal=x&max_points=0", 400, "max_points: expected 1 to 5000, got 0"),
        ("/api/v1/series?signal=x&rank=99999999999999999999", 400, "rank: expected"),
        ("/api/v1/runs", 503, "there is no history at"),
        ("/api/v2/status", 404, "there is nothing at GET /api/v2/status"),
        ("/static/..%2fapp.py", 404, "there is"),
        ("/static/nothing.js", 404, "there is no file 'nothing.js'"),
    ],
)
def test_a_bad_request_gets_one_sentence(world, path, code, words):
    world.serve()
    got, body = world.json(path)
    assert got == code
    assert words in body["error"]


def test_what_is_switched_off_is_said(world):
    world.serve(metrics=None, history=None)
    assert world.json("/metrics")[0] == 404
    code, body = world.json("/api/v1/runs")
    assert code == 503
    assert "switched off" in body["error"]


def test_an_error_inside_is_a_sentence_without_a_trace(world):
    world.serve(snapshots=lambda: 1 / 0)
    code, body = world.json("/api/v1/status")
    assert code == 500
    assert "division" not in json.dumps(body)


# ---- acting


def test_a_request_reaches_the_run_with_its_reason(world):
    world.serve()
    assert world.post({"action": "checkpoint-and-halt", "reason": "seen enough"}) == (
        202,
        {"request_id": 7, "run_id": RUN, "action": "checkpoint_and_halt"},
    )
    assert world.asked == [(RUN, Action.CHECKPOINT_AND_HALT, "seen enough")]


@pytest.mark.parametrize("token", [None, "", "wrong", ACT + "x", READ])
def test_without_the_act_token_nothing_is_asked(world, token):
    world.serve(read_token=READ)
    code, body = world.post({"action": "halt-now"}, token)
    assert code == 401
    assert "act token" in body["error"]
    assert world.asked == []


def test_tokens_are_compared_in_constant_time(monkeypatch, world):
    seen = []
    monkeypatch.setattr("grpo_sentinel.web.guard.hmac.compare_digest", lambda a, b: seen.append((a, b)) or a == b)
    world.serve()
    world.post({"action": "halt-now"}, "guess")
    assert seen == [(b"guess", ACT.encode())]


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ({"action": "explode"}, 400, "action: expected one of note, alert"),
        ({"action": 3}, 400, "action: expected text, got 3"),
        ({}, 400, "action: expected one of"),
        ({"action": "checkpoint", "force": True}, 400, "unknown key 'force'"),
        (b"not json", 400, "not JSON"),
        (b"[" * 5000, 400, "not JSON"),
        ([1], 400, "no object"),
        (b"x" * 20_000, 413, "longer than"),
    ],
)
def test_a_malformed_request_is_refused_in_one_sentence(world, body, code, words):
    world.serve()
    got, answer = world.post(body)
    assert got == code
    assert words in answer["error"]
    assert world.asked == []


def test_a_refusal_of_the_daemon_is_passed_on(world):
    world.refusal = "halting is off: rank 1 has no core"
    world.serve()
    assert world.post({"action": "checkpoint"}) == (409, {"error": world.refusal})


# ---- who may ask


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:9477", "127.0.0.1.evil.example", "", "a@[", "localhost.evil"]
)
def test_a_foreign_host_name_is_refused(world, host):
    world.serve()
    for path in ("/", "/metrics", "/healthz", "/api/v1/status"):
        assert world.ask(path, Host=host)[0] in (400, 403)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:9477", "127.0.0.1", "[::1]:9477", "10.1.2.3:80", "sidecar:9477"]
)
def test_localhost_addresses_and_configured_names_are_served(world, host):
    world.serve(hosts=("sidecar",))
    assert world.ask("/api/v1/status", Host=host)[0] == 200


def test_another_pages_origin_is_refused_and_the_own_is_taken(world):
    world.serve()
    own = f"http://127.0.0.1:{world.server.port}"
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", "http://localhost"):
        assert world.ask("/api/v1/status", Origin=origin)[0] == 403
        assert world.post({"action": "halt-now"}, Origin=origin)[0] == 403
    assert world.asked == []
    assert world.post({"action": "checkpoint"}, Origin=own)[0] == 202


def test_with_a_read_token_only_metrics_health_and_the_empty_page_are_open(world):
    world.store(batch(record(1), events=(event(1, "sample", {"text": "secret prompt"}),)))
    world.serve(read_token=READ)
    for path in ("/", "/static/uplot.js", "/metrics", "/healthz", "/livez", "/readyz"):
        assert world.ask(path)[0] == 200
    closed = ("status", "findings", "series?signal=policy.loss", "signals", "runs", "events", "history", "stream")
    for path in closed:
        code, headers, body = world.ask(f"/api/v1/{path}")
        assert (code, headers["www-authenticate"]) == (401, "Bearer"), path
        assert b"secret" not in body
        assert world.ask(f"/api/v1/{path}", Authorization="Bearer wrong")[0] == 401
    for token in (READ, ACT):
        assert world.json("/api/v1/status", Authorization=f"Bearer {token}")[0] == 200
    assert b"secret prompt" in world.ask("/api/v1/events", Authorization=f"Bearer {READ}")[2]


def test_text_of_samples_is_never_shown_without_a_read_token(world):
    world.store(batch(record(1), events=(event(1, "sample", {"text": "secret prompt"}), event(2))))
    world.serve()
    code, body = world.json("/api/v1/events")
    assert code == 200
    assert [one["kind"] for one in body["events"]] == ["note"]


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_other_methods_are_refused(world, method):
    world.serve()
    assert world.ask("/api/v1/status", method)[0] == 405


def test_no_answer_holds_a_token(world):
    world.serve(read_token=READ)
    seen = b""
    for path in ("/", "/metrics", "/healthz", "/api/v1/status", "/api/v1/findings", "/api/v1/nothing"):
        _, headers, body = world.ask(path, Authorization=f"Bearer {READ}")
        seen += body + str(headers).encode()
    assert ACT.encode() not in seen
    assert READ.encode() not in seen


# ---- the page


def test_every_answer_carries_the_security_headers(world):
    world.serve()
    for path in ("/", "/static/uplot.js", "/metrics", "/api/v1/status", "/nothing"):
        _, headers, _ = world.ask(path)
        assert headers["content-security-policy"].startswith("default-src 'self'")
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers


def test_the_page_asks_nobody_else_and_holds_no_inline_code(world):
    world.serve()
    _, headers, body = world.ask("/")
    page = body.decode()
    assert headers["content-type"] == "text/html; charset=utf-8"
    links = re.findall(r'(?:src|href)="([^"#][^"]*)"', page)
    assert links
    for link in links:
        assert link.startswith("/static/"), link
        assert world.ask(link)[0] == 200
    assert not re.search(r"<script(?![^>]*src=)|<style| on\w+=| style=|javascript:", page)


def test_what_the_trainer_says_can_only_become_text_on_the_page():
    files = [
        file for file in resources.files("grpo_sentinel.web").joinpath("static").iterdir() if file.name[-3:] == ".js"
    ]
    assert files
    for file in files:
        code = file.read_text()
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc", code
        )


def test_markup_from_the_trainer_stays_json_text_and_no_browser_takes_it_for_a_page(world):
    evil = finding(message=EVIL, subject=EVIL, rule=EVIL)
    ranks = {0: status(values={f"reward.func_mean[{EVIL}]": 1.0}, closed_detail=EVIL)}
    world.snapshots = {EVIL: Snapshot(run_id=EVIL, node=EVIL, ranks=ranks, findings=(evil,), notes=(EVIL,))}
    world.serve()
    for path in ("/api/v1/status", "/api/v1/findings", "/metrics"):
        code, headers, _ = world.ask(path)
        assert code == 200
        assert headers["content-type"].split(";")[0] in ("application/json", "text/plain")
        assert headers["x-content-type-options"] == "nosniff"
    assert world.json("/api/v1/status")[1]["findings"][0]["message"] == EVIL
    code, headers, _ = world.ask("/api/v1/%3Cimg%20src=x%20onerror=alert(1)%3E")
    assert (code, headers["content-type"]) == (404, "application/json")


def test_the_vendored_chart_library_brings_its_licence():
    static = resources.files("grpo_sentinel.web").joinpath("static")
    assert "MIT License" in static.joinpath("uplot.LICENSE.txt").read_text()
    assert "uPlot (v1.6.32)" in static.joinpath("uplot.js").read_text()[:80]


# ---- live


class Listener:
    """Reads a stream of server-sent events."""

    def __init__(self, world: World, path: str = "/api/v1/stream", **headers: str) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", world.server.port, timeout=20)
        self.connection.request("GET", path, headers=headers)
        self.answer = self.connection.getresponse()

    def next(self) -> dict:
        while True:
            line = self.answer.readline()
            assert line, "the stream has ended"
            if line.startswith(b"data: "):
                return json.loads(line[6:])

    def close(self) -> None:
        self.answer.close()
        self.connection.close()


def test_a_stream_sends_the_state_at_once_and_every_change_after(world):
    world.serve()
    listener = Listener(world)
    assert listener.answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert listener.next()["findings"] == []
    world.snapshots = {
        RUN: Snapshot(run_id=RUN, ranks={0: status(liveness=Liveness.DEAD)}, findings=(finding(value=math.inf),))
    }
    news = listener.next()
    assert news["findings"][0]["value"] == "Infinity"
    assert news["ranks"][0]["liveness"] == "dead"
    listener.close()


def test_readers_of_the_stream_are_bounded_and_make_room_when_they_go(world, monkeypatch):
    monkeypatch.setattr(stream_module, "MAX_READERS", 2)
    world.serve()
    listeners = [Listener(world) for _ in range(2)]
    for one in listeners:
        one.next()
    code, body = world.json("/api/v1/stream")
    assert code == 503
    assert "close one of their pages" in body["error"]
    listeners[0].close()
    limit = time.monotonic() + 20
    while True:  # the server sees the closed connection when it next looks
        third = Listener(world)
        if third.answer.status == 200:
            break
        third.close()
        assert time.monotonic() < limit
    third.next()
    for one in (third, listeners[1]):
        one.close()


def test_a_reader_that_takes_nothing_is_let_go_and_the_others_go_on(world, monkeypatch):
    monkeypatch.setattr(stream_module, "SEND_SECONDS", 0.2)
    monkeypatch.setattr(stream_module, "PERIOD_SECONDS", 0.01)
    big = "x" * 500_000
    counter = iter(range(10**9))
    world.snapshots = None
    world.serve(snapshots=lambda: {RUN: Snapshot(run_id=RUN, notes=(f"{next(counter)}{big}",))})
    with socket.create_connection(("127.0.0.1", world.server.port), timeout=20) as stuck:
        stuck.sendall(b"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        listener = Listener(world)
        first = listener.next()["notes"][0][:20]
        assert listener.next()["notes"][0][:20] != first
        stream = next(r.endpoint for r in world.server._server.config.app.routes if r.path == "/api/v1/stream")
        limit = time.monotonic() + 20
        while stream.readers > 1:
            listener.next()
            assert time.monotonic() < limit
        listener.close()


# ---- starting and ending


def test_a_taken_port_is_said_in_one_line_and_another_is_used(world):
    world.serve()
    other = WebServer(world.server._server.config.app, "127.0.0.1", world.server.port)
    try:
        assert other.port != world.server.port
        assert other.note == (
            f"port {world.server.port} is taken; page, API and /metrics are on port {other.port} instead"
        )
        assert other.url == f"http://127.0.0.1:{other.port}"
    finally:
        other.stop(1)


def test_an_address_that_cannot_be_had_is_one_sentence(world):
    app = build_app(WebState(snapshots=dict, problems=list, act=world.act, act_token=ACT))
    for host in ("203.0.113.7", "no such host"):
        with pytest.raises(SentinelError, match="cannot listen on"):
            WebServer(app, host, 0)


def test_stopping_is_bounded_while_streams_and_idle_connections_are_open(world):
    world.serve()
    listener = Listener(world)
    listener.next()
    idle = socket.create_connection(("127.0.0.1", world.server.port), timeout=20)
    half = socket.create_connection(("127.0.0.1", world.server.port), timeout=20)
    half.sendall(b"GET / HTTP/1.1\r\nHos")
    started = time.monotonic()
    assert world.server.stop(10)
    assert time.monotonic() - started < 8
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", world.server.port), timeout=5)
    for one in (idle, half, listener):
        one.close()


def test_a_flood_of_connections_is_cut_and_idle_ones_are_closed(world, monkeypatch):
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 10)
    monkeypatch.setattr(server_module, "IDLE_SECONDS", 0.3)
    world.serve()
    flood = [socket.create_connection(("127.0.0.1", world.server.port), timeout=20) for _ in range(30)]
    for one in flood:  # every one of them is closed by the server: at once, or for being idle
        with contextlib.suppress(ConnectionResetError):
            assert one.recv(1) == b""
        one.close()
    assert world.ask("/healthz")[0] == 200


def test_a_process_with_an_open_page_exits(world):
    program = f"""
import sys, threading, http.client
sys.path.insert(0, {str(Path(__file__).parents[1] / "sinks")!r})
from grpo_sentinel.web import WebServer, WebState, build_app
state = WebState(snapshots=dict, problems=list, act=lambda *a: 0, act_token="x")
server = WebServer(build_app(state), "127.0.0.1", 0)
server.start()
c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
c.request("GET", "/api/v1/stream")
print(c.getresponse().status, flush=True)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "200\n"), done.stderr


def test_many_requests_at_once_are_all_answered(world):
    world.store(batch(*(record(s) for s in range(1, 500))))
    world.serve()
    codes: list[int] = []

    def load() -> None:
        for _ in range(10):
            codes.append(world.ask("/api/v1/series?signal=policy.loss")[0])
            codes.append(world.ask("/metrics")[0])

    threads = [threading.Thread(target=load, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert codes == [200] * 160


def test_a_gpu_is_on_the_page_and_in_the_metrics(world):
    world.snapshots[RUN] = Snapshot(run_id=RUN, node="node-a", samples={"GPU-1": sample()})
    world.serve()
    listener = Listener(world)
    assert listener.next()["samples"][0]["entity"] == "GPU-1"
    listener.close()
    assert (
        b'grpo_sentinel_device_gpu_utilization_ratio{node="node-a",gpu="0",uuid="GPU-1"} 0.5'
        in world.ask("/metrics")[2]
    )
