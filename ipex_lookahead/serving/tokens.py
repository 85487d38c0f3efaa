"""``/tokenize``, ``/detokenize``, ``/apply-template`` and ``/tokenizer_info``: what text becomes before the model."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from ipex_lookahead.serving.body import JsonRoute
from ipex_lookahead.serving.chat import ChatMessage, ChatRequest, Tool
from ipex_lookahead.serving.conversation import counted
from ipex_lookahead.serving.failures import refused
from ipex_lookahead.serving.fields import Body, supported
from ipex_lookahead.serving.handling import checked, server_of
from ipex_lookahead.serving.limits import MOST_MESSAGES
from ipex_lookahead.serving.logprobs import spelled

router = APIRouter(route_class=JsonRoute)


class TokenizeRequest(Body):
    """A text, by vLLM's name or by llama.cpp's, or a conversation (vLLM)."""

    model: str | None = supported("a name of `/v1/models`")
    prompt: str | None = supported("the text")
    content: str | None = supported("llama.cpp's name of `prompt`")
    add_special_tokens: bool | None = supported("add the beginning-of-text token, if the model has one; default: true")
    add_special: bool | None = supported("llama.cpp's name of `add_special_tokens`")
    with_pieces: bool | None = supported("also return `pieces`, the text of each token")
    messages: list[ChatMessage] | None = supported(
        "a conversation in place of a text: the tokens of the prompt that `/v1/chat/completions` would build",
        max_length=MOST_MESSAGES,
    )
    tools: list[Tool] | None = supported("with `messages`: as there")
    chat_template_kwargs: dict[str, Any] | None = supported("with `messages`: as there")
    add_generation_prompt: bool | None = supported("with `messages`: as there")
    continue_final_message: bool | None = supported("with `messages`: as there")

    def conversation(self) -> ChatRequest:
        """Return the conversation as a request for chat."""
        fields = ("messages", "tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message")
        return ChatRequest(**{name: getattr(self, name) for name in fields})


class DetokenizeRequest(Body):
    """Token ids."""

    model: str | None = supported("a name of `/v1/models`")
    tokens: list[int] = supported("token ids", default=[])


@router.post("/tokenize")
async def tokenize(request: Request, body: TokenizeRequest) -> dict[str, Any]:
    """Text to ids."""
    server, served = checked(request, body, body.model)
    text = body.content if body.prompt is None else body.prompt
    if body.messages is not None:
        if text is not None:
            raise refused("messages", "there is a text too; give one of them")
        if not body.messages:
            raise refused("messages", "it is empty; give a message")
        ids = list(await counted(request, body.conversation().to_conversation(server.limits)))
    elif text is None:
        raise refused("prompt", "there is no text; give prompt, content or messages")
    else:
        special = body.add_special if body.add_special_tokens is None else body.add_special_tokens
        ids = await server.prepare(lambda: served.encode(text, special=special is not False))
    found: dict[str, Any] = {"tokens": ids, "count": len(ids), "max_model_len": served.max_context}
    if body.with_pieces:
        found["pieces"] = [spelled(i, served.tokens) for i in ids]
    return found


@router.post("/detokenize")
async def detokenize(request: Request, body: DetokenizeRequest) -> dict[str, Any]:
    """Ids to text, special tokens as they are spelled."""
    server, served = checked(request, body, body.model)
    wrong = next((i for i in body.tokens if not 0 <= i < served.vocab_size), None)
    if wrong is not None:
        raise refused("tokens", f"{wrong} is not a token id; ids are 0 to {served.vocab_size - 1}")
    text = await server.prepare(lambda: served.tokenizer.decode(body.tokens))
    return {"prompt": text, "content": text}


@router.post("/apply-template")
async def apply_template(request: Request, body: ChatRequest) -> dict[str, Any]:
    """The prompt that `/v1/chat/completions` would build."""
    server, served = checked(request, body, body.model)
    ids = list(await counted(request, body.to_conversation(server.limits)))
    prompt = await server.prepare(lambda: served.tokenizer.decode(ids))
    return {"prompt": prompt, "tokens": ids}


@router.get("/tokenizer_info")
async def tokenizer_info(request: Request) -> dict[str, Any]:
    """The tokens with a role, as evaluation harnesses ask for them."""
    served = server_of(request).served
    roles = {"bos_token": served.tokenizer.bos_token_id, "eos_token": served.tokenizer.eos_token_id}
    return {name: None if i is None else spelled(i, served.tokens) for name, i in roles.items()} | {
        "chat_template": served.tokenizer.chat_template
    }
