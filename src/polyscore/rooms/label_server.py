"""What the label page is served by: one port of this machine, pictures of one dataset, nothing else."""

from __future__ import annotations

import re
import socket
import warnings
from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from typing import Any

from polyscore.errors import ArgumentError, PolyscoreError, require
from polyscore.extras import require_found
from polyscore.files.atomic import check_directory
from polyscore.rooms.dataset import Dataset
from polyscore.rooms.label_pictures import TYPES, read_picture
from polyscore.rooms.labelling import PER_CLASS, Labelling
from polyscore.rooms.labels import Picture
from polyscore.schema import count

HOST = "127.0.0.1"
_OURS = re.compile(rf"({re.escape(HOST)}|localhost)(:[0-9]{{1,5}})?", re.IGNORECASE)
_PORT = count(0, (1 << 16) - 1)
# The browser itself refuses whatever would leave this machine; Vue compiles templates, hence `unsafe-eval`.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self' data:; frame-ancestors 'none'; form-action 'none'"
)


def check(folder: Path | str, classes: Collection[str] | None, per_class: int, port: int) -> Path:
    """Return the dataset's folder, or say what stands in the way of labelling it: call it before the server starts."""
    require(_PORT.holds(port), "port", "be from 0 to 65535", port, "Take 0 for any.")
    Labelling(Dataset(folder), classes, per_class)
    check_directory(folder)
    require_found(("nicegui",), "the label page", "web")
    return Path(folder)


def bound(port: int) -> socket.socket:
    """Return a socket that listens to this machine alone; port 0 is any that is free."""
    made = socket.socket()
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((HOST, port))
        made.listen()  # whoever comes before the server is ready waits for it
    except OSError as error:
        made.close()
        raise ArgumentError(
            f"port must be free; {port} is not ({error.strerror}). Choose another, or 0 for any that is free."
        ) from error
    return made


class Guard:
    """Turns away whoever does not speak to this machine by its own name: other hosts, and pages of other sites."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan" or _is_ours(dict(scope["headers"])):
            await self._app(scope, receive, _stamped(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send({"type": "http.response.start", "status": 403, "headers": []})
            await send({"type": "http.response.body", "body": b"not from here"})


def _is_ours(headers: dict[bytes, bytes]) -> bool:
    """Whether a request names this machine and comes from its own page, or from no page at all.

    A browser names no origin where a page of another site shows a picture: it says so in `sec-fetch-site`. A link
    that leads here from elsewhere opens the page, and gives nothing to the other site.
    """
    host, origin, site, mode = (headers.get(name, b"").decode("latin-1")
                                for name in (b"host", b"origin", b"sec-fetch-site", b"sec-fetch-mode"))  # fmt: skip
    fetched = site in ("", "none", "same-origin") or mode == "navigate"
    return bool(_OURS.fullmatch(host)) and origin in ("", f"http://{host}") and fetched


def _stamped(send: Any) -> Any:
    async def stamped(message: Any) -> None:
        if message["type"] == "http.response.start":
            extra = [(b"content-security-policy", _POLICY.encode()), (b"x-content-type-options", b"nosniff")]
            message = message | {"headers": [*message["headers"], *extra]}
        await send(message)

    return stamped


def make_app(folder: Path, classes: Collection[str] | None = None, per_class: int = PER_CLASS) -> Any:
    """Return the application: the page at `/`, pictures below `/picture/`."""
    from fastapi import FastAPI, Response
    from nicegui import ui

    from polyscore.rooms.label_page import refuse, show

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/picture/{name}/{file}")
    def picture(name: str, file: str) -> Response:
        try:
            content = read_picture(folder, Picture(name, file))
        except PolyscoreError as error:
            return Response(str(error), 404, media_type="text/plain")
        return Response(content, media_type=TYPES[Path(file).suffix], headers={"cache-control": "private, max-age=600"})

    @ui.page("/")
    def page() -> None:
        try:
            show(Dataset(folder), classes, per_class)
        except PolyscoreError as error:  # labels or dataset changed since the server started
            refuse(error)

    ui.run_with(app, title="polyscore rooms label", show_welcome_message=False)
    app.add_middleware(Guard)
    return app


def serve(made: socket.socket, app: Any) -> None:
    """Serve an application until it is stopped (Ctrl-C)."""
    import uvicorn

    with closing(made), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # NiceGUI looks at every object for its server, torch's too
        uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2)).run(sockets=[made])
