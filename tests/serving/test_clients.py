"""Clients as people have them, unmodified, each where it is installed: docs/serving.md says which versions were run."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest
import uvicorn

from ipex_lookahead.serving.app import make_app
from ipex_lookahead.serving.run import bind, url
from tests.serving.test_chat import ASKED, HOT, expected
from tests.serving.test_messages import SCHEMA, TOOLS

FUNCTIONS = [{"type": "function", "function": {"name": "w", "parameters": SCHEMA}}]


@pytest.fixture(scope="module")
def address(server) -> Iterator[str]:
    bound = bind("127.0.0.1", 0)
    running = uvicorn.Server(uvicorn.Config(make_app(server), log_config=None, lifespan="off"))
    thread = threading.Thread(target=running.run, args=([bound],), daemon=True)
    thread.start()
    yield url(bound)
    running.should_exit = True
    thread.join(60)


@pytest.fixture
def openai_client(address):
    openai = pytest.importorskip("openai", reason="the openai client is not installed")
    with openai.OpenAI(base_url=address + "/v1", api_key="any", max_retries=0) as client:
        yield client


def test_openai_chat(openai_client, model):
    from ipex_lookahead.generation.rules import Rules

    said = expected(model, Rules(16, **HOT))
    chat = openai_client.chat.completions
    whole = chat.create(model="tiny", messages=ASKED, max_completion_tokens=16, logprobs=True, top_logprobs=2, **HOT)
    assert whole.choices[0].message.content == said
    content = whole.choices[0].logprobs.content
    assert len(content) == 16
    assert all(len(one.top_logprobs) == 2 and one.logprob <= 0 for one in content)
    chunks = list(
        chat.create(
            model="tiny", messages=ASKED, max_tokens=16, stream=True, stream_options={"include_usage": True}, **HOT
        )
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == said
    assert chunks[-1].usage.completion_tokens == 16
    likely = {"type": "content", "content": said}
    predicted = chat.create(model="tiny", messages=ASKED, max_tokens=16, prediction=likely, **HOT)
    assert predicted.choices[0].message.content == said


def test_openai_tools_and_schemas(openai_client):
    chat = openai_client.chat.completions
    forced = {"tools": FUNCTIONS, "tool_choice": "required", "parallel_tool_calls": False}
    whole = chat.create(model="tiny", messages=ASKED, max_tokens=300, **forced, **HOT)
    call = whole.choices[0].message.tool_calls[0]
    assert set(json.loads(call.function.arguments)) == {"a"}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    with chat.stream(model="tiny", messages=ASKED, max_tokens=300, response_format=wanted, **HOT) as stream:
        for _ in stream:
            pass
        assert set(json.loads(stream.get_final_completion().choices[0].message.content)) == {"a"}


def test_openai_responses(openai_client):
    whole = openai_client.responses.create(model="tiny", input="Hi", max_output_tokens=16, temperature=0)
    events = list(
        openai_client.responses.create(model="tiny", input="Hi", max_output_tokens=16, temperature=0, stream=True)
    )
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    assert events[-1].response.usage.output_tokens == whole.usage.output_tokens


def test_openai_completions_and_errors(openai_client):
    import openai

    found = openai_client.completions.create(
        model="tiny", prompt=["One", "Two"], max_tokens=4, temperature=0, logprobs=1
    )
    assert [len(choice.logprobs.tokens) for choice in found.choices] == [4, 4]
    with pytest.raises(openai.NotFoundError, match="there is no model"):
        openai_client.completions.create(model="gpt-9", prompt="One")
    with pytest.raises(openai.BadRequestError) as refused:
        openai_client.chat.completions.create(model="tiny", messages=ASKED, temperature=-1)
    assert refused.value.param == "temperature"
    assert [one.id for one in openai_client.models.list()] == ["tiny", "other-name"]


def test_anthropic(address, model):
    anthropic = pytest.importorskip("anthropic", reason="the anthropic client is not installed")
    from ipex_lookahead.generation.rules import Rules

    with anthropic.Anthropic(base_url=address, api_key="any", max_retries=0) as client:
        given = {"model": "tiny", "max_tokens": 16, "messages": ASKED, "extra_body": HOT}
        whole = client.messages.create(**given)
        assert whole.content[0].text == expected(model, Rules(16, **HOT))
        with client.messages.stream(**given) as stream:
            assert "".join(stream.text_stream) == whole.content[0].text
        forced = {"tools": TOOLS, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
        called = client.messages.create(**{**given, **forced, "max_tokens": 300})
        assert called.stop_reason == "tool_use"
        assert set(called.content[0].input) == {"a"}
        counted = client.messages.count_tokens(model="tiny", messages=ASKED).input_tokens
        assert counted == whole.usage.input_tokens + whole.usage.cache_read_input_tokens
        with pytest.raises(anthropic.NotFoundError):
            client.messages.create(**{**given, "model": "claude"})


def test_langchain(address):
    langchain = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    chat = langchain.ChatOpenAI(
        model="tiny", base_url=address + "/v1", api_key="any", temperature=0, max_tokens=900, max_retries=0
    )
    assert isinstance(chat.invoke("Hi").content, str)
    assert "".join(chunk.content for chunk in chat.stream("Hi")) == chat.invoke("Hi").content
    assert set(chat.with_structured_output({"title": "x", **SCHEMA}).invoke("Hi")) == {"a"}
    called = chat.bind_tools(FUNCTIONS, tool_choice="w").invoke("Hi")
    assert [call["name"] for call in called.tool_calls] == ["w"], called


def test_llama_index(address):
    llms = pytest.importorskip("llama_index.llms.openai_like", reason="llama-index-llms-openai-like is not installed")
    made = {"model": "tiny", "api_base": address + "/v1", "api_key": "any", "max_tokens": 8, "temperature": 0.0}
    for chat in (False, True):
        model = llms.OpenAILike(**made, is_chat_model=chat, max_retries=0)
        whole = model.complete("Hi").text
        assert "".join(part.delta or "" for part in model.stream_complete("Hi")) == whole
