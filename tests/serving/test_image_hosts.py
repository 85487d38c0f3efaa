"""Downloads of images: allowed hosts, public addresses, redirects, limits; hosts are servers in this process."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from ipex_lookahead.errors import InputError
from ipex_lookahead.serving.failures import ApiError
from ipex_lookahead.serving.image_hosts import FetchLimits, ImageHosts, host_and_port, is_public

PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)
PUBLIC = "93.184.216.34"
LIMITS = FetchLimits(bytes=1000, seconds=0.5, request_seconds=1.0)
Handle = Callable[[str, asyncio.StreamWriter], Awaitable[None]]


def ok(body: bytes = PNG, *headers: str) -> bytes:
    lines = ["HTTP/1.1 200 OK", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def redirect(url: str) -> bytes:
    return f"HTTP/1.1 302 Found\r\nlocation: {url}\r\ncontent-length: 0\r\n\r\n".encode()


class Web:
    """Hosts with names and addresses; connections to any address reach one server here.

    Args:
        answers: path -> answer.
        names: name -> addresses.
    """

    def __init__(self, answers: dict[str, bytes], names: dict[str, Sequence[str]] | None = None) -> None:
        self.answers = answers
        self.names = {"a.com": [PUBLIC], "b.com": [PUBLIC], **(names or {})}
        self.resolved: list[str] = []
        self.dialled: list[tuple[str, int, Any]] = []
        self.requests: list[str] = []

    async def resolve(self, name: str, port: int) -> Sequence[str]:
        self.resolved.append(name)
        if name not in self.names:
            raise OSError
        return self.names[name]

    async def connect(self, address: str, port: int, **options: Any) -> Any:
        self.dialled.append((address, port, options.pop("server_hostname", None)))
        if (tls := options.pop("ssl", None)) is not None:
            assert (tls.check_hostname, tls.verify_mode) == (True, ssl.CERT_REQUIRED)
        assert (tls is not None) == (self.dialled[-1][2] is not None)
        reader, writer = asyncio.StreamReader(), _Writer(self)
        writer.reader = reader
        return reader, writer

    async def fetch(self, *urls: str, allowed: Sequence[str] = ("a.com",), limits: FetchLimits = LIMITS) -> list[bytes]:
        hosts = ImageHosts(allowed, limits, self.resolve, self.connect)
        for url in urls:
            hosts.check(url, "image")
        return await hosts.files([(url, "image") for url in urls])

    def get(self, *urls: str, **options: Any) -> list[bytes]:
        return asyncio.run(self.fetch(*urls, **options))


class _Writer:
    """The client's side of a connection: the answer of the path is fed to ``reader``."""

    def __init__(self, web: Web) -> None:
        self._web, self._sent, self.reader = web, b"", asyncio.StreamReader()

    def write(self, data: bytes) -> None:
        self._sent += data

    async def drain(self) -> None:
        self._web.requests.append(self._sent.decode())
        answer = self._web.answers[self._sent.split(b" ")[1].decode()]
        self.reader.feed_data(answer)
        if not answer.endswith(b"..."):  # a slow host
            self.reader.feed_eof()

    def close(self) -> None:
        pass


def test_a_file_is_downloaded_from_the_address_that_was_checked():
    web = Web({"/x?y=1": ok()})
    assert web.get("https://a.com/x?y=1#z") == [PNG]
    assert (web.resolved, web.dialled) == (["a.com"], [(PUBLIC, 443, "a.com")])
    head = web.requests[0].lower()
    assert "host: a.com\r\n" in head
    assert "accept-encoding: identity" in head
    assert web.get("http://A.com./x?y=1") == [PNG]
    assert web.dialled[-1] == (PUBLIC, 80, None)


def test_names_ports_and_all_hosts():
    web = Web({"/": ok()})
    assert web.get("https://a.com:8443/", allowed=["A.com:8443"]) == [PNG]
    assert "Host: a.com:8443" in web.requests[0] or "host: a.com:8443" in web.requests[0].lower()
    assert web.get("https://b.com/", allowed=["*"]) == [PNG]
    for allowed, url in (
        (["a.com"], "https://a.com:8443/"),
        (["*"], "https://a.com:22/"),
        (["a.com:1"], "http://a.com/"),
    ):
        with pytest.raises(ApiError, match="--allow-image-host"):
            web.get(url, allowed=allowed)


@pytest.mark.parametrize(
    "url",
    [
        "https://b.com/", "https://a.com.b.com/", "https://sub.a.com/", "https://user@a.com/", "https://a.com@b.com/",
        "https://a.com:a@b.com/", "https://b.com\\@a.com/", "https://a.com\\.b.com/", "https://a.com%2eb.com/",
        "https://a.com\t.b.com/", "https://a.com\n/", "https://ａ.com/", "https://a。com/", "https://a.com:99999/",
        "https://a.com:x/", "https://a.com../", "https:///a.com/", "https:a.com", "//a.com/", "a.com", "",
        "http://127.0.0.1/", "http://2130706433/", "http://0x7f.1/", "http://[::1]/", "http://[::ffff:127.0.0.1]/",
        "http://[::1%25lo]/", "http://[a.com]/", "http://[", "file:///etc/passwd", "ftp://a.com/", "gopher://a.com/",
        "javascript:1", "https://a.com/" + "x" * 9000, "https://a.com/ö", "https://localhost/", "http://0/",
    ],
)  # fmt: skip
def test_other_urls_are_refused_before_anything_is_resolved(url):
    web = Web({"/": ok()})
    with pytest.raises(ApiError) as refused:
        web.get(url)
    assert (refused.value.status, refused.value.param) == (400, "image")
    assert web.resolved == web.dialled == []


def test_without_hosts_nothing_is_downloaded():
    with pytest.raises(
        ApiError, match=r"data:image/png;base64,\.\.\., or start the server with --allow-image-host HOST"
    ):
        Web({}).get("https://a.com/", allowed=())


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
        "255.255.255.255", "192.0.0.1", "198.18.0.1", "240.0.0.1", "192.88.99.1", "::1", "::", "::ffff:10.0.0.1",
        "::ffff:93.184.216.34", "::127.0.0.1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00::1", "ff02::1",
        "64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::", "2001::1", "2001:db8::1", "100::1", "3fff::1", "x",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public(address):
    assert not is_public(address)
    web = Web({"/": ok()}, {"a.com": [PUBLIC, address]})
    for allowed in (["a.com"], ["*"]):
        with pytest.raises(ApiError, match="not public") as refused:
            web.get("https://a.com/", allowed=allowed)
        assert address not in refused.value.message
    assert web.dialled == []


def test_public_addresses():
    assert all(map(is_public, (PUBLIC, "8.8.8.8", "2606:4700::1111", "2a00:1450::1")))


def test_redirects_pass_the_same_checks():
    web = Web({"/": redirect("//b.com/2"), "/2": redirect("/3"), "/3": ok()}, {"c.com": ["10.0.0.1"]})
    assert web.get("https://a.com/", allowed=["a.com", "b.com"]) == [PNG]
    assert [name for _, _, name in web.dialled] == ["a.com", "b.com", "b.com"]
    for target, said in (
        ("https://b.com/", "not downloaded from 'b.com'"),
        ("https://169.254.169.254/latest", "not downloaded from"),
        ("https://c.com/", "not public"),
        ("http://a.com/", "from https to http"),
        ("https://x@a.com/", "user name"),
        ("file:///etc/passwd", "must be a data:"),
        ("data:image/png;base64,aGk=", "must be a data:, https: or http: URL"),
        ("/", "redirects more than 3 times"),
    ):
        web.answers = {"/": redirect(target)}
        web.dialled.clear()
        with pytest.raises(ApiError, match=said):
            web.get("https://a.com/", allowed=["a.com", "c.com"])
        assert {address for address, _, _ in web.dialled} == {PUBLIC}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (ok(PNG + bytes(1000)), "more than 1,000 bytes"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n7d0\r\n" + PNG + bytes(2000 - 48), "more than 1,000"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + PNG + bytes(1000), "more than 1,000 bytes"),
        (ok(b"<html>secret text of an inner service</html>"), "is not that of a JPEG"),
        (ok(PNG, "content-encoding: gzip"), "sent it compressed"),
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 6\r\n\r\nsecret", "status 404"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n" + PNG, "no valid answer"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", "no valid answer"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "no valid answer"),
        (b"", "no valid answer"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"a" * 50_000, "no valid answer"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 9 + ok(), "no valid answer"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n" + PNG + b"...", "takes more than 0.5 s"),
        (b"HTTP/1.1 200 OK\r\nx: ...", "takes more than 0.5 s"),
    ],
)  # fmt: skip
def test_answers_that_are_not_images(answer, said):
    with pytest.raises(ApiError, match=said) as refused:
        Web({"/": answer}).get("https://a.com/")
    assert (refused.value.status, "secret" in refused.value.message) == (400, False)


def test_all_files_of_a_request_have_one_limit_of_time():
    slow = b"HTTP/1.1 200 OK\r\nx: ..."
    limits = FetchLimits(seconds=0.4, request_seconds=0.2)
    with pytest.raises(ApiError, match=r"takes more than 0\.2 s"):
        Web({"/": slow, "/x": ok()}).get("https://a.com/", "https://a.com/x", limits=limits)


def test_a_name_that_cannot_be_resolved():
    with pytest.raises(ApiError, match=r"'c\.com' cannot be resolved"):
        Web({}).get("https://c.com/", allowed=["*"])


@pytest.mark.parametrize(
    "given", ["", "https://a.com", "a.com/x", "user@a.com", "a b", "-a.com", "ä.de", "a.com:x", "*.a.com"]
)
def test_wrong_entries_of_the_list(given):
    with pytest.raises(InputError, match="--allow-image-host"):
        host_and_port(given)


def test_entries_of_the_list():
    assert host_and_port("A.com.") == ("a.com", None)
    assert host_and_port("[2606:4700::1]:8080") == ("2606:4700::1", 8080)
    assert host_and_port("*") == ("*", None)
