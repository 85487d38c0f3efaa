"""LiteLLM as a proxy between clients and the server, with the page's settings (make test-clients installs it)."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from ipex_lookahead.serving.run import bind
from tests.agents.page import ADDRESS, TASK, settings
from tests.agents.playing import Playing, playing
from tests.agents.stories import DONE, Story
from tests.agents.test_loops import INSTALLED, KEPT
from tests.support.scripted_model import Calling, ScriptedModel

PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
PORT = "4000"
"""The proxy's port on the page."""


@contextmanager
def proxy(server: Playing, root: Path) -> Iterator[httpx.Client]:
    """Run the page's command on a free port until the block ends."""
    if not INSTALLED:
        pytest.skip("no agent is installed; make test-clients installs them")
    found = settings()["LiteLLM"]
    for path, text in found.files.items():
        (root / path).write_text(text.replace(ADDRESS, server.url))
    bound = bind("127.0.0.1", 0)
    port = str(bound.getsockname()[1])
    bound.close()
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    environment |= {"HOME": str(root), "PATH": INSTALLED["LiteLLM"]}
    with (root / "log").open("w") as log:
        running = subprocess.Popen(
            ["bash", "-ec", found.commands[0].replace(PORT, port).replace("\nlitellm", "\nexec litellm")],
            cwd=root, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=120, headers={"Authorization": "Bearer sk-local"}
        ) as client:
            for _ in range(600):
                assert running.poll() is None, (root / "log").read_text()[-4000:]
                try:
                    client.get("/health/liveliness")
                    break
                except httpx.TransportError:
                    time.sleep(0.5)
            yield client
    finally:
        running.terminate()
        running.wait(60)


def test_calls_go_through_the_proxy(tmp_path: Path) -> None:
    """In the Chat API as it is, and in the Messages API, which LiteLLM translates."""
    arguments = {"command": "cat notes.txt"}
    with (
        playing(ScriptedModel(Story([Calling("run", arguments, "I will read.")]))) as server,
        proxy(server, tmp_path) as client,
    ):
        function = {"name": "run", "description": "runs", "parameters": PARAMETERS}
        messages: list[Any] = [{"role": "user", "content": TASK}]
        body: dict[str, Any] = {"model": "default", "tools": [{"type": "function", "function": function}]}

        def chat() -> Any:
            answer = client.post("/v1/chat/completions", json={**body, "messages": messages})
            assert answer.status_code == 200, answer.text
            return answer.json()["choices"][0]["message"]

        said = chat()
        (call,) = said["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == arguments
        messages += [said, {"role": "tool", "tool_call_id": call["id"], "content": "alpha beta"}]
        assert chat()["content"] == DONE

        tools = [{"name": "run", "description": "runs", "input_schema": PARAMETERS}]
        conversation: list[Any] = [{"role": "user", "content": TASK}]

        def message() -> Any:
            given = {"model": "default", "max_tokens": 500, "tools": tools, "messages": conversation}
            answer = client.post("/v1/messages", json=given)
            assert answer.status_code == 200, answer.text
            return answer.json()["content"]

        content = message()
        (use,) = [block for block in content if block["type"] == "tool_use"]
        assert use["input"] == arguments
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": "alpha beta"}
        conversation += [{"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
        assert [block["text"] for block in message() if block["type"] == "text"] == [DONE]
        assert not server.refused
