"""``/completion``, ``/infill``, ``/props`` and ``GET /slots``: llama-server's own paths."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest

from ipex_lookahead.conversation.answer import Finish
from ipex_lookahead.conversation.pictures import MEDIA, prompt_with_media
from ipex_lookahead.conversation.request import grammar_of
from ipex_lookahead.decoding.saved_cache import load_cache, save_cache
from ipex_lookahead.decoding.sequence_group import prefix_key
from ipex_lookahead.errors import LookaheadError
from ipex_lookahead.runtime.request import Request
from ipex_lookahead.serving.answers import Answers
from ipex_lookahead.serving.body import JsonRoute
from ipex_lookahead.serving.completions import encoded
from ipex_lookahead.serving.conversation import seen
from ipex_lookahead.serving.failures import ApiError, from_ours, refused
from ipex_lookahead.serving.fields import Body, no_effect, only, refused_unless, required, supported
from ipex_lookahead.serving.handling import answer, checked, identity_of, memory_of, server_of
from ipex_lookahead.serving.logprobs import spelled
from ipex_lookahead.serving.pictures import Pictures
from ipex_lookahead.serving.sampling import MINUS_ONE, Sampled, stops
from ipex_lookahead.serving.server import Served, Server
from ipex_lookahead.serving.sse import comments, event
from ipex_lookahead.serving.usage import cached, timings

router = APIRouter(route_class=JsonRoute)


class LlamaSampled(Sampled):
    """What `/completion` and `/infill` have in common."""

    n_predict: int | None = supported(f"maximum number of tokens; {MINUS_ONE} (default)", ge=-1)
    max_tokens: int | None = supported("OpenAI's name of `n_predict`", ge=-1)
    n_probs: Any = refused_unless("`/v1/completions` has `logprobs`", 0)
    return_tokens: Any = no_effect("use `/v1/completions` with `logprobs`")
    t_max_predict_ms: Any = refused_unless("use `n_predict`", 0)


class LlamaRequest(LlamaSampled):
    """A request for `/completion`."""

    prompt: str | list[int] | dict[str, Any] = required(
        "a text, token ids, or `prompt_string` with `multimodal_data`: images in base64 at the places of `<__media__>`"
    )


class ExtraFile(Body):
    """One of ``input_extra``."""

    handed_back: ClassVar[bool] = True
    filename: str | None = supported("the name")
    text: str | None = supported("the text")


class InfillRequest(LlamaSampled):
    """A request for `/infill`: what is missing between two texts."""

    input_prefix: str = required("the text before the gap")
    input_suffix: str = required("the text after the gap")
    input_extra: list[ExtraFile] | None = supported("other files, placed before the prompt", max_length=256)
    prompt: str | None = supported("additional text before the gap")


@router.post("/completion")
async def completion(request: HttpRequest, body: LlamaRequest) -> Response:
    """Go on with a text."""
    server, served = checked(request, body, body.model)
    if not body.prompt:
        raise refused("prompt", "it is empty; give a text, or token ids")
    prompt = body.prompt
    if isinstance(prompt, dict):
        text, made = await _with_media(request, server, served, prompt)
        return await _answered(request, body, made, text)
    (ids,) = await server.prepare(lambda: encoded(served, [prompt] if isinstance(prompt, str) else [prompt]))
    return await _answered(request, body, Request(ids), prompt if isinstance(prompt, str) else None)


async def _with_media(
    request: HttpRequest, server: Server, served: Served, prompt: Mapping[str, Any]
) -> tuple[str, Request]:
    """Return the text of a prompt with images, and its request. Raises ApiError."""
    only(prompt, ("prompt_string", "multimodal_data"), "prompt.")
    text, files = prompt.get("prompt_string"), prompt.get("multimodal_data") or []
    if not isinstance(text, str) or not text:
        raise refused("prompt.prompt_string", "it must be a text that is not empty")
    if not isinstance(files, list) or not all(isinstance(one, str) for one in files):
        raise refused("prompt.multimodal_data", "it must be a list of images in base64")
    pictures = Pictures(server.limits)
    for at, one in enumerate(files):
        pictures.add(one, f"prompt.multimodal_data.{at}", is_url=one.startswith("data:"))
    if not pictures.found:
        return text, Request(await server.prepare(lambda: served.encode(text, special=True)))

    def build() -> Request:
        served.check_length(text)
        ids, images = prompt_with_media(served, text, pictures.found)
        return Request(ids, images=images)

    return text, await seen(request, pictures.found, build)


@router.post("/infill")
async def infill(request: HttpRequest, body: InfillRequest) -> Response:
    """Fill in what is missing between two texts, where the model has fill-in-the-middle tokens."""
    server, served = checked(request, body, body.model)
    before = body.input_prefix + (body.prompt or "")
    files = [(one.filename or "tmp", one.text or "") for one in body.input_extra or ()]
    ids, ends = await server.prepare(lambda: served.filled_in("input_suffix", before, body.input_suffix, files))
    return await _answered(request, body, Request(ids), None, ends)


async def _answered(
    request: HttpRequest, body: LlamaSampled, made: Request, text: str | None, ends: tuple[int, ...] = ()
) -> Response:
    ids = list(made.prompt)
    server = server_of(request)
    served, limits = server.served, server.limits
    form = body.form_of_text(limits)
    if body.answers(limits) > 1:
        raise refused("n", "this endpoint returns one answer; `/v1/completions` can return several")
    options = body.options(served, limits)
    grammar = None if form is None else await server.compile(request, lambda grammars: grammar_of(grammars, form))
    requested = body.max_tokens if body.n_predict is None else body.n_predict
    params = body.params(served, len(ids), -1 if requested is None else requested, stops(body.stop, limits), ends)
    options |= identity_of(request, body.cache_salt)
    answers = server.start([replace(made, params=params, grammar=grammar, **options)], body.id_slot)
    writer = _Writer(server, served, body.model, ids, text, answers)
    return await answer(request, server, answers, writer, stream=bool(body.stream))


class _Writer:
    """One answer in llama-server's shapes."""

    def __init__(
        self, server: Server, served: Served, model: str | None, ids: list[int], text: str | None, answers: Answers
    ) -> None:
        self._served = served
        self._answers = answers
        self._ids = ids
        self._prompt = text
        self._model = model or server.settings.names[0]

    async def chunks(self) -> AsyncIterator[bytes]:
        """Server-sent events, the last of which has ``stop``."""
        predicted, tokens = 0, []  # of these the text is not whole characters yet
        async for deltas in self._answers:
            for part in comments(deltas):
                yield part
            for delta in deltas:
                tokens += [piece.token for piece in delta.pieces if piece.token is not None]
                if delta.text:
                    predicted += len(tokens)
                    counted = {"tokens_predicted": predicted, "tokens_evaluated": len(self._ids)}
                    said = {"index": 0, "content": delta.text, "tokens": tokens, "stop": False}
                    yield event({**said, **counted, "id_slot": self._answers.slot})
                    tokens = []
                if delta.finish is not None:
                    yield event({**self._ended("", delta.finish), "tokens": tokens})

    async def whole(self) -> dict[str, Any]:
        """All in one."""
        (one,) = await self._answers.whole()
        tokens = [piece.token for piece in one.pieces if piece.token is not None]
        return {**self._ended(one.text, one.finish), "tokens": tokens}

    def _ended(self, text: str, finish: Finish) -> dict[str, Any]:
        stats = finish.stats
        word = finish.stop if isinstance(finish.stop, str) else ""
        kind = "limit" if finish.reason == "length" else "word" if word else "eos"
        return {
            "index": 0,
            "content": text,
            "tokens": [],
            "id_slot": self._answers.slot,
            "stop": True,
            "model": self._model,
            "prompt": self._served.tokenizer.decode(self._ids) if self._prompt is None else self._prompt,
            "tokens_predicted": stats.tokens,
            "tokens_evaluated": stats.prompt_tokens,
            "tokens_cached": cached(stats),
            "truncated": False,
            "stop_type": kind,
            "stopping_word": word,
            "timings": timings(finish),
        }


@router.get("/props")
async def props(request: HttpRequest) -> dict[str, Any]:
    """What the server has set."""
    from ipex_lookahead import __version__

    server = server_of(request)
    served = server.served
    ends = {"bos_token": served.tokenizer.bos_token_id, "eos_token": served.tokenizer.eos_token_id}
    return {
        "default_generation_settings": {"n_ctx": served.max_context, "params": {**served.sampling, "n_predict": -1}},
        "total_slots": served.service.slots,
        "model_alias": server.settings.names[0],
        "model_path": server.settings.names[0],
        "modalities": {"vision": served.sees, "audio": False},
        "media_marker": MEDIA,
        "chat_template": served.template,
        **{name: "" if i is None else spelled(i, served.tokens) for name, i in ends.items()},
        "build_info": f"ipex-lookahead {__version__}",
    }


class SlotRequest(Body):
    """A request for `/slots/{id_slot}`."""

    filename: str | None = supported("name of the file in `--slot-save-path`, for `save` and `restore`")
    cache_salt: str | None = supported("the salt of the requests that have used the slot", max_length=256)
    model: str | None = supported("name of the model, or of the adapter that a restored text was made with")


@router.post("/slots/{id_slot}")
async def change_slot(request: HttpRequest, id_slot: str, action: str = "", body: SlotRequest | None = None) -> Any:
    """Save the KV cache of a slot's text to a file, restore it from one, or erase it."""
    body = SlotRequest() if body is None else body
    server, served = checked(request, body, body.model)
    slots = server.slots
    if slots is None:
        raise ApiError(501, "this server saves no slots; start it with --slot-save-path DIR", code="not_supported")
    if action not in ("save", "restore", "erase"):
        raise refused("action", f"{action[:40]!r} is not an action; it must be save, restore or erase")
    if not re.fullmatch("[0-9]{1,9}", id_slot):
        raise refused("id_slot", f"{id_slot[:40]!r} is not the number of a slot")
    number, owner = slots.number(int(id_slot)), memory_of(request, body.cache_salt)
    tenant = Request((), key=owner["key"], salt=owner["salt"]).tenant
    file: Path | None = None
    async with slots.changing:
        try:
            if action == "erase":
                tokens, adapter = slots.erase(tenant, number)
                place = prefix_key(tenant, adapter)
                await asyncio.wrap_future(served.service.call(lambda memory: memory.forget(tokens, place)))
                return {"id_slot": number, "n_erased": len(tokens)}
            text, adapter = slots.text(tenant, number) if action == "save" else (None, request.scope["adapter"])
            place = prefix_key(tenant, adapter)
            key = server.slot_key(place)
            file = await asyncio.to_thread(slots.file, tenant, body.filename, new=action == "save")
            if text is not None:
                found = await _save(served, place, text, file, key)
            else:
                tokens, found = await _restore(served, place, file, key)
                slots.put(tenant, number, tokens, len(tokens), adapter)
            return {"id_slot": number, "filename": body.filename, **found}
        except LookaheadError as error:
            made = from_ours(error)
            made.message = made.message.replace(f"the cache file {file}", repr(body.filename))  # paths are private
            raise made from None


async def _save(served: Served, place: str, tokens: Any, file: Path, key: bytes) -> dict[str, Any]:
    began = time.perf_counter()
    cache = await asyncio.wrap_future(served.service.call(lambda memory: memory.peek(tokens, place)))
    if cache is None:
        raise ApiError(400, "the KV cache of this slot is no longer in memory; send its prompt again")
    count = cache.length
    size = await asyncio.to_thread(save_cache, file, key, tokens, cache)
    return {"n_saved": count, "n_written": size, "timings": {"save_ms": _ms(began)}}


async def _restore(served: Served, place: str, file: Path, key: bytes) -> tuple[Any, dict[str, Any]]:
    began, size = time.perf_counter(), file.stat().st_size
    tokens, cache = await asyncio.to_thread(load_cache, file, key, served.model.engine)
    if not await asyncio.wrap_future(served.service.call(lambda memory: memory.add(tokens, cache, place))):
        said = f"there is no memory for the {len(tokens):,} tokens of {file.name!r} now; increase --cache-memory"
        raise ApiError(503, said, code="out_of_memory", headers={"retry-after": "5"})
    return tokens, {"n_restored": len(tokens), "n_read": size, "timings": {"restore_ms": _ms(began)}}


def _ms(began: float) -> float:
    return round(1000 * (time.perf_counter() - began), 3)


@router.get("/slots")
async def slots(request: HttpRequest) -> list[dict[str, Any]]:
    """Return the number of busy slots, without their contents."""
    served = server_of(request).served
    busy = served.service.running
    return [{"id": at, "n_ctx": served.max_context, "is_processing": at < busy} for at in range(served.service.slots)]
