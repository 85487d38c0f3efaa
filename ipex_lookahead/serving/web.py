"""The page at ``/``: its files, which load nothing from anywhere else and run no script but their own; and Markdown."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

from fastapi import APIRouter, Request, Response

from ipex_lookahead.serving import markdown
from ipex_lookahead.serving.body import JsonRoute
from ipex_lookahead.serving.failures import ApiError, refused
from ipex_lookahead.serving.fields import Body, required
from ipex_lookahead.serving.handling import server_of

router = APIRouter(include_in_schema=False, route_class=JsonRoute)
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src blob:; connect-src 'self'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
_KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
_FOLDER = files("ipex_lookahead.serving") / "page"


class RenderRequest(Body):
    """A text that the page shows."""

    text: str = required("Markdown")


@cache
def _names() -> frozenset[str]:
    """The paths of the page's files, those of ``vendor`` included."""
    found = [(one.name, one) for one in _FOLDER.iterdir()]
    found += [(f"vendor/{one.name}", one) for one in (_FOLDER / "vendor").iterdir()]
    return frozenset(name for name, one in found if one.is_file() and name.rpartition(".")[2] in _KINDS)


def needs_page(request: Request) -> None:
    """Raise ApiError where the server was started without its page."""
    if not server_of(request).settings.page:
        raise ApiError(404, "this server has no page; it was started with --no-page")


def _file(request: Request, name: str) -> Response:
    needs_page(request)
    if name not in _names():
        raise ApiError(404, "there is nothing at this path")
    headers = {
        "content-security-policy": POLICY,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
    }
    content = (_FOLDER / name).read_bytes()
    return Response(content, media_type=_KINDS[name.rpartition(".")[2]], headers=headers)


@router.get("/")
async def page(request: Request) -> Response:
    """The page."""
    return _file(request, "index.html")


@router.get("/page/{name:path}")
async def part(request: Request, name: str) -> Response:
    """Its scripts and its style."""
    return _file(request, name)


@router.get("/favicon.ico")
async def icon() -> Response:
    """There is none; browsers ask for it all the same."""
    return Response(status_code=204)


@router.post("/render")
async def render(request: Request, body: RenderRequest) -> Response:
    """Markdown -> ``{"nodes": [...]}`` as :mod:`ipex_lookahead.serving.markdown` has them."""
    needs_page(request)
    server = server_of(request)
    body.check()
    most = server.limits.rendered_characters
    if len(body.text) > most:
        raise refused("text", f"it has {len(body.text)} characters; at most {most} are rendered")
    return Response(
        await server.prepare(lambda: json.dumps({"nodes": markdown.nodes(body.text)}, ensure_ascii=False).encode()),
        media_type="application/json",
    )
