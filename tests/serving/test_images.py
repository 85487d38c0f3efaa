"""Images in the requests of all APIs: equal answers, token counts, tools, conversations, limits and hostile files.

The file has more than 500 lines because each test runs over the same table of APIs and models.
"""

from __future__ import annotations

import base64
import contextlib
import json
import struct
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", minversion="5.23")

from starlette.testclient import TestClient
from tokenizers import AddedToken

from ipex_lookahead.errors import InputError
from ipex_lookahead.llm import LLM
from ipex_lookahead.runtime.loading import load_text_model
from ipex_lookahead.serving.image_hosts import ImageHosts
from tests.serving.conftest import LIMITS, serving
from tests.serving.test_image_hosts import Web, ok
from tests.support.chat_tokenizer import chat_tokenizer
from tests.vision.folders import saved
from tests.vision.test_llm_images import TOKENS, WORDS, picture
from tests.vision.test_towers import processor

TEMPLATE = (
    "{% if tools %}<|im_start|>system\n<tools>{% for one in tools %}{{ one | tojson }}{% endfor %}</tools><|im_end|>\n"
    "{% endif %}{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for part in m['content'] %}{% if part['type'] == 'image' %}IMAGE{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}{% for call in m['tool_calls'] or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT_RESULTS = TEMPLATE.replace("m['content'] is string", "m['role'] == 'tool' or m['content'] is string")
"""A template that writes results of tools as text."""
QUESTION = "what is it?"
SHORT: dict[str, Any] = {"max_tokens": 10, "temperature": 0}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def write_folder(folder: Path, kind: str, template: str = TEMPLATE) -> Path:
    """Write a tiny model of a kind with a chat template."""
    saved(kind, folder, processor(kind))
    family = kind[:6] if kind.startswith("gemma4") else "qwen3"
    tokenizer = chat_tokenizer()
    tokenizer.add_tokens([AddedToken(one, special=True) for one in TOKENS[family]], special_tokens=True)
    tokenizer.chat_template = template.replace("IMAGE", WORDS[family])
    tokenizer.save_pretrained(folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": 2}')
    return folder


@pytest.fixture(scope="module", params=["gemma4", "qwen3_5"])
def sighted(request, tmp_path_factory) -> Path:
    return write_folder(tmp_path_factory.mktemp("images") / request.param, request.param)


@pytest.fixture(scope="module")
def web() -> Web:
    return Web({"/a.png": ok(picture(1)), "/large": ok(bytes(2000)), "/text": ok(b"secret text of a host")})


@contextlib.contextmanager
def server_of(folder: Path, **settings: Any) -> Iterator[TestClient]:
    model = load_text_model(str(folder), engine="native", threads=1, progress=False, max_context=4096)
    with serving(model, **{"drafting": {"lookahead": 3}, **settings}) as client:
        yield client


@pytest.fixture(scope="module")
def seeing(sighted, web) -> Iterator[TestClient]:
    hosts = ImageHosts(["a.com"], resolve=web.resolve, connect=web.connect)
    with server_of(sighted, image_hosts=hosts) as client:
        yield client


@pytest.fixture(scope="module")
def other_folder(tmp_path_factory) -> Path:
    return write_folder(tmp_path_factory.mktemp("gemma"), "gemma4", TEXT_RESULTS)


@pytest.fixture(scope="module")
def gemma(other_folder, web) -> Iterator[TestClient]:
    """A server with a template that writes results of tools as text."""
    with server_of(other_folder, image_hosts=ImageHosts(["a.com"], resolve=web.resolve, connect=web.connect)) as client:
        yield client


def text64(file: bytes) -> str:
    return base64.b64encode(file).decode()


def url_of(file: bytes) -> str:
    return "data:image/png;base64," + text64(file)


def part_of(file: bytes | str, **more: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": file if isinstance(file, str) else url_of(file), **more}}


def block_of(file: bytes) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": text64(file)}}


def user(*parts: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": one} if isinstance(one, str) else one for one in parts]
    return {"role": "user", "content": content}


def post(client: TestClient, path: str, **body: Any) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def chat(client: TestClient, *messages: Any, **fields: Any) -> tuple[str, int]:
    """The text of an answer, and the number of its prompt's tokens."""
    found = post(client, "/v1/chat/completions", messages=messages, **{**SHORT, **fields})
    return found["choices"][0]["message"]["content"], found["usage"]["prompt_tokens"]


def error(client: TestClient, path: str = "/v1/chat/completions", status: int = 400, **body: Any) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()["error"]


def refused(client: TestClient, *parts: Any) -> Any:
    return error(client, messages=[user(*parts, QUESTION)], max_tokens=1)


def count(client: TestClient, *messages: Any) -> int:
    return int(post(client, "/tokenize", messages=messages)["count"])


# ---- answers ---------------------------------------------------------------------------------------------------------


def test_all_apis_give_the_answer_of_python(seeing, sighted):
    files = [picture(1), picture(2, (60, 90))]
    with LLM(sighted, threads=2, progress=False) as llm:
        wanted = llm.chat(QUESTION, images=files, max_new_tokens=10, lookahead=0, temperature=0)
        other = llm.chat(QUESTION, images=files[::-1], max_new_tokens=10, lookahead=0, temperature=0)
    assert wanted.text != other.text
    text, tokens = chat(seeing, user(*map(part_of, files), QUESTION))
    assert (text, tokens) == (wanted.text, wanted.stats.prompt_tokens)
    plain = {"type": "image_url", "image_url": url_of(files[0])}
    assert chat(seeing, user(plain, part_of(files[1]), QUESTION)) == (text, tokens)
    assert chat(seeing, user(part_of("https://a.com/a.png"), part_of(files[1]), QUESTION)) == (text, tokens)

    given = [{"type": "input_image", "image_url": url_of(one)} for one in files]
    message = {"role": "user", "content": [*given, {"type": "input_text", "text": QUESTION}]}
    found = post(seeing, "/v1/responses", input=[message], max_output_tokens=10, temperature=0)
    assert found["output"][0]["content"][0]["text"] == text
    assert found["usage"]["input_tokens"] == tokens

    for blocks in (
        map(block_of, files),
        [{"type": "image", "source": {"type": "url", "url": url_of(f)}} for f in files],
    ):
        found = post(seeing, "/v1/messages", messages=[user(*blocks, QUESTION)], **SHORT)
        assert found["content"][0]["text"] == text
        assert found["usage"]["input_tokens"] + found["usage"]["cache_read_input_tokens"] == tokens

    ollama: dict[str, Any] = {"model": "tiny", "stream": False, "options": {"num_predict": 10, "temperature": 0}}
    images = [text64(one) for one in files]
    found = post(seeing, "/api/chat", messages=[{"role": "user", "content": QUESTION, "images": images}], **ollama)
    assert (found["message"]["content"], found["prompt_eval_count"]) == (text, tokens)
    found = post(seeing, "/api/generate", prompt=QUESTION, images=images, **ollama)
    assert (found["response"], found["prompt_eval_count"]) == (text, tokens)


def test_prompts_without_a_template(seeing):
    """llama-server's way: images at marks in a text."""
    files = [picture(1), picture(2, (60, 90))]
    text, tokens = chat(seeing, user("a ", part_of(files[0]), " b ", part_of(files[1])))
    raw = "<|im_start|>user\na <__media__> b <__media__><|im_end|>\n<|im_start|>assistant\n"
    data = [text64(one) for one in files]
    given: dict[str, Any] = {"n_predict": 10, "temperature": 0}
    found = post(seeing, "/completion", prompt={"prompt_string": raw, "multimodal_data": data}, **given)
    assert (found["content"], found["tokens_evaluated"], found["prompt"]) == (text, tokens, raw)
    plain = post(seeing, "/completion", prompt={"prompt_string": "a"}, **given)
    assert plain["content"] == post(seeing, "/completion", prompt="a", **given)["content"]
    word = seeing.app.state.server.served.spelling(seeing.app.state.server.served.image_token)
    for wrong, said in (
        ({"prompt_string": raw, "multimodal_data": data[:1]}, "<__media__> 2 times for 1 images"),
        (
            {"prompt_string": raw + word, "multimodal_data": data},
            "the model's placeholder for images; write <__media__>",
        ),
        ({"prompt_string": raw, "multimodal_data": [4]}, "must be a list of images in base64"),
        ({"multimodal_data": data}, "prompt.prompt_string"),
        ({"prompt_string": "<__media__>", "multimodal_data": ["aGk="]}, "prompt.multimodal_data.0: the file is not"),
        ({"prompt_string": "a", "images": []}, "prompt.images: there is no such field"),
    ):
        assert said in error(seeing, "/completion", prompt=wrong, n_predict=1)["message"]
    assert seeing.get("/props").json()["media_marker"] == "<__media__>"


def test_streams_and_several_answers(seeing):
    given = {"messages": [user(part_of(picture(3)), QUESTION)], "seed": 5, "max_tokens": 10, "temperature": 1.0}
    whole = post(seeing, "/v1/chat/completions", n=3, **given)
    assert whole["usage"]["prompt_tokens"] == count(seeing, *given["messages"])
    body = {**given, "stream": True, "stream_options": {"include_usage": True}}
    with seeing.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]
    text = "".join(one["choices"][0]["delta"].get("content") or "" for one in lines if one["choices"])
    assert text == whole["choices"][0]["message"]["content"]
    assert lines[-1]["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]


def test_counting_reads_headers_only(seeing, monkeypatch):
    files = [picture(1), picture(2, (60, 90))]
    messages = [user(*map(part_of, files), QUESTION)]
    _, tokens = chat(seeing, *messages)
    reader = seeing.app.state.server.served.vision.reader
    monkeypatch.setattr(reader, "tiles", None)
    assert count(seeing, *messages) == tokens
    assert len(post(seeing, "/apply-template", messages=messages)["tokens"]) == tokens
    blocks = [user(*map(block_of, files), QUESTION)]
    assert post(seeing, "/v1/messages/count_tokens", messages=blocks) == {"input_tokens": tokens}
    parts = [{"type": "input_image", "image_url": url_of(one)} for one in files]
    given = [{"role": "user", "content": [*parts, {"type": "input_text", "text": QUESTION}]}]
    assert post(seeing, "/v1/responses/input_tokens", input=given)["input_tokens"] == tokens


def test_detail_is_a_number_of_tokens(seeing):
    large = picture(1, (900, 700))
    found = {one: count(seeing, user(part_of(large, detail=one), QUESTION)) for one in ("auto", "low", "high")}
    vision = seeing.app.state.server.served.vision
    rows = {one: vision.layout(large, one).tokens for one in found}
    assert len({tokens - rows[one] for one, tokens in found.items()}) == 1
    assert chat(seeing, user(part_of(large, detail="low"), QUESTION))[1] == found["low"]
    image = {"type": "input_image", "image_url": url_of(large), "detail": "low"}
    message = {"role": "user", "content": [image, {"type": "input_text", "text": QUESTION}]}
    assert post(seeing, "/v1/responses/input_tokens", input=[message])["input_tokens"] == found["low"]
    wrong = refused(seeing, part_of(large, detail="most"))
    assert wrong["message"].startswith("messages.0.content.0.image_url.detail: it is 'most'")


def test_a_crowd_gets_the_answers_of_single_requests(seeing, sighted):
    """Images next to texts and other images, with and without a prefix in the cache."""
    turns: list[list[Any]] = [[user(part_of(picture(seed % 4)), f"{seed % 3}?")] for seed in range(8)]
    turns += [[user(part_of(picture(seed)), part_of(picture(seed + 1)), QUESTION)] for seed in range(2)]
    turns += [[{"role": "user", "content": f"question {number}"}] for number in range(6)]
    with server_of(sighted, drafting={"lookahead": 0}) as alone:
        wanted = [chat(alone, *one) for one in turns]
    assert len(set(wanted)) > 7
    with ThreadPoolExecutor(16) as pool:
        for _ in range(2):
            assert list(pool.map(lambda one: chat(seeing, *one), turns)) == wanted


# ---- conversations and tools -----------------------------------------------------------------------------------------


def test_later_turns_find_images_in_the_prefix_cache(seeing):
    file = picture(30, (200, 200))
    first = post(seeing, "/v1/chat/completions", messages=[user(part_of(file), QUESTION)], **SHORT)
    said = {"role": "assistant", "content": first["choices"][0]["message"]["content"]}
    turns = [user(part_of(file), QUESTION), said, user("and?")]
    second = post(seeing, "/v1/chat/completions", messages=turns, **SHORT)
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64
    turns[0] = user(part_of(picture(31, (200, 200))), QUESTION)
    other = post(seeing, "/v1/chat/completions", messages=turns, **SHORT)
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_responses_remember_images(seeing):
    parts = [{"type": "input_image", "image_url": url_of(picture(8))}, {"type": "input_text", "text": QUESTION}]
    given: dict[str, Any] = {"max_output_tokens": 6, "temperature": 0}
    first = post(seeing, "/v1/responses", input=[{"role": "user", "content": parts}], **given)
    second = post(seeing, "/v1/responses", input="and?", previous_response_id=first["id"], **given)
    whole = [{"role": "user", "content": parts}, *first["output"], {"role": "user", "content": "and?"}]
    assert second["output"][0]["content"] == post(seeing, "/v1/responses", input=whole, **given)["output"][0]["content"]
    listed = seeing.get(f"/v1/responses/{second['id']}/input_items", params={"order": "asc"}).json()["data"]
    assert listed[0]["content"] == parts


def test_dropped_messages_take_their_images_with_them(seeing):
    file, other = picture(1, (300, 300)), picture(2, (300, 300))
    one = count(seeing, user(part_of(file), QUESTION))
    number = 4096 // one + 6
    turns: list[Any] = []
    for _ in range(number):
        image = {"type": "input_image", "image_url": url_of(file)}
        turns += [{"role": "user", "content": [image]}, {"role": "assistant", "content": "yes"}]
    image = {"type": "input_image", "image_url": url_of(other)}
    turns.append({"role": "user", "content": [image, {"type": "input_text", "text": QUESTION}]})
    given: dict[str, Any] = {"input": turns, "max_output_tokens": 8, "temperature": 0}
    assert "context" in error(seeing, "/v1/responses", **given)["message"]
    found = post(seeing, "/v1/responses", truncation="auto", **given)
    counts = [seeing.post("/v1/responses/input_tokens", json={"input": turns[at:]}) for at in range(0, len(turns), 2)]
    kept = 2 * next(at for at, one in enumerate(counts) if one.json().get("input_tokens", 4096) + 8 <= 4096)
    assert 0 < kept < len(turns) - 1
    again = post(seeing, "/v1/responses", **{**given, "input": turns[kept:]})
    assert (found["output"][0]["content"], found["usage"]["input_tokens"]) == (
        again["output"][0]["content"],
        again["usage"]["input_tokens"],
    )


CALLED = {"role": "assistant", "tool_calls": [
    {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}},
    {"id": "c2", "type": "function", "function": {"name": "look", "arguments": "{}"}},
]}  # fmt: skip


def result(number: int, *parts: Any) -> dict[str, Any]:
    return {**user(*parts), "role": "tool", "tool_call_id": f"c{number}"}


def prompt(client: TestClient, *messages: Any, **fields: Any) -> str:
    return str(post(client, "/apply-template", messages=messages, **fields)["prompt"])


def rows_of(client: TestClient, *messages: Any) -> list[int]:
    """The number of placeholders of each image, in the order of the prompt."""
    ids = post(client, "/apply-template", messages=messages, tools=TOOLS)["tokens"]
    token = client.app.state.server.served.image_token
    return [len(list(run)) for one, run in groupby(ids) if one == token]


def grid(client: TestClient, file: bytes) -> int:
    return int(client.app.state.server.served.vision.layout(file).tokens)


def test_results_of_tools_have_images(seeing):
    check_results(seeing, native=True)


def test_images_of_results_are_behind_them(gemma):
    """In the user's message, for a template that writes results as text."""
    check_results(gemma, native=False)


def check_results(client: TestClient, *, native: bool) -> None:
    one, two, three = picture(1, (40, 40)), picture(2, (120, 40)), picture(3, (200, 40))
    turns = [user("go"), CALLED, result(1, "a", part_of(one)), result(2, part_of(two)), user(part_of(three), QUESTION)]
    text, tokens = chat(client, *turns, tools=TOOLS)
    if not native:
        moved = [
            *turns[:2], result(1, "a[image]"), result(2, "[image]"),
            user(part_of(one), part_of(two), part_of(three), QUESTION),
        ]  # fmt: skip
        assert chat(client, *moved, tools=TOOLS) == (text, tokens)
        assert prompt(client, *turns[:4], tools=TOOLS) == prompt(
            client, *moved[:4], user(part_of(one), part_of(two)), tools=TOOLS
        )
    assert rows_of(client, *turns) == [grid(client, one), grid(client, two), grid(client, three)]
    swapped = [*turns[:2], result(1, "a", part_of(two)), result(2, part_of(one)), turns[4]]
    assert rows_of(client, *swapped) == [grid(client, two), grid(client, one), grid(client, three)]

    uses = [{"type": "tool_use", "id": f"c{number}", "name": "look", "input": {}} for number in (1, 2)]
    results = [
        {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "a"}, block_of(one)]},
        {"type": "tool_result", "tool_use_id": "c2", "content": [block_of(two)]},
    ]
    # Results come first in the prompt, wherever they are in a turn.
    blocks = [results[0], block_of(three), {"type": "text", "text": QUESTION}, results[1]]
    anthropic = {
        "messages": [user("go"), {"role": "assistant", "content": uses}, {"role": "user", "content": blocks}],
        "tools": [{"name": "look", "input_schema": {"type": "object"}}],
    }
    found = post(client, "/v1/messages", **anthropic, **SHORT)
    assert [one["text"] for one in found["content"] if one["type"] == "text"] == [text]

    calls = [{"type": "function_call", "call_id": f"c{n}", "name": "look", "arguments": "{}"} for n in (1, 2)]
    outputs = [
        [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": url_of(one)}],
        [{"type": "input_image", "image_url": url_of(two)}],
    ]
    items = [
        {"role": "user", "content": "go"}, *calls,
        *({"type": "function_call_output", "call_id": f"c{n}", "output": one} for n, one in enumerate(outputs, 1)),
        {"role": "user", "content": [
            {"type": "input_image", "image_url": url_of(three)}, {"type": "input_text", "text": QUESTION},
        ]},
    ]  # fmt: skip
    tools = [{"type": "function", **TOOLS[0]["function"]}]
    found = post(client, "/v1/responses", input=items, tools=tools, max_output_tokens=10, temperature=0)
    assert found["output"][0]["content"][0]["text"] == text
    assert found["usage"]["input_tokens"] == tokens


def test_a_typed_placeholder_is_text(seeing):
    server = seeing.app.state.server
    word = server.served.tokens[server.served.image_token].decode()
    file = part_of(picture(5))
    alone, without = count(seeing, user(file, "x")), count(seeing, user("x"))
    for text in (word, f"{word}x", f"a {word} {word}"):
        assert count(seeing, user(file, text)) - alone == len(text) - 1  # a token for each byte
        assert count(seeing, user(text, file)) - alone == len(text) - 1
        assert count(seeing, user(text)) - without == len(text) - 1
        assert chat(seeing, user(text, file))[1] == alone + len(text) - 1
    turns = [user("a"), {"role": "assistant", "content": word}, user(file, "x")]
    assert (
        count(seeing, *turns)
        == count(seeing, turns[0], {"role": "assistant", "content": "y"}, turns[2]) + len(word) - 1
    )


def test_a_typed_placeholder_is_refused_where_texts_have_control_tokens(seeing, monkeypatch):
    served = seeing.app.state.server.served
    word = served.tokens[served.image_token].decode()
    monkeypatch.setattr(served.tokenizer, "special_tokens_in_content", True)
    monkeypatch.delattr(served, "keeps_content_apart", raising=False)
    served.__dict__["keeps_content_apart"] = False
    try:
        for messages in (
            [user(word, part_of(picture(5)))],
            [{"role": "system", "content": word}, user(part_of(picture(5)))],
        ):
            said = error(seeing, messages=messages, max_tokens=1)["message"]
            assert f"has {word}, the model's placeholder for images; remove it" in said
    finally:
        served.__dict__.pop("keeps_content_apart")


# ---- what is told of a model -----------------------------------------------------------------------------------------


def test_what_is_listed(seeing, client):
    listed = seeing.get("/v1/models").json()["data"][0]["meta"]["images"]
    assert listed == {"count": 64, "bytes": 32 << 20, "pixels": 64_000_000, "body_bytes": 64 << 20}
    assert client.get("/v1/models").json()["data"][0]["meta"]["images"] is None
    for one, sees in ((seeing, True), (client, False)):
        assert one.get("/props").json()["modalities"]["vision"] is sees
        assert ("vision" in post(one, "/api/show", model="tiny")["capabilities"]) is sees


def test_metrics_count_images(seeing):
    def value(name: str) -> float:
        lines = seeing.get("/metrics").text.splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith(f"ipex_lookahead_{name}_total ")))

    before = value("images"), value("image_tokens")
    chat(seeing, user(part_of(picture(1)), part_of(picture(2)), QUESTION))
    rows = grid(seeing, picture(1))
    assert (value("images"), value("image_tokens")) == (before[0] + 2, before[1] + 2 * rows)


PLACES = [
    ("/v1/chat/completions", "messages.0.content.0.image_url", {"messages": [user(part_of(b"x"), "a")]}),
    ("/v1/responses", "input.0.content.0.image_url", {
        "input": [{"role": "user", "content": [{"type": "input_image", "image_url": url_of(b"x")}]}],
    }),
    ("/v1/messages", "messages.0.content.0.source.data", {"messages": [user(block_of(b"x"))], "max_tokens": 1}),
    ("/api/chat", "messages.0.images.0", {
        "model": "tiny", "messages": [{"role": "user", "content": "a", "images": [text64(b"x")]}],
    }),
    ("/api/generate", "images.0", {"model": "tiny", "prompt": "a", "images": [text64(b"x")]}),
    ("/tokenize", "messages.0.content.0.image_url", {"messages": [user(part_of(b"x"))]}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "place", "body"), PLACES, ids=[one[0] for one in PLACES])
def test_errors_name_the_image(seeing, client, path, place, body):
    for asked, said in ((client, "this model takes no images; remove the images, or"), (seeing, "not a JPEG")):
        answer = asked.post(path, json=body)
        assert answer.status_code == 400, answer.text
        found = answer.json()["error"]
        message = found if isinstance(found, str) else found["message"]
        assert message.startswith(f"{place}: ")
        assert said in message
        assert isinstance(found, str) or found.get("param", place) == place


# ---- wrong and hostile images ----------------------------------------------------------------------------------------


def png(width: int, height: int, data: bytes = b"") -> bytes:
    """A PNG file with a header, which need not have the pixels that it promises."""

    def chunk(kind: bytes, inside: bytes) -> bytes:
        return struct.pack(">I", len(inside)) + kind + inside + struct.pack(">I", zlib.crc32(kind + inside))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(data, 9)) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (b"", "not a JPEG"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not a JPEG"),
        (b"%PDF-1.7", "not a JPEG"),
        (picture(1)[:60], "damaged"),
        (picture(1)[: len(picture(1)) // 2], "damaged"),
        (png(40_000, 40_000), "40,000 x 40,000 pixels; at most 64,000,000"),
        (png(2**31 - 1, 2**31 - 1), "pixels; at most"),
        (png(7000, 7000, b"\0" * 1000), "damaged"),
        ("data:image/png,abc", "data: URL in base64"),
        ("data:image/png;base64,a b", "not valid base64"),
        ("data:image/png;base64,abc", "not valid base64"),
        ("data:text/html,<script>", "data: URL in base64"),
        ("https://b.com/a.png", "--allow-image-host b.com"),
        ("https://a.com/large", "not that of a JPEG"),
        ("https://a.com/text", "not that of a JPEG"),
        ("https://user:pw@a.com/a.png", "user name"),
        ("http://169.254.169.254/latest/meta-data", "--allow-image-host"),
        ("file:///etc/passwd", "must be a data:"),
        ("/etc/passwd", "must be a data:"),
        ("", "it is empty"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_images_that_cannot_be_used(gemma, given, said):
    found = refused(gemma, part_of(given))
    assert said in found["message"]
    assert (found["param"], "secret" in found["message"]) == ("messages.0.content.0.image_url", False)


def test_a_narrow_image(seeing):
    file = user(part_of(png(1, 30_000, bytes(4 * 30_000))), QUESTION)
    if "image_pad" in seeing.app.state.server.served.template:
        found = error(seeing, messages=[file], max_tokens=1)
        assert "one side may be at most 200 times the other" in found["message"]
    else:
        assert count(seeing, file) > 100


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "image_url"}], [{"type": "image_url", "image_url": 4}],
        [{"type": "image_url", "image_url": {"url": 4}}],
        [{"type": "image_url", "image_url": {"url": None}}], [{"type": "input_image", "file_id": "file-1"}],
        [{"type": "image", "source": {"type": "file", "file_id": "x"}}], [{"type": "image", "source": "x"}],
        [{"type": "image"}], [{"type": "video_url", "video_url": {"url": "x"}}], [{"type": "input_audio"}], ["x"],
        [{"type": "image_url", "image_url": {"url": "data:,", "detail": 4}}], [{"type": []}], [{"type": {}}],
    ],
    ids=str,
)  # fmt: skip
def test_wrong_parts(gemma, content):
    found = error(gemma, messages=[{"role": "user", "content": content}], max_tokens=1)
    assert found["param"].startswith("messages.0.content")


def test_roles_without_images(gemma):
    for role in ("system", "developer", "assistant"):
        found = error(gemma, messages=[{"role": role, "content": [part_of(picture(1))]}, user("a")], max_tokens=1)
        assert "allowed in messages of the user and in results of tools" in found["message"]
    ollama = {"model": "tiny", "messages": [{"role": "system", "content": "a", "images": ["aGk="]}]}
    assert "has no images" in error(gemma, "/api/chat", **ollama)
    for more in ({"raw": True}, {"suffix": "b"}):
        given = {"model": "tiny", "prompt": "a", "images": ["aGk="], **more}
        assert "uses no chat template" in error(gemma, "/api/generate", **given)


def test_too_many_images(gemma):
    assert "more than 64 images" in refused(gemma, *([part_of(picture(1))] * 1000))["message"]
    assert "of them for images" in refused(gemma, *([part_of(picture(1, (900, 900)), detail="high")] * 64))["message"]


def test_large_bodies(gemma, client):
    """A data: URL of 50 MB is within the body's limit of a model that sees, and beyond that of a file."""
    large = {"messages": [user(part_of("data:image/png;base64," + "A" * 50_000_000))], "max_tokens": 1}
    assert "37,500,000 bytes; at most 33,554,432" in error(gemma, **large)["message"]
    assert "the limit is 8388608" in error(client, status=413, **large)["message"]
    several = [part_of("data:image/png;base64," + "A" * 23_000_000)] * 2
    assert error(gemma, messages=[user(*several)], max_tokens=1)["param"] == "messages.0.content.0.image_url"


def test_the_bytes_of_all_images_are_limited(other_folder):
    file = picture(1)
    with server_of(other_folder, limits=replace(LIMITS, images_bytes=2 * len(file), images=3)) as client:
        assert chat(client, user(part_of(file), part_of(file), QUESTION))[1] > 10
        found = error(client, status=413, messages=[user(*([part_of(file)] * 3))], max_tokens=1)
        assert f"at most {2 * len(file):,} are allowed" in found["message"]
        assert "more than 3 images" in refused(client, *([part_of(file)] * 4))["message"]


def test_slow_images_keep_out_no_texts(gemma, monkeypatch):
    """Nor do clients that leave make room for more images than may be read at the same time."""
    reader = gemma.app.state.server.served.vision.reader
    entered, go, read = threading.Semaphore(0), threading.Event(), reader.tiles

    def slow(*arguments: Any) -> Any:
        entered.release()
        assert go.wait(60)
        return read(*arguments)

    monkeypatch.setattr(reader, "tiles", slow)
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(chat, gemma, user(part_of(picture(40 + n)), QUESTION)) for n in range(8)]
        try:
            for _ in range(2):
                assert entered.acquire(timeout=60)
            assert not entered.acquire(timeout=0.2)  # two of a key
            for number in range(6):
                assert chat(gemma, {"role": "user", "content": f"text {number}"})[1] > 0
            assert gemma.get("/health").status_code == 200
        finally:
            go.set()
        assert all(one.result(120)[1] > 10 for one in waiting)


def test_a_model_without_its_vision_part(other_folder, monkeypatch):
    with server_of(other_folder) as client:
        served = client.app.state.server.served

        def missing() -> Path:
            raise InputError("there is no mmproj file with the vision part for x in its folder", hint="download it")

        monkeypatch.setattr(served, "_vision_part", missing)
        served.__dict__.pop("sees", None)
        assert client.get("/v1/models").json()["data"][0]["meta"]["images"] is None
        found = refused(client, part_of(picture(1)))
        assert "no mmproj file" in found["message"]
