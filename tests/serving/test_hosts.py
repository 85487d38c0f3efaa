"""Who is answered: names, origins, TLS, keys that change."""

from __future__ import annotations

import re
import select
import signal
import socket
import ssl
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
import pytest
import uvicorn

from ipex_lookahead.errors import InputError
from ipex_lookahead.serving.app import make_app
from ipex_lookahead.serving.hosts import Hosts
from ipex_lookahead.serving.keys import Keys
from ipex_lookahead.serving.run import Tls, _Draining, _reload
from ipex_lookahead.serving.server import Server, Settings
from tests.serving.conftest import LIMITS
from tests.serving.test_serve import PATIENCE, started, wait_for

OTHER = "https://chat.example"
request = partial(httpx.request, timeout=PATIENCE)


@pytest.mark.parametrize("listening", ["127.0.0.1", "localhost", "::1"])
def test_on_the_loopback_its_names_alone(listening):
    hosts = Hosts.of(listening)
    assert all(hosts.answer(name) for name in ("127.0.0.1", "localhost:8080", "[::1]:1", "LOCALHOST"))
    assert not any(hosts.answer(name) for name in ("evil.example", "10.0.0.1", "", "localhost.evil.example"))


@pytest.mark.parametrize("listening", ["127.0.0.2", "0.0.0.0", "::", "192.168.1.5", "box.lan"])
def test_beyond_it_addresses_and_this_machines_names(listening):
    hosts = Hosts.of(listening)
    ours = ("127.0.0.2:8080", "10.1.2.3", "[fe80::1]:80", "localhost", socket.gethostname(), listening)
    assert all(hosts.answer(name) for name in ours)
    assert not any(hosts.answer(name) for name in ("evil.example:8080", "127.0.0.2.evil.example", "", "1.2.3", "[x]"))


def test_further_names_are_named():
    hosts = Hosts.of("0.0.0.0", ["Chat.example"])
    assert hosts.answer("chat.EXAMPLE:443")
    assert not hosts.answer("other.example")
    assert Hosts.of("0.0.0.0", ["*"]).answer("whatever.example")


def test_programs_of_an_allowed_origin_may_ask(live):
    running = live(origins=frozenset({OTHER}), keys=Keys(["a-key-of-sixteen"]))
    url = running.url + "/v1/models"
    wanted = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    before = request("OPTIONS", url, headers={"origin": OTHER, **wanted})
    assert before.status_code == 200
    assert before.headers["access-control-allow-origin"] == OTHER
    assert "authorization" in before.headers["access-control-allow-headers"].lower()
    asked = request("GET", url, headers={"origin": OTHER, "authorization": "Bearer a-key-of-sixteen"})
    assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (200, OTHER)
    refused = request("GET", url, headers={"origin": OTHER})  # it may read why it is refused
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, OTHER)
    for origin in ("https://evil.example", "null", OTHER + ".evil.example"):
        assert request("OPTIONS", url, headers={"origin": origin, **wanted}).status_code == 400
        assert request("GET", url, headers={"origin": origin}).status_code == 403


@pytest.mark.parametrize(("origins", "status", "allowed"), [((), 403, None), (("*",), 200, "*")])
def test_without_origins_no_page_may_ask_and_with_a_star_every_page(live, origins, status, allowed):
    running = live(origins=frozenset(origins))
    for method in ("GET", "OPTIONS"):
        headers = {"origin": OTHER, "access-control-request-method": "POST"}
        answer = request(method, running.url + "/v1/models", headers=headers)
        assert (answer.status_code, answer.headers.get("access-control-allow-origin")) == (status, allowed)


def test_keys_are_read_again(caplog):
    server = Server(Settings(keys=Keys(["a-key-of-sixteen"])))
    _reload(server, lambda: (Keys(["another-key-of-20-ch"]), Keys()))
    assert server.settings.keys.owner("another-key-of-20-ch")
    assert not server.settings.keys.owner("a-key-of-sixteen")

    def broken() -> tuple[Keys, Keys]:
        raise InputError("keys.txt has no key")

    _reload(server, broken)
    assert server.settings.keys.owner("another-key-of-20-ch")
    assert "has no key" in caplog.text


CERTIFICATE = Path(__file__).parent / "tls"
"""Of localhost, vouching for itself, until 2126; its key is nobody's secret."""


def test_https_and_a_hangup(tmp_path, folder):
    """As people run it: TLS, a key file that is written anew, and SIGHUP."""
    cert, key = CERTIFICATE / "cert.pem", CERTIFICATE / "key.pem"
    keys = tmp_path / "keys.txt"
    keys.write_text("the-first-key-of-all\n")
    process, url = started(
        *("-m", str(folder), "--tls-cert", str(cert), "--tls-key", str(key), "--api-key-file", str(keys))
    )
    try:
        url = url.replace("127.0.0.1", "localhost")
        assert url.startswith("https://")
        trusting = ssl.create_default_context(cafile=str(cert))
        wait_for(process, url, verify=trusting)

        def status(word: str) -> int:
            headers = {"authorization": f"Bearer {word}"}
            return request("GET", url + "/v1/models", headers=headers, verify=trusting).status_code

        assert (status("the-first-key-of-all"), status("the-second-key-of-all")) == (200, 401)
        keys.write_text("the-second-key-of-all\n")
        process.send_signal(signal.SIGHUP)
        for _ in range(1000):
            if status("the-second-key-of-all") == 200:
                break
        assert (status("the-first-key-of-all"), status("the-second-key-of-all")) == (401, 200)
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)


def test_bad_certificates_are_told_before_anything_is_loaded(tmp_path):
    file = tmp_path / "x.pem"
    with pytest.raises(InputError, match="no such file"):
        Tls(file, file).check()
    file.write_text("nonsense")
    with pytest.raises(InputError, match="are not a certificate and its private key"):
        Tls(file, file).check()


def test_head_is_get_without_a_body(live):
    running = live()
    whole, head = (request(method, running.url + "/health") for method in ("GET", "HEAD"))
    assert head.status_code == whole.status_code == 200
    assert head.content == b""
    assert head.headers["content-length"] == whole.headers["content-length"]
    assert whole.headers["x-content-type-options"] == "nosniff"
    assert request("HEAD", running.url + "/v1/chat/completions").status_code == 405


def test_a_body_has_a_time_of_its_own_however_it_trickles(live):
    running = live(limits=replace(LIMITS, body_seconds=0.5))
    with socket.create_connection(("127.0.0.1", running.port)) as made:
        made.settimeout(PATIENCE)
        made.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: 1000\r\n\r\n"
        )
        answer = b""
        made.settimeout(0.05)
        for _ in range(400):  # a byte often enough that no pause is long
            try:
                made.sendall(b" ")
                answer += made.recv(65536)
                break
            except TimeoutError:
                continue
    assert b" 408 " in answer


ASKED = [
    b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 15\r\n\r\n" + b'{"content":"a"}',
    b"GET /nowhere HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
]


def test_requests_in_one_connection_are_answered_in_order(live):
    """However they are cut; tests/gates/test_live_server.py has heads that can be read in two ways."""
    running = live()
    for cut in (None, 1, 7):
        answers = exchanged(running.port, b"".join(ASKED[:3] * 3 + ASKED[3:]), cut, wait=False)
        assert re.findall(rb"HTTP/1\.1 (\d+) ", answers) == [*[b"200", b"200", b"404"] * 3, b"200"]
        assert answers.count(b'{"version":') == answers.count(b'{"tokens":') == 3
        behind = ASKED[0] + b"GET /version HTTP/1.1\nhost: localhost\n\n"
        answer = exchanged(running.port, behind, cut, wait=False)
        assert re.findall(rb"HTTP/1\.1 (\d+) ", answer) == [b"200", b"400"], "it is not read unseen"


def test_a_request_behind_a_body_that_was_answered_before_it_came_is_not_read(live):
    running = live()
    with socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE) as made:
        made.sendall(b"POST /nowhere HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n\r\n")
        assert made.recv(65536).startswith(b"HTTP/1.1 404")
        made.sendall(b"body" + ASKED[0])
        assert b"HTTP/1.1" not in b"".join(iter(lambda: made.recv(65536), b""))


BALANCED = [
    (b"GET /health HTTP/1.0\r\n\r\n", b"200"),
    (b"HEAD /health HTTP/1.0\r\n\r\n", b"200"),
    (b"GET /v1/health?x=1 HTTP/1.1\r\nconnection: close\r\n\r\n", b"200"),
    (b"GET /health HTTP/1.1\r\nhost: balancer.example\r\nconnection: close\r\n\r\n", b"200"),
    (b"GET /health HTTP/1.0\r\nhost: [\r\n\r\n", b"200"),
    (b"GET /health HTTP/1.1\r\norigin: http://evil.example\r\n\r\n", b"403"),
    (b"GET /ready HTTP/1.0\r\n\r\n", b"403"),
    (b"GET /v1/models HTTP/1.1\r\n\r\n", b"400"),
    (b"GET /v1/models HTTP/1.1\r\nhost: balancer.example\r\nconnection: close\r\n\r\n", b"403"),
]


def test_load_balancers_need_no_name(live):
    running = live(hosts=Hosts.of("127.0.0.1"))
    for head, status in BALANCED:
        for cut in (None, 1):
            assert exchanged(running.port, head, cut)[9:12] == status, head


def exchanged(port: int, sent: bytes, cut: int | None, *, wait: bool = True) -> bytes:
    answer = b""
    with socket.create_connection(("127.0.0.1", port)) as made:
        made.settimeout(PATIENCE)
        try:
            for at in range(0, len(sent), cut or len(sent)):
                made.sendall(sent[at : at + (cut or len(sent))])
                if wait and cut and select.select([made], [], [], 0.002)[0]:  # it has answered, and closes
                    break
            while new := made.recv(65536):
                answer += new
        except (BrokenPipeError, ConnectionResetError):
            pass
    return answer


def test_silent_connections_make_room(live):
    running = live(connections=(6, 4))
    silent = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(20)]
    try:
        assert request("GET", running.url + "/health").status_code == 200
    finally:
        for one in silent:
            one.close()


@pytest.mark.parametrize("signals", [1, 2])
def test_it_listens_until_it_has_drained(monkeypatch, signals):
    """What comes meanwhile is answered with a 503; a second signal does not wait (test_serve.py has a real one)."""
    server, may_end = Server(Settings()), threading.Event()
    monkeypatch.setattr(server, "close", lambda seconds: may_end.wait(PATIENCE))
    running = _Draining(uvicorn.Config(make_app(server)), server)
    for _ in range(signals):
        running.handle_exit(signal.SIGTERM, None)
    assert server.state == "draining"
    assert running.should_exit == (signals == 2)
    may_end.set()
    running.drain().join(PATIENCE)
    assert running.should_exit
