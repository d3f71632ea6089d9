"""Page, API, /metrics and health endpoints of the sidecar."""

from grpo_sentinel.web.app import build_app
from grpo_sentinel.web.server import WebServer
from grpo_sentinel.web.state import WebState

__all__ = ["WebServer", "WebState", "build_app"]
