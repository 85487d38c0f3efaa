"""Allowed values of the header Host, as protection against DNS rebinding."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]", "::1"})
ANY = "*"


@dataclass(frozen=True, slots=True)
class Hosts:
    """Names that a server answers to.

    A browser sends the name that it looked up. The owner of a name can make it resolve to this machine
    ("DNS rebinding") and then read the answers; addresses cannot be redirected, so they are harmless.

    Attributes:
        names: lower case, without port; ``ANY`` answers every name.
        addresses: whether any IP address is answered.
    """

    names: frozenset[str] = frozenset({ANY})
    addresses: bool = False

    @classmethod
    def of(cls, listening: str, allowed: Sequence[str] = ()) -> Hosts:
        """For a server that listens on an address: this machine's names, on the loopback those alone, and ``allowed``.

        Args:
            listening: the address, or a name of it.
            allowed: further names, for those behind a proxy; ``ANY`` answers every name.
        """
        own = LOOPBACK if listening in LOOPBACK else LOOPBACK | {listening.lower(), *_machine()}
        return cls(own | {name.lower() for name in allowed}, addresses=listening not in LOOPBACK)

    def answer(self, header: str) -> bool:
        """Whether a request with this Host header is answered."""
        host = re.sub(r":\d+$", "", header).lower()
        return ANY in self.names or host in self.names or (self.addresses and _is_address(host))


def _machine() -> set[str]:
    """What this machine is called in its network."""
    name = socket.gethostname().lower()
    return {name, name.partition(".")[0], f"{name.partition('.')[0]}.local"} - {""}


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host[1:-1] if host[:1] == "[" and host[-1:] == "]" else host)
    except ValueError:
        return False
    return True
