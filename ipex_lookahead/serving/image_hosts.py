"""Downloads of images from hosts that the operator allows (``--allow-image-host``), as protection against SSRF.

A URL in a request must not make the server reach what only the server can reach. Therefore

1. nothing is downloaded but from hosts in the list, by their exact name and port;
2. a name is resolved once, all of its addresses must be public, and the connection goes to one of these addresses, so
   that a second answer of the name server changes nothing;
3. every redirect passes the same checks, and none leads from https to http;
4. size, time and number of downloads are limited, a compressed body is refused, and a body that does not begin as an
   image file does is not used;
5. messages have neither addresses nor any part of an answer but its status.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

import h11

from ipex_lookahead.errors import InputError
from ipex_lookahead.serving.failures import ApiError, refused

ANY = "*"
PORTS = {"https": 443, "http": 80}
"""Scheme -> its port, the only one that a host without a port in the list may be reached at."""
REDIRECTS = 3
MOST_URL = 8192
"""Maximum length of a URL in characters."""
_PIECE = 64 << 10
_HEAD_BYTES = 32 << 10
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)", re.ASCII)
_UNSAFE = re.compile(r"[\x00-\x20\x7f\\]|[^\x00-\x7f]")
"""Characters that no URL has, and that programs read differently."""
_BEGINNINGS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"BM")
"""First bytes of image files; WebP files are RIFF files."""
_NOT_PUBLIC = tuple(
    map(
        ipaddress.ip_network,
        (
            "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
            "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24",
            "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
            # Of the IPv6 addresses only 2000::/3 are public; these contain others, or are for other purposes.
            "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
        ),
    )
)  # fmt: skip
_PUBLIC_6 = ipaddress.IPv6Network("2000::/3")

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""(name, port) -> addresses. Raises OSError."""
Connect = Callable[..., Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""``asyncio.open_connection``."""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Limits on the downloads of images.

    Attributes:
        bytes: of one file.
        seconds: of one file, with all redirects.
        request_seconds: of all files of a request.
        at_once: number of downloads of all requests at the same time; others wait.
    """

    bytes: int = 20 << 20
    seconds: float = 10.0
    request_seconds: float = 30.0
    at_once: int = 8


def is_public(address: str) -> bool:
    """Return True for the address of a host that everyone can reach."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:  # also those with a zone, such as "fe80::1%eth0", in some versions of Python
        return False
    if ip.version == 6 and ip not in _PUBLIC_6:  # mapped, NAT64, local, link-local, multicast and unassigned ones
        return False
    return ip.is_global and not any(ip.version == one.version and ip in one for one in _NOT_PUBLIC)


def host_and_port(given: str) -> tuple[str, int | None]:
    """Return an entry of the list: a name or address, and a port if it has one. Raises InputError."""
    option = "--allow-image-host"
    if given == ANY:
        return ANY, None
    try:
        split = urlsplit(f"//{given}")
        host, port = split.hostname, split.port
    except ValueError:
        host, port, split = None, None, urlsplit("")
    wrong = split.path or split.query or split.fragment or "@" in given or _UNSAFE.search(given)
    name = None if host is None or wrong else _name(host)
    if name is None:
        hint = "write NAME or NAME:PORT, without https://; names in other letters as xn--..."
        raise InputError(f"{option}: {given[:100]!r} is not the name of a host", hint=hint)
    return name, port


def _name(host: str) -> str | None:
    """Return a name or an address in its canonical form; None for anything else."""
    with suppress(ValueError):
        return str(ipaddress.ip_address(host))
    name = host.lower().removesuffix(".")
    valid = len(name) <= 253 and all(_LABEL.fullmatch(label) for label in name.split("."))
    return name if valid else None


class ImageHosts:
    """The hosts that images are downloaded from. For the event loop's thread.

    Args:
        allowed: names, with or without a port; ``ANY`` allows all names at the default ports. Empty: nothing is
            downloaded.
        limits: on downloads.
        resolve, connect: replaced by tests.

    Raises InputError for an entry that is not the name of a host.
    """

    def __init__(
        self,
        allowed: Sequence[str] = (),
        limits: FetchLimits | None = None,
        resolve: Resolve | None = None,
        connect: Connect = asyncio.open_connection,
    ) -> None:
        self._allowed = frozenset(map(host_and_port, allowed))
        self.limits = limits or FetchLimits()
        self._resolve = resolve or self._addresses
        self._connect = connect
        self._tls: ssl.SSLContext | None = None
        self._slots: asyncio.Semaphore | None = None
        self._resolvers: ThreadPoolExecutor | None = None  # a name server that does not answer must not block others

    def check(self, url: str, place: str) -> SplitResult:
        """Return the parts of a URL that may be downloaded. Raises ApiError, which names the field."""
        if not self._allowed:
            raise refused(
                place,
                "images are not downloaded; send the image itself, data:image/png;base64,..., or start the server with "
                "--allow-image-host HOST",
            )
        return self._checked(url, place)

    def _checked(self, url: str, place: str, before: str = "") -> SplitResult:
        if len(url) > MOST_URL:
            raise refused(place, f"the URL has {len(url):,} characters; at most {MOST_URL:,} are allowed")
        if _UNSAFE.search(url):
            raise refused(place, "the URL has a space, a backslash, a control character or a letter outside of ASCII")
        try:
            split = urlsplit(url)
            host, port = split.hostname, split.port
        except ValueError:
            raise refused(place, "this is not a valid URL") from None
        scheme = split.scheme
        if scheme not in PORTS:
            raise refused(place, f"the URL begins with {scheme[:20]!r}; it must be a data:, https: or http: URL")
        if before == "https" and scheme != "https":
            raise refused(place, "the host redirects from https to http")
        if "@" in split.netloc:
            raise refused(place, "the URL has a user name or a password; leave it out")
        name = None if host is None else _name(host)
        if name is None:
            raise refused(place, "the URL has no valid host name")
        usual = port is None or port == PORTS[scheme]
        known = (name, port or PORTS[scheme]) in self._allowed or (usual and (name, None) in self._allowed)
        if not known and not (usual and (ANY, None) in self._allowed):
            shown = (name if usual else f"{name}:{port}")[:100]
            said = f"images are not downloaded from {shown!r}; start the server with --allow-image-host {shown}"
            raise refused(place, f"{said}, or send the image as a data: URL")
        return split

    async def files(self, urls: Sequence[tuple[str, str]]) -> list[bytes]:
        """Download files.

        Args:
            urls: URL and field of each.

        Raises ApiError, which names the field of the first that fails.
        """
        if self._slots is None:
            self._slots = asyncio.Semaphore(self.limits.at_once)
        tasks = [asyncio.ensure_future(self._limited(self._slots, url, place)) for url, place in urls]
        try:
            return await asyncio.wait_for(asyncio.gather(*tasks), self.limits.request_seconds)
        except (asyncio.TimeoutError, TimeoutError):
            said = f"downloading the images takes more than {self.limits.request_seconds:g} s"
            raise _failed(urls[0][1], said) from None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _limited(self, slots: asyncio.Semaphore, url: str, place: str) -> bytes:
        async with slots:
            try:
                return await asyncio.wait_for(self._file(url, place), self.limits.seconds)
            except (asyncio.TimeoutError, TimeoutError):
                raise _failed(place, f"downloading the image takes more than {self.limits.seconds:g} s") from None
            except (OSError, EOFError, h11.ProtocolError, ValueError):  # an SSLError is an OSError
                raise _failed(place, "the image could not be downloaded: its host gave no valid answer") from None

    async def _file(self, url: str, place: str) -> bytes:
        before = ""
        for _ in range(1 + REDIRECTS):
            split = self._checked(url, place, before)
            found, following = await self._get(split, place)
            if following is None:
                return found
            before = split.scheme
            url = urljoin(url, following)
        raise _failed(place, f"the host redirects more than {REDIRECTS} times")

    async def _get(self, split: SplitResult, place: str) -> tuple[bytes, str | None]:
        """Return the body of an answer, or where it redirects to."""
        port = split.port or PORTS[split.scheme]
        name = _name(split.hostname or "") or ""
        try:
            addresses = await self._resolve(name, port)
        except OSError:
            raise _failed(place, f"the name of the host {name[:100]!r} cannot be resolved") from None
        if not addresses or not all(map(is_public, addresses)):
            raise refused(place, f"the host {name[:100]!r} is not public; images are downloaded from public hosts only")
        own: dict[str, Any] = {}
        if split.scheme == "https":
            self._tls = self._tls or ssl.create_default_context()
            own = {"ssl": self._tls, "server_hostname": name}
        reader, writer = await self._connect(addresses[0], port, limit=_PIECE, **own)
        try:
            return await self._exchange(reader, writer, split, name, port, place)
        finally:
            writer.close()

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        split: SplitResult,
        name: str,
        port: int,
        place: str,
    ) -> tuple[bytes, str | None]:
        http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)
        host = f"[{name}]" if ":" in name else name
        headers = {
            "Host": host if port == PORTS[split.scheme] else f"{host}:{port}",
            "Accept": "image/*",
            "Accept-Encoding": "identity",
            "User-Agent": "ipex-lookahead",
            "Connection": "close",
        }
        target = (split.path or "/") + (f"?{split.query}" if split.query else "")
        writer.write(http.send(h11.Request(method="GET", target=target, headers=[*headers.items()])) or b"")
        writer.write(http.send(h11.EndOfMessage()) or b"")
        await writer.drain()

        async def event() -> Any:
            while (found := http.next_event()) is h11.NEED_DATA:
                http.receive_data(await reader.read(_PIECE))
            return found

        informed = 0
        while isinstance(response := await event(), h11.InformationalResponse):
            informed += 1
            if informed > REDIRECTS:
                raise ValueError
        if not isinstance(response, h11.Response):
            raise EOFError
        given = {key.decode("ascii"): value.decode("latin-1") for key, value in response.headers}
        status = response.status_code
        if status in (301, 302, 303, 307, 308) and given.get("location"):
            return b"", given["location"]
        if status != 200:
            raise _failed(place, f"the image could not be downloaded: its host answered with status {status}")
        if given.get("content-encoding", "identity").lower() != "identity":
            raise _failed(place, "the image could not be downloaded: its host sent it compressed")
        most = self.limits.bytes
        length = given.get("content-length", "0")
        body = bytearray()
        while int(length) <= most and len(body) <= most:
            part = await event()
            if isinstance(part, h11.EndOfMessage):
                return bytes(body), None
            if not isinstance(part, h11.Data):
                raise EOFError
            body += part.data
            if len(body) >= 12 and not _is_image(body):
                raise _failed(place, "the URL is not that of a JPEG, PNG, WebP, GIF or BMP image")
        raise _failed(place, f"the image has more than {most:,} bytes, which is the limit for downloads")

    async def _addresses(self, name: str, port: int) -> Sequence[str]:
        if self._resolvers is None:
            self._resolvers = ThreadPoolExecutor(4, "image hosts")

        def resolve() -> list[str]:
            found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
            return list(dict.fromkeys(str(one[4][0]) for one in found))

        return await asyncio.get_running_loop().run_in_executor(self._resolvers, resolve)


def _is_image(body: bytes | bytearray) -> bool:
    return body.startswith(_BEGINNINGS) or (body[:4] == b"RIFF" and body[8:12] == b"WEBP")


def _failed(place: str, said: str) -> ApiError:
    return ApiError(400, f"{place}: {said}", param=place, code="image_not_downloaded")
