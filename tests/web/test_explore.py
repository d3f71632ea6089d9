"""Walk, incidents and past runs over real HTTP, without a browser."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

import pytest
from page_support import Shown
from sentinel_batches import RUN

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.views import Snapshot
from grpo_sentinel.web import WebServer
from grpo_sentinel.web.explore import over_time


@pytest.fixture
def shown(tmp_path: Path) -> Shown:
    return Shown(tmp_path, steps=100)


def ask(server: WebServer, path: str) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("GET", f"/api/v1/{path}")
    answer = connection.getresponse()
    got = answer.status, json.loads(answer.read())
    connection.close()
    return got


def first_news(server: WebServer, run: str = "") -> dict[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("GET", f"/api/v1/stream?run={run}")
    answer = connection.getresponse()
    line = b""
    while not line.startswith(b"data: "):
        line = answer.readline()
    connection.close()
    return dict(json.loads(line[6:]))


WALK = {
    "conclusion": "wrong first: gradient",
    "layers": [
        {"layer": "gradient", "state": "wrong", "wrong": ["a"], "fine": ["b", "c"], "not_seen": {"d": "no signal"}},
        {"layer": "memory", "state": "not seen", "wrong": [], "fine": [], "not_seen": {"e": "no signal"}},
    ],
}


def test_the_walk_of_a_watched_run_is_given_and_its_counts_are_in_every_summary(shown: Shown) -> None:
    with shown.served(walk=lambda run_id: WALK if run_id == RUN else None) as server:
        assert ask(server, "walk") == (200, WALK)
        assert ask(server, "walk?run=another")[1]["layers"] == []
        assert first_news(server)["judging"] == {"gradient": [3, 4], "memory": [0, 1]}


class Kept:
    """Incidents as the daemon offers them."""

    def heads(self, run_id: str) -> list[dict[str, Any]]:
        return [{"name": f"{run_id}-1", "title": "t"}]

    def view(self, name: str) -> dict[str, Any] | None:
        if name == "damaged":
            raise SentinelError("the bundle is damaged")
        return {"name": name, "low": float("nan")} if name == f"{RUN}-1" else None


def test_incidents_are_listed_shown_and_refused_in_one_sentence(shown: Shown) -> None:
    with shown.served(incidents=Kept()) as server:
        assert ask(server, "incidents")[1]["incidents"] == [{"name": f"{RUN}-1", "title": "t"}]
        assert ask(server, f"incident?name={RUN}-1") == (200, {"name": f"{RUN}-1", "low": "NaN"})
        assert ask(server, "incident?name=../../etc") == (
            404, {"error": "there is no incident '../../etc'; /api/v1/incidents lists them"}
        )  # fmt: skip
        assert ask(server, "incident?name=damaged") == (409, {"error": "the bundle is damaged"})


def test_where_no_incidents_are_kept_that_is_said(shown: Shown) -> None:
    with shown.served() as server:
        assert ask(server, "incidents") == (
            200, {"incidents": [], "note": "Incidents are not kept here (incidents.enabled)."}
        )  # fmt: skip
        assert ask(server, "incident?name=x")[0] == 503


def test_a_past_run_comes_from_the_history_and_nobody_of_it_is_called_alive(shown: Shown) -> None:
    with shown.served(snapshots=lambda: {"other": Snapshot(run_id="other")}) as server:
        news = first_news(server, RUN)
        assert (news["past"], news["run_id"], news["runs"]) == (True, RUN, ["other"])
        assert {rank["liveness"] for rank in news["ranks"]} == {"unknown"}
        assert news["findings"][0]["rule"] == "grad_nonfinite"
        assert "not watched now" in news["notes"][0]
        assert ask(server, f"heat?run={RUN}")[1]["ranks"] == list(range(8))
        assert ask(server, "heat?run=nobody")[0] == 404
        assert first_news(server)["past"] is False


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        ("readings?entity=GPU-1", 400, "entity or signal is missing"),
        ("readings?entity=GPU-1&signal=x&minutes=999999", 400, "minutes: expected 1 to 360"),
        ("heat?by=colour", 400, "by: expected signal or step, got 'colour'"),
        ("heat?by=step", 400, "signal is missing"),
        ("heat?by=step&signal=policy.loss&columns=100000", 400, "columns: expected 2 to 240"),
        ("heat?by=step&signal=policy.loss&since=-1", 400, "since: expected 0 to"),
    ],
)
def test_a_bad_question_gets_one_sentence(shown: Shown, path: str, code: int, words: str) -> None:
    with shown.served() as server:
        got, body = ask(server, path)
        assert (got, words in body["error"]) == (code, True), body


def test_with_more_ranks_than_a_summary_may_hold_their_values_come_with_the_map_only(shown: Shown) -> None:
    one = shown.snapshot.ranks[0]
    shown.snapshot = Snapshot(run_id=RUN, ranks=dict.fromkeys(range(256), one))
    with shown.served() as server:
        news = first_news(server)
        assert len(json.dumps(news)) < 120_000
        assert all(rank["values"] == {} for rank in news["ranks"])
        assert len(ask(server, "heat")[1]["ranks"]) == 256


def test_readings_of_a_gpu_over_time_are_bounded_and_keep_their_peaks(shown: Shown) -> None:
    with shown.served() as server:
        asked = "readings?entity=GPU-2&signal=device.gpu_utilization_ratio&minutes=30"
        code, body = ask(server, asked)
        assert code == 200
        assert 30 <= len(body["seconds"]) <= 31
        assert body["seconds"] == sorted(body["seconds"])
        assert set(body["high"]) == {0.0, 0.25, 0.5, 0.75}
    points = [(step, 1.0) for step in range(5_000)]
    points[2_345], points[3_456] = (2_345, 9.0), (3_456, float("nan"))
    thinned = over_time(points)
    assert len(thinned["seconds"]) == 500
    assert (max(thinned["high"]), sum(thinned["nonfinite"])) == (9.0, 1)


def test_a_run_or_a_mode_that_does_not_exist_is_refused_instead_of_answered_with_nothing_or_another_one(
    shown: Shown,
) -> None:
    with shown.served() as server:
        for path in (
            "series?signal=policy.loss",
            "signals?",
            "events?",
            "findings?all=1",
            "findings?all=latest",
            "history?",
        ):
            status, told = ask(server, f"{path}&run=typo")
            assert (status, "'typo'" in told["error"]) == (404, True), path
        for path in ("series?signal=policy.loss", "heat?by=step&signal=policy.loss"):
            assert ask(server, f"{path}&mode=eval") == (
                400, {"error": "mode: expected train or evaluation, got 'eval'"}
            )  # fmt: skip
            assert ask(server, f"{path}&mode=evaluation")[0] == 200
