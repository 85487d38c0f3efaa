"""A chat with a tool, as a client has it: what it heard, without what differs from answer to answer."""

from __future__ import annotations

import json
from typing import Any

from starlette.testclient import TestClient

PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FUNCTION = {"name": "w", "description": "weather", "parameters": PARAMETERS}


def chat(client: TestClient, lookahead: Any, *, stream: bool = False, **more: Any) -> dict[str, Any]:
    """What was said: content, thought, calls without their ids, why it ended, and usage."""
    body = {
        "messages": [{"role": "user", "content": "Weather?"}],
        "tools": [{"type": "function", "function": FUNCTION}],
        "temperature": 0,
        "lookahead": lookahead,
        **more,
    }
    if not stream:
        found = client.post("/v1/chat/completions", json=body).json()
        (choice,) = found["choices"]
        calls = [one["function"] for one in choice["message"].get("tool_calls") or ()]
        content, reason, usage = choice["message"]["content"], choice["finish_reason"], found["usage"]
        thought = choice["message"].get("reasoning_content")
    else:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        content, thought, reason, usage, calls = "", "", None, {}, []
        for line in client.post("/v1/chat/completions", json=body).text.splitlines():
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                usage = chunk["usage"] or usage
                for choice in chunk["choices"]:
                    content += choice["delta"].get("content") or ""
                    thought += choice["delta"].get("reasoning_content") or ""
                    reason = choice["finish_reason"] or reason
                    for part in choice["delta"].get("tool_calls") or ():
                        if "name" in part["function"]:
                            calls.append({"name": part["function"]["name"], "arguments": ""})
                        calls[-1]["arguments"] += part["function"]["arguments"]
    kept = {name: usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    kept["reasoning_tokens"] = usage["completion_tokens_details"]["reasoning_tokens"]
    return {"content": content or None, "thought": thought or None, "calls": calls, "reason": reason, "usage": kept}
