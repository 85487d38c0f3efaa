"""The page at ``/``: three files, which load nothing from anywhere else and run no script but their own."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter, Request, Response

from ipex_lookahead.serving.failures import ApiError
from ipex_lookahead.serving.handling import server_of

router = APIRouter(include_in_schema=False)
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'; require-trusted-types-for 'script'"
)
_KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css"}


def _file(request: Request, name: str) -> Response:
    if not server_of(request).settings.page:
        raise ApiError(404, "this server has no page; it was started with --no-page")
    content = (files("ipex_lookahead.serving") / "page" / name).read_bytes()
    headers = {
        "content-security-policy": POLICY,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
    }
    return Response(content, media_type=_KINDS[name.rpartition(".")[2]], headers=headers)


@router.get("/")
async def page(request: Request) -> Response:
    """The page."""
    return _file(request, "index.html")


@router.get("/page.js")
async def script(request: Request) -> Response:
    """Its script."""
    return _file(request, "page.js")


@router.get("/page.css")
async def style(request: Request) -> Response:
    """Its style."""
    return _file(request, "page.css")


@router.get("/favicon.ico")
async def icon() -> Response:
    """There is none; browsers ask for it all the same."""
    return Response(status_code=204)
