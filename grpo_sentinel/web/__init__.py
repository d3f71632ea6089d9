"""Page, API, /metrics and /healthz of the sidecar."""

from grpo_sentinel.web.app import build_app
from grpo_sentinel.web.server import WebServer
from grpo_sentinel.web.state import WebState

__all__ = ["WebServer", "WebState", "build_app"]
