"""Requests made from the published document itself, right and wrong ones: never a 500, never a hang."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

from ipex_lookahead.serving.app import make_app
from ipex_lookahead.serving.failures import COHERE, TEI

EXAMPLES = 300 if os.environ.get("IPEX_LOOKAHEAD_GATES") == "large" else 25
"""Requests of a kind to each path."""


@pytest.mark.parametrize("kind", ["positive", "negative"])
def test_whatever_is_asked(client, server, kind):
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    answered = set()
    for found in schemathesis.openapi.from_asgi("/openapi.json", make_app(server)).get_all_operations():
        operation = found.ok()

        @settings(
            max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(operation.as_strategy(generation_mode=schemathesis.GenerationMode(kind)))
        def ask(case: Any) -> None:
            request = case.as_transport_kwargs(base_url="http://localhost")
            request.pop("cookies", None)
            answer = client.request(**request)
            assert answer.status_code < 500, (request, answer.text)
            answered.add((case.path, answer.status_code))
            if answer.status_code >= 400:
                told = answer.json()
                bare = case.path.startswith("/api/") or case.path in TEI
                assert (
                    told["message"]
                    if case.path.startswith(COHERE)
                    else told["error"]
                    if bare
                    else told["error"]["message"]
                )

        try:
            ask()
        except Unsatisfiable:  # a path without fields has no wrong requests
            assert kind == "negative"
    assert {path for path, _ in answered} >= {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
    }
    assert (200 if kind == "positive" else 400) in {status for _, status in answered}
