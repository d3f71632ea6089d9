"""Enough of the W&B API for its real client: GraphQL and file_stream, answering well, with 500, or never.

Also a reader of the client's own files (.wandb: LevelDB log framing around protocol buffers), torn tails included.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import re
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BLOCK = 32768


class Wandb:
    """`mode` is "ok", "500" or "hang"; keeps runs, rows and alerts."""

    def __init__(self) -> None:
        self.mode = "ok"
        self.runs: dict[str, dict] = {}
        self.rows: dict[str, list[dict]] = {}
        self.alerts: list[dict] = []
        self.artifacts: list[dict] = []
        self.unknown: list[str] = []
        self.release = threading.Event()
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def body(self) -> bytes:
                if "chunked" in (self.headers.get("transfer-encoding") or ""):
                    data = b""
                    while size := int(self.rfile.readline().split(b";")[0], 16):
                        data += self.rfile.read(size)
                        self.rfile.readline()
                    self.rfile.readline()
                else:
                    data = self.rfile.read(int(self.headers.get("content-length") or 0))
                return gzip.decompress(data) if self.headers.get("content-encoding") == "gzip" else data

            def answer(self) -> None:
                body = self.body()
                status, reply = 200, {}
                if stand_in.mode == "hang":
                    stand_in.release.wait(120)
                    self.close_connection = True
                    return
                if stand_in.mode == "500":
                    status, reply = 500, {"error": "boom"}
                elif self.command == "POST":
                    reply = stand_in.reply(self.path, body)
                data = json.dumps(reply).encode()
                with contextlib.suppress(OSError):
                    self.send_response(status)
                    self.send_header("content-type", "application/json")
                    self.send_header("content-length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)

            do_GET = do_PUT = do_POST = answer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def reply(self, path: str, body: bytes) -> dict:
        stream = re.match(r"/files/[^/]+/[^/]+/([^/]+)/file_stream", path)
        if stream:
            return self._streamed(stream.group(1), json.loads(body))
        if path.startswith("/graphql"):
            request = json.loads(body)
            return {"data": self._data(request.get("query", ""), request.get("variables") or {})}
        self.unknown.append(path)
        return {}

    def _streamed(self, run: str, data: dict) -> dict:
        history = (data.get("files") or {}).get("wandb-history.jsonl")
        if history:
            rows = self.rows.setdefault(run, [])
            rows[history["offset"] :] = [json.loads(line) for line in history["content"]]  # as the server does
        return {"exitcode": None, "limits": {}}

    def _data(self, query: str, variables: dict) -> dict:
        name, project = variables.get("name"), {"id": "p1", "name": "p", "entity": {"id": "e1", "name": "ent"}}
        if "upsertBucket" in query:
            new = name not in self.runs
            self.runs.setdefault(name, {}).update({k: v for k, v in variables.items() if v is not None})
            bucket = {
                "id": base64.b64encode(str(name).encode()).decode(), "name": name, "displayName": name,
                "description": None, "config": "{}", "sweepName": None,
                "historyLineCount": len(self.rows.get(name, ())), "project": project,
            }  # fmt: skip
            return {"upsertBucket": {"bucket": bucket, "inserted": new}}
        if "RunResumeStatus" in query:
            if name not in self.runs:
                return {"model": None}
            rows = self.rows.get(name, [])
            bucket = {
                "id": "x", "name": name, "summaryMetrics": "{}", "displayName": "d", "logLineCount": 0,
                "historyLineCount": len(rows), "eventsLineCount": 0, "historyTail": json.dumps(
                    [json.dumps(row) for row in rows[-1:]]), "eventsTail": "[]", "config": "{}", "tags": [],
                "wandbConfig": '{"t":1}',
            }  # fmt: skip
            return {"model": {**project, "bucket": bucket}}
        versions = {"cliVersionInfo": {"max_cli_version": "9.9.9"}, "latestLocalVersionInfo": None, "features": []}
        if "viewer" in query:
            viewer = {"id": "u1", "entity": "ent", "username": "u", "flags": "{}", "teams": {"edges": []}}
            return {"viewer": viewer, "serverInfo": versions}
        if "erverInfo" in query or "ServerFeatures" in query:
            return {"serverInfo": versions}
        if "notifyScriptableRunAlert" in query:
            self.alerts.append(variables)
            return {"notifyScriptableRunAlert": {"success": True}}
        if "query ArtifactType" in query:
            return {"project": {"artifact": None}}
        if "createArtifact(" in query:
            self.artifacts.append(variables)
            sequence = {"id": "s1", "latestArtifact": {"id": "a1", "versionIndex": 0}}
            return {"createArtifact": {"artifact": {"id": "a1", "state": "COMMITTED", "artifactSequence": sequence}}}
        if "useArtifact(" in query:
            return {"useArtifact": {"artifact": {"id": "a1"}}}
        if "createRunFiles" in query:
            return {"createRunFiles": {"runID": "x", "uploadHeaders": [], "files": []}}
        if "__type" in query:
            return dict.fromkeys(re.findall(r"(\w+)\s*:\s*__type", query)) or {"__type": {"fields": []}}
        self.unknown.append(query[:200])
        return {}

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()


def records(data: bytes) -> Iterator[bytes]:
    """Take a .wandb file apart into whole records."""
    assert data[:4] == b":W&B"
    at, part = 7, b""
    while at + 7 <= len(data):
        left = BLOCK - at % BLOCK
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        if not size and not kind:
            at += left
            continue
        body = data[at + 7 : at + 7 + size]
        if len(body) < size:
            return
        at += 7 + size
        part = body if kind in (1, 2) else part + body
        if kind in (1, 4):
            yield part


def read(path) -> dict[str, list]:
    """Rows, alerts, metric definitions, runs and summaries of a .wandb file."""
    from wandb.proto import wandb_internal_pb2 as proto

    out: dict[str, list] = {"rows": [], "alerts": [], "metrics": [], "runs": [], "summary": []}
    for data in records(path.read_bytes()):
        record = proto.Record.FromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "history":
            items = record.history.item
            out["rows"].append({"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items})
        elif kind == "alert":
            out["alerts"].append(record.alert)
        elif kind == "metric":
            out["metrics"].append((record.metric.name or record.metric.glob_name, record.metric.step_metric))
        elif kind == "run":
            out["runs"].append(record.run)
        elif kind == "summary":
            out["summary"] += ["/".join(item.nested_key) or item.key for item in record.summary.update]
    return out
