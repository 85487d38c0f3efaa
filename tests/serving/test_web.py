"""The page's files: what they may do, and that they ask nobody else; and its Markdown. make test-browser runs them."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from importlib.resources import files

import httpx
import pytest

from ipex_lookahead.serving import markdown
from ipex_lookahead.serving.keys import Keys
from ipex_lookahead.serving.web import POLICY

KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
PARTS = sorted(one.name for one in (files("ipex_lookahead.serving") / "page").iterdir() if one.is_file())


@pytest.mark.parametrize(("path", "kind"), [("/", "html"), *((f"/page/{one}", one.split(".")[1]) for one in PARTS)])
def test_files_come_with_their_policy(client, path, kind):
    answer = client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(KINDS[kind])
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "unsafe" not in POLICY
    assert not re.search(r"https?:|innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", answer.text)
    assert not re.search(r"<[^>]+\s(style|on\w+)=", answer.text)


@pytest.mark.parametrize(("name", "kind"), [("temml.min.js", "text/javascript"), ("temml.css", "text/css")])
def test_what_others_wrote_is_as_they_published_it(client, name, kind):
    """The first line of such a file has its origin and checksum; scripts/vendor_temml.py writes it."""
    answer = client.get(f"/page/vendor/{name}")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(kind)
    assert answer.headers["content-security-policy"] == POLICY
    origin, _, rest = answer.text.partition("\n")
    assert re.match(r"/\*! Temml [\d.]+, MIT license \(licenses/temml\.txt\)\. npm: temml@[\d.]+, dist/", origin)
    own = rest.removesuffix("\nexport default temml;\n")
    assert hashlib.sha256(own.encode()).hexdigest() == re.search(r"sha256 ([0-9a-f]{64})", origin)[1]
    assert not re.search(
        r"(inner|outer)HTML|insertAdjacentHTML|document\.write|\beval\(|new Function|url\(", answer.text
    )


def test_a_server_without_the_page(live):
    running = live(page=False)
    assert httpx.get(running.url + "/").status_code == 404
    assert httpx.get(running.url + "/page/page.js").status_code == 404
    assert httpx.post(running.url + "/render", json={"text": "a"}).status_code == 404
    assert httpx.get(running.url + "/v1/models").status_code == 200


@pytest.mark.parametrize(
    "name",
    [
        "",
        "none.js",
        "vendor",
        "vendor/",
        "vendor/none.js",
        "vendor%2f..%2fpage.js",
        "..%2fweb.py",
        "__init__.py",
        "%00",
    ],
)
def test_there_are_no_other_files(client, name):
    assert client.get(f"/page/{name}").status_code == 404


def test_markdown_is_rendered(client):
    answer = client.post("/render", json={"text": "*é* <b>"})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {"nodes": [{"tag": "p", "children": [{"tag": "em", "children": ["é"]}, " <b>"], "line": 0}]}


@pytest.mark.parametrize("body", [{}, {"text": None}, {"text": 1}, [], {"text": "a" * 60_001}, {"text": "\ud800"}])
def test_what_cannot_be_rendered_is_refused(client, body):
    answer = client.post("/render", content=json.dumps(body), headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


def test_the_files_need_no_key_and_markdown_does(live):
    running = live(keys=Keys(["a-key-of-sixteen-characters"]))
    assert httpx.get(running.url + "/page/page.js").status_code == 200
    assert httpx.post(running.url + "/render", json={"text": "a"}).status_code == 401
    own = {"authorization": "Bearer a-key-of-sixteen-characters"}
    assert httpx.post(running.url + "/render", json={"text": "a"}, headers=own).status_code == 200
    other = {**own, "origin": "http://elsewhere.example"}
    assert httpx.post(running.url + "/render", json={"text": "a"}, headers=other).status_code == 403


def test_rendering_does_not_hold_others_up(live, monkeypatch):
    running = live()
    begun, go_on = threading.Event(), threading.Event()

    def slow(text):
        begun.set()
        assert go_on.wait(60)
        return []

    monkeypatch.setattr(markdown, "nodes", slow)
    asking = threading.Thread(target=lambda: httpx.post(running.url + "/render", json={"text": "a"}, timeout=60))
    asking.start()
    assert begun.wait(60)
    assert httpx.get(running.url + "/health").status_code == 200, "the loop goes on"
    go_on.set()
    asking.join(60)
