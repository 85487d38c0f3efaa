"""One program of ``benchmarks.compare`` in its own process: a line of JSON in, a line of JSON out.

    python child.py FILE.py

The first line is what ``load`` of the file gets: ``model`` (a path), ``threads``, ``lookahead`` (drafted tokens),
``context`` (tokens to make room for), ``low_bit`` and ``llama_server`` (a path, or null). The reply has ``version``,
``weights`` and ``modes``. Each further line is a ``call``: ``answer`` has ``prompt`` (token ids), ``max_new_tokens``,
``end`` (ids that end an answer), ``mode`` and ``sampling``; the reply is that of ``Loaded.answer``. Ours has further
calls. What fails is answered by
``error``. The process ends with its input.

Whatever the libraries print goes to standard error: standard output carries the protocol alone. Only the standard
library is imported here, and Python 3.9 must do.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from typing import Any, Protocol


class Loaded(Protocol):
    """A model that a peer's ``load`` has made."""

    weights: str
    modes: dict[str, str]
    """Kind of speculation -> description; "lookahead" is the program's own lookup in the text."""

    def answer(
        self, prompt: list[int], max_new_tokens: int, end: list[int], mode: str, sampling: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return an answer without speculation ("plain") or with one kind of it, a key of ``modes``.

        Args:
            prompt: Token ids.
            max_new_tokens: Maximum length of the answer.
            end: Token ids that end an answer.
            mode: See above.
            sampling: ``temperature`` and ``seed``, with every other filter off; None is greedy decoding.

        Returns:
            ``tokens`` (ids, at most ``max_new_tokens``, the end token included), ``first_tokens`` and
            ``first_seconds`` (how many the first piece had, and when it came), ``seconds`` (of the whole answer).
        """
        ...


def main() -> None:
    """See the top of the file."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    # Its folder is not a place for imports: a peer's file is called like the package that it runs.
    sys.path.pop(0)
    loaded: Any = None
    for line in sys.stdin:
        try:
            request = json.loads(line)
            if loaded is None:
                peer = module_of(sys.argv[1])
                loaded = peer.load(request)
                version = version_of(peer.DISTRIBUTION) or getattr(loaded, "version", "?")
                reply = {"version": version, "weights": loaded.weights, "modes": loaded.modes}
            else:
                reply = getattr(loaded, request.pop("call"))(**request)
        except ModuleNotFoundError as error:
            reply = {"error": str(error), "missing": error.name}
        except Exception as error:  # whatever a foreign package raises: the parent names it and goes on without
            reply = {"error": " ".join(f"{type(error).__name__}: {error}".split())}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def module_of(file: str) -> Any:
    """The peer's file as a module of a name that no package has."""
    spec = importlib.util.spec_from_file_location("ipex_lookahead_peer", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def version_of(distribution: str) -> str:
    """As it is installed here; "" where it is run from its sources."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


if __name__ == "__main__":
    main()
