"""A server of chat completions that answers as a test says, and the events that it may send."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Say = Callable[[BaseHTTPRequestHandler, dict[str, Any]], None]


@contextmanager
def chat_server(say: Say, models: Any = ({"id": "m", "meta": {"row_invariant": True}},)) -> Iterator[str]:
    """The address of a server that lists ``models`` and calls ``say`` with each request's handler and body."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"data": list(models)}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            say(self, json.loads(self.rfile.read(int(self.headers["content-length"]))))

        def log_message(self, *arguments: Any) -> None:
            """Nothing is to be said."""

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{made.server_address[1]}"
    finally:
        made.shutdown()
        made.server_close()


def events(handler: BaseHTTPRequestHandler, *said: str, status: int = 200, kind: str = "text/event-stream") -> None:
    handler.send_response(status)
    handler.send_header("content-type", kind)
    handler.end_headers()
    handler.wfile.write("".join(f"{line}\n\n" for line in said).encode())


def chunk(text: str) -> str:
    return "data: " + json.dumps({"choices": [{"delta": {"content": text}}]})
