"""A hub on this machine: an HTTP server that answers what the hub's library asks, and fails as a hub may."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".gguf", ".safetensors", ".bin")


@dataclass
class FakeHub:
    """Repositories to file names to contents; what it is to do wrong, and what was asked of it.

    Attributes:
        cut: file name -> bytes after which the connection breaks, once for each entry.
        stall: file name -> bytes after which nothing more comes, once for each entry.
        lies: file name -> contents that are sent instead, under the right checksum.
        listed: file name -> what the list of files says of it otherwise (``rfilename``, ``size``, ``lfs``, ``blobId``).
        commit: what it calls the newest commit.
        endless: file names whose contents are sent again and again.
        refused: repository -> (HTTP status, the hub's error code).
        asked: (method, path) of every request; ``ranges``: the Range header of each GET of a file.
        sent: bytes of each file that were sent.
    """

    repositories: dict[str, dict[str, bytes]]
    cut: dict[str, list[int]] = field(default_factory=dict)
    stall: dict[str, list[int]] = field(default_factory=dict)
    lies: dict[str, bytes] = field(default_factory=dict)
    listed: dict[str, dict[str, object]] = field(default_factory=dict)
    commit: object = COMMIT
    endless: set[str] = field(default_factory=set)
    refused: dict[str, tuple[int, str]] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    ranges: dict[str, list[str | None]] = field(default_factory=lambda: defaultdict(list))
    sent: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    stalled: threading.Event = field(default_factory=threading.Event)
    endpoint: str = ""

    def fetched(self) -> set[str]:
        """Names of the files whose contents were asked for."""
        return {
            path.split(f"/resolve/{COMMIT}/")[1]
            for method, path in self.asked
            if method == "GET" and "/resolve/" in path
        }


@contextmanager
def fake_hub(repositories: dict[str, dict[str, bytes]]) -> Iterator[FakeHub]:
    hub, ended = FakeHub(repositories), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(body=True)

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def _answer(self, *, body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.asked.append((self.command, path))
            parts = path.strip("/").split("/")
            if parts[:2] == ["api", "models"]:
                self._about("/".join(parts[2:4]), parts[4:])
            else:
                self._file("/".join(parts[:2]), "/".join(parts[4:]), body=body)

        def _about(self, repo: str, rest: list[str]) -> None:
            if self._is_refused(repo):
                return
            if rest[:1] == ["revision"] and rest[1:] not in (["main"], [COMMIT]):
                self._fail(404, "RevisionNotFound")
                return
            entries = [(name, content, _large(name, content)) for name, content in hub.repositories[repo].items()]
            if rest[:1] == ["tree"]:
                found: object = [
                    {"type": "file", "path": name, "size": len(content), "oid": _sha1(content), **({"lfs": {
                        "oid": large["sha256"], "size": len(content), "pointerSize": 120}} if large else {})}
                    for name, content, large in entries
                ]  # fmt: skip
            else:
                siblings = [
                    {
                        "rfilename": name,
                        "size": len(content),
                        "blobId": _sha1(content),
                        **({"lfs": large} if large else {}),
                        **hub.listed.get(name, {}),
                    }
                    for name, content, large in entries
                ]
                others = {"private": False, "tags": [], "downloads": 0, "likes": 0}
                found = {"id": repo, "modelId": repo, "sha": hub.commit, "siblings": siblings, **others}
            self._send(200, json.dumps(found).encode(), {"Content-Type": "application/json"})

        def _file(self, repo: str, name: str, *, body: bool) -> None:
            if self._is_refused(repo):
                return
            content = hub.repositories[repo].get(name)
            if content is None:
                self._fail(404, "EntryNotFound")
                return
            large = _large(name, content)
            headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{large["sha256"] if large else _sha1(content)}"'}
            headers["Accept-Ranges"] = "bytes"
            sent, status = hub.lies.get(name, content), 200
            if body:
                asked = self.headers.get("Range")
                hub.ranges[name].append(asked)
                if asked:
                    first = int(asked.removeprefix("bytes=").split("-")[0])
                    headers["Content-Range"] = f"bytes {first}-{len(sent) - 1}/{len(sent)}"
                    sent, status = sent[first:], 206
            self._send(status, sent, headers, body=body, name=name)

        def _is_refused(self, repo: str) -> bool:
            if repo in hub.refused:
                self._fail(*hub.refused[repo])
                return True
            if repo not in hub.repositories:
                self._fail(404, "RepoNotFound")
                return True
            return False

        def _fail(self, status: int, code: str) -> None:
            self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": f"it is {code}"})

        def _send(
            self, status: int, content: bytes, headers: dict[str, str], *, body: bool = True, name: str = ""
        ) -> None:
            self.send_response(status)
            endless = name in hub.endless
            for key, value in {**headers, **({} if endless else {"Content-Length": str(len(content))})}.items():
                self.send_header(key, value)
            self.end_headers()
            while endless and body and not ended.is_set():
                try:
                    self.wfile.write(content)
                except OSError:
                    return
            if not body or self.command == "HEAD":
                return
            if hub.cut.get(name):
                content = content[: hub.cut[name].pop(0)]
                self.close_connection = True
            if hub.stall.get(name):
                self.wfile.write(content[: hub.stall[name].pop(0)])
                hub.stalled.set()
                ended.wait(600)
                return
            self.wfile.write(content)
            hub.sent[name] += len(content)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        ended.set()
        server.shutdown()
        server.server_close()


def _large(name: str, content: bytes) -> dict[str, object] | None:
    if not name.endswith(LARGE):
        return None
    return {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 120}


def _sha1(content: bytes) -> str:
    """git's name of a file's contents."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
