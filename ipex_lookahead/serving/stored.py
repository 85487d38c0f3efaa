"""``/v1/responses/{id}``: responses that the server remembers, for the key that they were made with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request

from ipex_lookahead.serving.failures import ApiError, refused
from ipex_lookahead.serving.handling import memory_of, server_of
from ipex_lookahead.serving.remembered import Item

router = APIRouter()
_PATH = "/v1/responses/{response_id}"
_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
Salt = Annotated[str | None, Query(min_length=1, max_length=1024, description="the request's own `cache_salt`")]


@router.get(_PATH)
@router.get(_PATH.removeprefix("/v1"), include_in_schema=False)
async def response(request: Request, response_id: str, stream: bool = False, cache_salt: Salt = None) -> dict[str, Any]:
    """Give a response again."""
    if stream:
        raise refused("stream", "a complete response cannot be streamed; leave it out")
    return _found(request, response_id, cache_salt)[0]


@router.delete(_PATH)
@router.delete(_PATH.removeprefix("/v1"), include_in_schema=False)
async def delete(request: Request, response_id: str, cache_salt: Salt = None) -> dict[str, Any]:
    """Forget a response; later ones that went on from it keep what they were made of."""
    if not server_of(request).remembered.forget(number=response_id, **memory_of(request, cache_salt)):
        raise unknown(response_id)
    return {"id": response_id, "object": "response", "deleted": True}


@router.get(f"{_PATH}/input_items")
@router.get(f"{_PATH.removeprefix('/v1')}/input_items", include_in_schema=False)
async def input_items(
    request: Request,
    response_id: str,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
    cache_salt: Salt = None,
) -> dict[str, Any]:
    """List what a response was made of, earlier responses that it went on from included."""
    before = _found(request, response_id, cache_salt)[1]
    items = [_listed(item, response_id, at) for at, item in enumerate(before)]
    if order == "desc":
        items.reverse()
    ids = [item["id"] for item in items]
    if after is not None and after not in ids:
        raise refused("after", f"the response has no input item {after[:80]!r}; give the id of the last one listed")
    first = 0 if after is None else ids.index(after) + 1
    page = items[first : first + limit]
    ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return {"object": "list", "data": page, **ends, "has_more": first + limit < len(items)}


def _found(request: Request, number: str, salt: str | None) -> tuple[dict[str, Any], Sequence[Item]]:
    found = server_of(request).remembered.response(number=number, **memory_of(request, salt))
    if found is None:
        raise unknown(number)
    return found


def unknown(number: str) -> ApiError:
    """Return the error for a response that is not stored."""
    said = f"there is no response {number[:80]!r} for this key; it was not stored, was deleted, or was evicted"
    return ApiError(404, said, param="response_id", code="not_found")


def _listed(item: Item, response: str, at: int) -> dict[str, Any]:
    """An item as the API lists it: with an id, which is the same each time, and its content in parts."""
    kind = str(item.get("type", "message"))
    number = f"{_PREFIXES.get(kind, 'item')}_{response.removeprefix('resp_')}{at:04x}"
    found = {"status": "completed", **item, "type": kind, "id": item.get("id") or number}
    if kind == "message" and not isinstance(content := item.get("content"), list):
        written: dict[str, Any] = {"type": "input_text", "text": content or ""}
        if item.get("role") == "assistant":
            written = {"type": "output_text", "text": content or "", "annotations": []}
        found["content"] = [written]
    return found
