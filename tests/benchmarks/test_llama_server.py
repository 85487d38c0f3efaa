"""The peer llama-server with a scripted server: one process for each kind of speculation, and its replies."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import llama_server as module

SCRIPT = """#!{python}
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

if "--version" in sys.argv:
    print("version: 0.5.0-dev (1234)")
    sys.exit(0)
if "--spec-type" in sys.argv and "draft-mtp" in sys.argv:
    print("there is no block for drafting")
    sys.exit(1)

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply(b"{{}}")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        tokens = [len(sys.argv), *body["prompt"], int(100 * body["temperature"])]
        self.reply(json.dumps({{"tokens": tokens, "timings": {{"prompt_ms": 500.0}}, "body": body}}).encode())

    def reply(self, data):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        pass

HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


@pytest.fixture
def request_for(tmp_path: Path) -> dict[str, Any]:
    program, model = tmp_path / "llama-server", tmp_path / "model.gguf"
    program.write_text(SCRIPT.format(python=sys.executable), encoding="utf-8")
    program.chmod(0o755)
    model.write_bytes(b"GGUF general.architecture")
    settings = {"threads": 1, "lookahead": 3, "context": 64}
    return {"model": str(model), "llama_server": str(program), **settings}


@pytest.fixture
def peer(request_for: dict[str, Any]) -> Iterator[Any]:
    found = module.load(request_for)
    yield found
    found.close()


@pytest.mark.programs
def test_each_kind_of_speculation_is_a_server_of_its_own(peer: Any) -> None:
    assert peer.version == "0.5.0-dev"
    assert list(peer.modes) == ["lookahead", "draft model"]
    plain = peer.answer([7, 8], 4, [], "plain")
    assert (plain["tokens"][1:], plain["first_seconds"]) == ([7, 8, 0], 0.5)
    ahead = peer.answer([7, 8], 4, [], "lookahead", {"temperature": 0.8, "seed": 1})
    assert ahead["tokens"][1:] == [7, 8, 80]
    assert ahead["tokens"][0] == plain["tokens"][0] + 6, "its options, with the lengths of n-grams and drafts"
    with pytest.raises(RuntimeError, match="the server ended: there is no block for drafting"):
        peer.answer([7, 8], 4, [], "MTP")


def test_a_block_for_drafting_is_found_in_the_head_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF....qwen35.nextn_predict_layers....")
    assert module.has_drafting_block(str(file))
    file.write_bytes(b"GGUF....llama.block_count....")
    assert not module.has_drafting_block(str(file))


@pytest.mark.parametrize(
    ("change", "says"),
    [({"llama_server": None}, "name the program: --llama-server"), ({"model": "folder"}, "reads GGUF files")],
)
def test_what_it_cannot_run(request_for: dict[str, Any], change: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        module.load({**request_for, **change})
