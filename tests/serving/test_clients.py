"""Clients as people have them, unmodified, each where it is installed: docs/serving.md says which versions were run."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn

from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.serving.app import make_app
from ipex_lookahead.serving.chat import ChatRequest
from ipex_lookahead.serving.completions import CompletionRequest
from ipex_lookahead.serving.fields import support
from ipex_lookahead.serving.messages import MessagesRequest
from ipex_lookahead.serving.responses import ResponsesRequest
from ipex_lookahead.serving.run import bind, url
from tests.serving.test_chat import ASKED, HOT, expected
from tests.serving.test_completions import one_forward
from tests.serving.test_messages import SCHEMA, TOOLS

FUNCTIONS = [{"type": "function", "function": {"name": "w", "parameters": SCHEMA}}]


@pytest.fixture(scope="module")
def address(server) -> Iterator[str]:
    with listening(server) as found:
        yield found


@contextmanager
def listening(server: Any) -> Iterator[str]:
    """The address of a server."""
    bound = bind("127.0.0.1", 0)
    running = uvicorn.Server(uvicorn.Config(make_app(server), log_config=None, lifespan="off"))
    thread = threading.Thread(target=running.run, args=([bound],), daemon=True)
    thread.start()
    yield url(bound)
    running.should_exit = True
    thread.join(60)


@pytest.fixture(scope="module")
def seeing(tmp_path_factory) -> Iterator[tuple[str, bytes]]:
    """The address of a server with a model that takes images, and an image."""
    images = pytest.importorskip("tests.serving.test_images")
    folder = images.write_folder(tmp_path_factory.mktemp("seeing"), "gemma4")
    with images.server_of(folder) as client, listening(client.app.state.server) as address:
        yield address, images.picture(1)


def test_openai_images(seeing):
    openai = pytest.importorskip("openai", reason="the openai client is not installed")
    address, file = seeing
    image = "data:image/png;base64," + base64.b64encode(file).decode()
    with openai.OpenAI(base_url=address + "/v1", api_key="any", max_retries=0) as client:
        parts = [{"type": "image_url", "image_url": {"url": image, "detail": "low"}}, {"type": "text", "text": "Hi"}]
        messages = [{"role": "user", "content": parts}]
        chat = client.chat.completions.create(model="tiny", messages=messages, max_tokens=8, temperature=0)
        parts = [{"type": "input_image", "image_url": image, "detail": "low"}, {"type": "input_text", "text": "Hi"}]
        given = {"model": "tiny", "input": [{"role": "user", "content": parts}]}
        response = client.responses.create(**given, max_output_tokens=8, temperature=0)
        assert response.output_text == chat.choices[0].message.content
        assert response.usage.input_tokens == chat.usage.prompt_tokens > 30
        assert client.responses.input_tokens.count(**given).input_tokens == chat.usage.prompt_tokens


def test_anthropic_and_ollama_images(seeing, tmp_path):
    anthropic = pytest.importorskip("anthropic", reason="the anthropic client is not installed")
    ollama = pytest.importorskip("ollama", reason="the ollama client is not installed")
    address, file = seeing
    (tmp_path / "a.png").write_bytes(file)
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(file).decode()}
    messages = [{"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": "Hi"}]}]
    with anthropic.Anthropic(base_url=address, api_key="any", max_retries=0) as client:
        message = client.messages.create(model="tiny", max_tokens=8, messages=messages, extra_body={"temperature": 0})
        counted = client.messages.count_tokens(model="tiny", messages=messages).input_tokens
        assert counted == message.usage.input_tokens + message.usage.cache_read_input_tokens > 30
    client = ollama.Client(host=address)
    options = {"num_predict": 8, "temperature": 0}
    said = client.chat("tiny", [{"role": "user", "content": "Hi", "images": [tmp_path / "a.png"]}], options=options)
    assert said.message.content == message.content[0].text
    assert said.prompt_eval_count == counted
    assert client.generate("tiny", "Hi", images=[file], options=options).response == said.message.content
    assert "vision" in client.show("tiny").capabilities


@pytest.fixture
def openai_client(address):
    openai = pytest.importorskip("openai", reason="the openai client is not installed")
    with openai.OpenAI(base_url=address + "/v1", api_key="any", max_retries=0) as client:
        yield client


def test_openai_chat(openai_client, model):
    said = expected(model, SamplingParams(16, **HOT))
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
    with anthropic.Anthropic(base_url=address, api_key="any", max_retries=0) as client:
        given = {"model": "tiny", "max_tokens": 16, "messages": ASKED, "extra_body": HOT}
        whole = client.messages.create(**given)
        assert whole.content[0].text == expected(model, SamplingParams(16, **HOT))
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


def test_ollama(address, model):
    ollama = pytest.importorskip("ollama", reason="the ollama client is not installed")
    client = ollama.Client(host=address)
    said, options = expected(model, SamplingParams(16, **HOT)), {**HOT, "num_predict": 16}
    assert client.chat("tiny:latest", ASKED, options=options, keep_alive="5m").message.content == said
    parts = list(client.chat("tiny", ASKED, options=options, stream=True))
    assert "".join(part.message.content for part in parts) == said
    assert (parts[-1].done, parts[-1].eval_count) == (True, 16)
    assert client.generate("tiny", ASKED[0]["content"], options=options).response == said
    assert "".join(p.response for p in client.generate("tiny", "Hi", options=options, stream=True)) == said
    shaped = client.chat("tiny", ASKED, format=SCHEMA, options={**HOT, "num_predict": 300})
    assert set(json.loads(shaped.message.content)) == {"a"}
    called = client.chat("tiny", ASKED, tools=FUNCTIONS, options={**HOT, "num_predict": 900})
    assert all(call.function.name == "w" for call in called.message.tool_calls or ())
    assert [one.model for one in client.list().models] == ["tiny", "other-name"]
    assert [one.model for one in client.ps().models] == ["tiny", "other-name"]
    assert "completion" in client.show("tiny").capabilities
    with pytest.raises(ollama.ResponseError, match="there is no model") as missing:
        client.chat("llama3", ASKED)
    assert missing.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="this model takes no images"):
        client.generate("tiny", "Hi", images=[b"abcd"])
    with pytest.raises(ollama.ResponseError, match="there is no model"):
        list(client.chat("llama3", ASKED, stream=True))


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


ASKED_OF_LM_EVAL = [
    {"question": "The sky is", "choices": [" blue", " not a colour at all"], "answer": 0},
    {"question": "Zwei und zwei sind", "choices": [" vier", " fünf"], "answer": 0},
    {"question": "x", "choices": ["y", "yy", "yyy"], "answer": 2},
]


def test_lm_eval(address, model, tmp_path, monkeypatch):
    """Its likelihoods are sums of the model's own numbers; and its texts, until a word, are the model's."""
    lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    from lm_eval.tasks import TaskManager

    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    asked = tmp_path / "asked.jsonl"
    asked.write_text("\n".join(map(json.dumps, ASKED_OF_LM_EVAL)))
    common = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(asked)}}, "test_split": "test"}
    choose = {"output_type": "multiple_choice", "doc_to_text": "{{question}}", "doc_to_choice": "{{choices}}",
              "doc_to_target": "{{answer}}", "metric_list": [{"metric": "acc"}], "target_delimiter": ""}  # fmt: skip
    write = {"output_type": "generate_until", "doc_to_text": "{{question}}", "doc_to_target": "x",
             "generation_kwargs": {"until": ["zz"], "max_gen_toks": 12, "do_sample": False},
             "metric_list": [{"metric": "exact_match"}]}  # fmt: skip
    for name, task in (("choose", choose), ("write", write)):
        (tmp_path / f"{name}.yaml").write_text(json.dumps({"task": name, **common, **task}))
    for batch in (1, 3):
        found = lm_eval.simple_evaluate(
            model="local-completions",
            model_args={"model": "tiny", "base_url": address + "/v1/completions", "max_retries": 1},
            tasks=["choose", "write"],
            task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
            batch_size=batch,
            bootstrap_iters=0,
        )
        for sample, asked_one in zip(found["samples"]["choose"], ASKED_OF_LM_EVAL, strict=True):
            before = model.tokenizer.encode(asked_one["question"])
            expected_ones = []
            for choice in asked_one["choices"]:
                told = one_forward(model, model.tokenizer.encode(asked_one["question"] + choice), 1)[len(before) - 1 :]
                greedy = all(one.token == one.top[0][0] for one in told)
                expected_ones.append((sum(one.logprob for one in told), greedy))
            assert [tuple(one) for one in sample["filtered_resps"]] == expected_ones
        for sample, asked_one in zip(found["samples"]["write"], ASKED_OF_LM_EVAL, strict=True):
            ids = model.generate(model.tokenizer.encode(asked_one["question"]), SamplingParams(12))
            assert sample["resps"] == [[model.tokenizer.decode(ids, skip_special_tokens=True)]]


def test_llm(address, model, tmp_path):
    """The command, with its file of models of one's own."""
    pytest.importorskip("llm", reason="llm is not installed")
    served = {"model_id": "mine", "model_name": "tiny", "api_base": address + "/v1", "supports_schema": True}
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([served]))

    def say(*options: str) -> str:
        command = [sys.executable, "-m", "llm", "prompt", "-m", "mine", "--no-log", *options, "Hi"]
        environment = {**os.environ, "LLM_USER_PATH": str(tmp_path)}
        done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    cold = ["-o", "temperature", "0", "-o", "max_tokens", "16"]
    said = expected(model, SamplingParams(16))
    assert say(*cold, "--no-stream").removesuffix("\n") == said
    assert say(*cold).removesuffix("\n") == said
    hot = ["-o", "temperature", "1", "-o", "seed", "5", "-o", "max_tokens", "300"]
    assert set(json.loads(say(*hot, "--schema", json.dumps(SCHEMA)))) == {"a"}


def test_what_the_published_types_have(address):
    """Every field that the clients' own types know has its line in the table."""
    pytest.importorskip("openai", reason="the openai client is not installed")
    pytest.importorskip("anthropic", reason="the anthropic client is not installed")
    from anthropic.types import message_create_params
    from openai.types import completion_create_params
    from openai.types.chat import completion_create_params as chat_create_params
    from openai.types.responses import response_create_params

    for request_model, published in [
        (ChatRequest, chat_create_params.CompletionCreateParamsBase),
        (CompletionRequest, completion_create_params.CompletionCreateParamsBase),
        (ResponsesRequest, response_create_params.ResponseCreateParamsBase),
        (MessagesRequest, message_create_params.MessageCreateParamsBase),
    ]:
        assert not set(published.__annotations__) - {name for name, _, _ in support(request_model)}
