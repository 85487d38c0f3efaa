"""Bodies: JSON alone is read, every fault names its field, and compressed ones stay within the limits."""

from __future__ import annotations

import gzip
import json
import zlib
from contextlib import suppress
from typing import Any

import pytest
from fastapi.routing import APIRoute
from hypothesis import given, settings
from hypothesis import strategies as st

from ipex_lookahead.conversation.calls.base import MAX_DEPTH, as_json, json_of
from ipex_lookahead.serving.app import APIS
from ipex_lookahead.serving.body import JsonRoute, _Inflater, parsed
from ipex_lookahead.serving.failures import ApiError
from tests.support.server_attacks import CALLED, CHAT, ODD, SOUND

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
MARK = "the place of the fault"


def nested(levels: int, inner: str = "1") -> str:
    return "[" * levels + inner + "]" * levels


@given(VALUES, st.booleans(), st.booleans())
@settings(deadline=None)
def test_json_is_read_as_it_is(value: Any, escaped: bool, marked: bool) -> None:
    text = json.dumps(value, ensure_ascii=escaped)
    assert parsed(("\ufeff" * marked + text).encode()) == value
    assert parsed(text) == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("NaN", "NaN"), ("Infinity", "Infinity"), ("-Infinity", "-Infinity"), ("1e400", "too large"),
        ("-1e400", "too large"), ("9" * 10_000, "10000 characters"), ("0." + "1" * 5000, "5002 characters"),
        (r'"\ud800"', "surrogate"), (r'{"\udc00": 1}', "surrogate"), (r'"\ude42\ud83d"', "surrogate"),
        ('{"a": 1, "a": 1}', "'a' twice"), (nested(950), "deeper"), (nested(5000), "deeper"),
        (r'{"arguments": "{\"a\": \"\\ud800\"}"}', "surrogate"),
        (json.dumps({"arguments": nested(985)}), "deeper"), (json.dumps({"arguments": nested(5000)}), "deeper"),
    ],
    ids=lambda text: text[:30],
)  # fmt: skip
@given(st.lists(st.integers(0, 3) | st.sampled_from(["a", "messages", "x y"]), max_size=5))
@settings(deadline=None, max_examples=20)
def test_a_fault_is_refused_with_its_path(text: str, problem: str, path: list[int | str]) -> None:
    value: Any = MARK
    for part in reversed(path):
        value = [*[0] * part, value] if isinstance(part, int) else {"before": "\U0001f642", part: value, "z": [1]}
    whole = json.dumps({"field": value}).replace(json.dumps(MARK), text)
    with pytest.raises(ApiError) as refused:
        parsed(whole.encode())
    assert refused.value.status == 400
    assert problem in refused.value.message
    assert refused.value.param is not None
    assert refused.value.param.startswith(".".join(map(str, ["field", *path])))
    with pytest.raises(ApiError) as refused:
        parsed(whole, "guided_json")
    assert str(refused.value.param).startswith("guided_json.field")


def test_depth_is_counted_from_the_body() -> None:
    assert parsed(nested(MAX_DEPTH)) is not None
    with pytest.raises(ApiError):
        parsed(nested(MAX_DEPTH + 1))
    assert parsed(json.dumps({"arguments": nested(MAX_DEPTH)})) is not None


@pytest.mark.parametrize(
    "text", ["{", "NaN", '{"a": 1e400}', "9" * 5000, "\ufeff{}", '{"a": "[[[', "[" * 200, '{"a": 1, "a": 2}']
)
def test_earlier_arguments_that_are_no_json_stay_text(text: str) -> None:
    """Models write such, and clients hand it back."""
    assert parsed(json.dumps({"arguments": text})) == {"arguments": text}


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff\xfe{\x00}\x00", "{}".encode("utf-16"), b"\x00{}", b'{"a": "\xed\xa0\x80"}']
)
def test_other_bytes_are_no_json(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"decode|Expecting"):
        parsed(body)


def test_calls_that_a_model_wrote_can_be_handed_back() -> None:
    assert json_of(nested(MAX_DEPTH)) is not None
    assert json_of(nested(MAX_DEPTH + 1)) is None
    assert json_of(nested(5000)) is None
    assert as_json({"a": "\ud800"}) == '{"a": "\ufffd"}'


def test_every_body_is_read_here() -> None:
    routes = [one for api in APIS for one in api.router.routes if isinstance(one, APIRoute) and one.body_field]
    assert len(routes) > 10
    assert all(isinstance(route, JsonRoute) for route in routes)


@pytest.mark.parametrize("path", sorted({path for path, _ in SOUND}))
def test_faults_name_the_field_in_every_api(client: Any, path: str) -> None:
    body = next(body for where, body in SOUND if where == path)
    for odd in ODD:
        if odd.status != 400:
            continue
        text = json.dumps({**body, "metadata": {"a": MARK}}).encode().replace(json.dumps(MARK).encode(), odd.text)
        answer = client.post(path, content=text, headers={"content-type": "application/json"})
        assert answer.status_code == 400, (odd, answer.text)
        assert "metadata.a" in answer.text or "not valid JSON" in answer.text, (odd, answer.text)


def test_arguments_of_earlier_calls_are_never_a_500(client: Any) -> None:
    for odd in ODD:
        messages = json.loads(json.dumps(CALLED))
        messages[1]["tool_calls"][0]["function"]["arguments"] = f'{{"a": {odd.text.decode("utf-8", "replace")}}}'
        answer = client.post(CHAT, json={"messages": messages, "max_tokens": 1})
        assert answer.status_code in (200, 400), (odd, answer.text)


# ---- compressed bodies -----------------------------------------------------------------------------------------------


def compressed(coding: str, data: bytes) -> bytes:
    if coding == "gzip":
        return gzip.compress(data)
    made = zlib.compressobj(wbits=-zlib.MAX_WBITS if coding == "raw" else zlib.MAX_WBITS)
    return made.compress(data) + made.flush()


def inflated(coding: str, data: bytes, cuts: list[int], limit: int) -> bytes:
    inflater = _Inflater("gzip" if coding == "gzip" else "deflate", limit)
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    pieces = [data[at:to] for at, to in zip(places, places[1:], strict=False)]
    return b"".join([inflater.put(piece, last=False) for piece in pieces] + [inflater.put(b"", last=True)])


@given(st.sampled_from(["gzip", "zlib", "raw"]), st.binary(max_size=300), st.lists(st.integers(0, 10**6), max_size=6))
@settings(deadline=None)
def test_bodies_come_out_as_they_went_in(coding: str, data: bytes, cuts: list[int]) -> None:
    whole = compressed(coding, data)
    assert inflated(coding, whole, cuts, 300) == data
    if len(data) > 1:
        assert len(inflated(coding, whole, cuts, len(data) - 2)) == len(data) - 1, "one byte too many, and no more"
    for broken in (whole[:-1], whole + b"x"):
        with pytest.raises(ApiError, match="ends too early|after its end"):
            inflated(coding, broken, cuts, 300)


@given(st.binary(min_size=1, max_size=100), st.sampled_from(["gzip", "deflate"]))
@settings(deadline=None)
def test_any_bytes_are_refused_or_bounded(data: bytes, coding: str) -> None:
    with suppress(ApiError):
        assert len(_Inflater(coding, 1000).put(data, last=True)) <= 1001


def test_compressed_bodies_are_answered_as_plain_ones(client: Any, server: Any) -> None:
    body = json.dumps({"content": "x" * 1000}).encode()
    plain = client.post("/tokenize", content=body)

    def sent(data: bytes, coding: str) -> Any:
        return client.post("/tokenize", content=data, headers={"content-encoding": coding})

    for name, coding in (("gzip", "gzip"), ("gzip", "X-GZIP"), ("zlib", "deflate"), ("raw", "deflate")):
        answer = sent(compressed(name, body), coding)
        assert (answer.status_code, answer.json()) == (200, plain.json())
    assert sent(body, "identity").status_code == 200
    for coding in ("br", "zstd", "gzip, gzip", "gzip, identity", "nonsense\xff", "gzip,"):
        answer = sent(body, coding.encode("latin-1"))
        assert answer.status_code == 415
        assert answer.headers["accept-encoding"] == "gzip, deflate"
        assert "Content-Encoding" in answer.json()["error"]["message"]
    for broken in (b"", body, compressed("gzip", body)[:-4], compressed("gzip", body)[:40] + b"?" * 40):
        answer = sent(broken, "gzip")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Content-Encoding")
    bomb = compressed("gzip", b" " * (server.limits.body_bytes + 1))
    assert len(bomb) < server.limits.body_bytes // 500
    assert sent(bomb, "gzip").status_code == 413
