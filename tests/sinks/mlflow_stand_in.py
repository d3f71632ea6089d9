"""Enough of MLflow's REST API for its real client: strict about JSON numbers, keys and batch sizes as the server is."""

from __future__ import annotations

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def _no_literal(literal: str) -> None:
    raise ValueError(f"{literal} is no JSON")  # the real server takes it and stores value 0 at step 0


class Mlflow:
    """`mode` is "ok", a status, or "hang"; keeps metrics and tags by run."""

    def __init__(self) -> None:
        self.mode: str | int = "ok"
        self.experiments: dict[str, str] = {}
        self.runs: dict[str, dict] = {}
        self.batches: list[int] = []
        self.refuse_key = ""
        self.artifacts: dict[str, bytes] = {}
        self.release = threading.Event()
        self.calls: list[str] = []
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def answer(self) -> None:
                data = self.rfile.read(int(self.headers.get("content-length") or 0))
                path, _, query = self.path.partition("?")
                stand_in.calls.append(path)
                if stand_in.mode == "hang":
                    stand_in.release.wait(120)
                    self.close_connection = True
                    return
                if stand_in.mode != "ok":
                    status, reply = stand_in.mode, {"error_code": "INTERNAL_ERROR", "message": "boom"}
                else:
                    body = json.loads(data, parse_constant=_no_literal) if data else {}
                    status, reply = stand_in.reply(path.partition("/mlflow/")[2], body, query)
                out = json.dumps(reply).encode()
                with contextlib.suppress(OSError):
                    self.send_response(status)
                    self.send_header("content-type", "application/json")
                    self.send_header("content-length", str(len(out)))
                    self.end_headers()
                    self.wfile.write(out)

            def do_PUT(self) -> None:
                data = self.rfile.read(int(self.headers.get("content-length") or 0))
                status = 200 if stand_in.mode == "ok" else 500
                if status == 200:
                    stand_in.artifacts[self.path.partition("/artifacts/")[2]] = data
                self.send_response(status)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            do_GET = do_POST = answer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def reply(self, what: str, body: dict, query: str) -> tuple[int, dict]:
        if what == "experiments/get-by-name":
            name = query.partition("=")[2]
            if name not in self.experiments:
                return 404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": name}
            return 200, {"experiment": {"experiment_id": self.experiments[name], "name": name}}
        if what == "experiments/create":
            self.experiments[body["name"]] = str(len(self.experiments) + 1)
            return 200, {"experiment_id": self.experiments[body["name"]]}
        if what == "runs/create":
            name = f"run{len(self.runs)}"
            tags = {tag["key"]: tag["value"] for tag in body["tags"]}
            self.runs[name] = {"metrics": [], "tags": tags, "status": "RUNNING", "name": body["run_name"]}
            return 200, {"run": self._run(name)}
        if what == "runs/search":
            return 200, {
                "runs": [self._run(name) for name, run in self.runs.items() if self._matches(run, body["filter"])]
            }
        if what == "runs/get":
            return 200, {"run": self._run(query.rpartition("=")[2])}
        if what == "runs/update":
            self.runs[body["run_id"]]["status"] = body["status"]
            return 200, {"run_info": self._run(body["run_id"])["info"]}
        if what == "runs/log-batch":
            return self._log(body)
        return 404, {"error_code": "ENDPOINT_NOT_FOUND", "message": what}

    def _matches(self, run: dict, clauses: str) -> bool:
        for clause in clauses.split(" and "):
            name, value = clause.split(" = ")
            if run["tags"].get(name.removeprefix("tags.").strip("`")) != value.strip("'"):
                return False
        return True

    def _run(self, name: str) -> dict:
        run = self.runs[name]
        place = f"mlflow-artifacts:/1/{name}/artifacts"
        info = {"run_id": name, "run_uuid": name, "experiment_id": "1", "status": run["status"], "artifact_uri": place}
        return {"info": info, "data": {}}

    def _log(self, body: dict) -> tuple[int, dict]:
        metrics, run = (
            body.get("metrics", []),
            self.runs.setdefault(body["run_id"], {"metrics": [], "tags": {}, "status": "RUNNING"}),
        )
        self.batches.append(len(metrics))
        if len(metrics) > 1000 or any(self.refuse_key and self.refuse_key in metric["key"] for metric in metrics):
            return 400, {"error_code": "INVALID_PARAMETER_VALUE", "message": "no"}
        for metric in metrics:
            point = (metric["key"], metric.get("step", 0), metric["timestamp"], metric["value"])
            if point not in run["metrics"]:  # as the server does
                run["metrics"].append(point)
        run["tags"] |= {tag["key"]: tag["value"] for tag in body.get("tags", [])}
        return 200, {}

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()
