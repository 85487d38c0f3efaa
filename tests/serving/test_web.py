"""The page's files: what they may do, and that they ask nobody else. make test-browser runs them."""

from __future__ import annotations

import re

import pytest

from ipex_lookahead.serving.web import POLICY


@pytest.mark.parametrize(
    ("path", "kind"), [("/", "text/html"), ("/page.js", "text/javascript"), ("/page.css", "text/css")]
)
def test_files_come_with_their_policy(client, path, kind):
    answer = client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(kind)
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "unsafe" not in POLICY
    assert not re.search(r"https?:|innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", answer.text)
    assert not re.search(r"<[^>]+\s(style|on\w+)=", answer.text)


def test_a_server_without_the_page(live):
    import httpx

    running = live(page=False)
    assert httpx.get(running.url + "/").status_code == 404
    assert httpx.get(running.url + "/v1/models").status_code == 200
