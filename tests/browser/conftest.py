"""The page in Chromium (make test-browser), over the embedded model."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from ipex_lookahead.runtime.loading import load_text_model
from ipex_lookahead.runtime.service import Service
from ipex_lookahead.serving.app import make_app
from ipex_lookahead.serving.run import bind, url
from ipex_lookahead.serving.server import Server, Settings

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    " --disable-component-update --disable-sync"
).split()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    model = load_text_model("default", progress=False)
    made = Server(Settings(names=("default",), drafting={"lookahead": "auto"}))
    made.ready(model, lambda one: Service(one, slots=4))
    yield made
    made.close(0.0)


@pytest.fixture(scope="session")
def address(server: Server) -> Iterator[str]:
    bound = bind("127.0.0.1", 0)
    running = uvicorn.Server(
        uvicorn.Config(make_app(server), log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=running.run, args=([bound],), daemon=True)
    thread.start()
    yield url(bound)
    running.should_exit = True
    thread.join(60)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from tests.browser.driving import playwright

    with playwright.sync_playwright() as driver:
        made = driver.chromium.launch(
            executable_path=os.environ.get("IPEX_LOOKAHEAD_CHROMIUM", "/usr/bin/chromium"), args=FLAGS
        )
        yield made
        made.close()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """The page, connected; the test fails if it sent a request to another server, or broke its policy."""
    from tests.browser.driving import HEIGHT, PATIENCE, WIDTH, told

    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
    made = context.new_page()
    made.set_default_timeout(PATIENCE)
    said, asked = list[str](), list[str]()
    refusals = "Failed to load resource"  # the browser's word for every status of 400 and above
    made.on("console", lambda m: said.append(m.text) if m.type == "error" and refusals not in m.text else None)
    made.on("pageerror", lambda error: said.append(str(error)))
    made.on("request", lambda request: asked.append(request.url))
    made.goto(address)
    told(made, "#model", "default")
    yield made
    context.close()
    assert all(one.startswith((address, "blob:")) for one in asked), asked
    assert not said, said
