"""A mail server on a free port that takes everything, or refuses to, or says nothing."""

from __future__ import annotations

import contextlib
import email
import email.policy
import socketserver
import threading
from collections.abc import Iterator
from email.message import EmailMessage


class Mails:
    """`mode` is "ok", "refuse" or "hang"; keeps (recipients, message)."""

    def __init__(self) -> None:
        self.mode = "ok"
        self.taken: list[tuple[list[str], EmailMessage]] = []
        self.release = threading.Event()
        mails = self

        class Session(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                if mails.mode == "hang":
                    mails.release.wait(60)
                    return
                self.say("220 ready")
                recipients: list[str] = []
                for line in iter(self.rfile.readline, b""):
                    verb = line[:4].upper().strip()
                    if verb == b"RCPT":
                        recipients.append(line.decode().partition(":")[2].strip().strip("<>"))
                        self.say("250 ok" if mails.mode == "ok" else "550 no such user")
                    elif verb == b"DATA":
                        self.say("354 go on")
                        text = b"".join(iter(self.rfile.readline, b".\r\n"))
                        mails.taken.append((recipients, email.message_from_bytes(text, policy=email.policy.default)))
                        self.say("250 taken")
                    elif verb == b"QUIT":
                        self.say("221 bye")
                        return
                    else:
                        self.say("250 ok")

            def say(self, text: str) -> None:
                self.wfile.write(text.encode() + b"\r\n")

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Session)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def taking_mail() -> Iterator[Mails]:
    """Take mail until the block ends."""
    made = Mails()
    try:
        yield made
    finally:
        made.close()
