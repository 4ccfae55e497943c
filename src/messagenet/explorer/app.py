"""The addresses of the explorer: each reads its request, asks the `Explorer`, and answers.

The page's own files, read once from the package: what is not among them cannot be asked for.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import PurePath
from typing import Any, NamedTuple

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, JSONResponse

from messagenet._version import __version__
from messagenet.errors import InputError
from messagenet.explorer import reference, schemas
from messagenet.explorer.explorer import Explorer, NotKept
from messagenet.explorer.guards import BodyLimits, OwnPagesOnly, SecurityHeaders, busy
from messagenet.explorer.logs import RequestLog, note
from messagenet.explorer.models import Samples
from messagenet.explorer.uploads import segment_form
from messagenet.explorer.work_queue import Overloaded

MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
}


class PageFile(NamedTuple):
    """A file of the page."""

    content: bytes
    media_type: str
    tag: str


def page_files() -> dict[str, PageFile]:
    """The files of the page by name."""
    found = {}
    for entry in (files("messagenet.explorer") / "page").iterdir():
        if entry.is_file() and (media_type := MEDIA_TYPES.get(PurePath(entry.name).suffix)):
            content = entry.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
            found[entry.name] = PageFile(content, media_type, tag)
    return found


PNG = "image/png"
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.Failure, "description": text}
    for status, text in {
        400: "The request cannot be answered as it is.",
        403: "Another site's page asked.",
        404: "The image is not, or no longer, kept: send it again.",
        408: "It took too long to arrive.",
        413: "Too long.",
        415: "Not the content type that this address takes.",
        422: "A field is missing or wrong.",
        503: "Too much to do; Retry-After says when to come back.",
    }.items()
}


def create_app(explorer: Explorer, samples: Samples, host: str = "127.0.0.1") -> FastAPI:
    """The application.

    Args:
        explorer: What answers; it is closed with the application.
        samples: Images on offer.
        host: The address that the server listens on, by which it may be called.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        explorer.close()

    app = FastAPI(
        title="messagenet: the message explorer",
        version=__version__,
        description="Segment images, and see the messages behind the labels.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.add_middleware(BodyLimits, limits=explorer.limits)
    app.add_middleware(OwnPagesOnly, host=host)
    app.add_middleware(RequestLog, metrics=explorer.metrics)
    app.add_middleware(SecurityHeaders)
    _add_refusals(app, explorer)
    _add_page(app, page_files())
    _add_listings(app, explorer, samples)
    _add_segment(app, explorer)
    _add_explain(app, explorer)
    return app


def _add_segment(app: FastAPI, explorer: Explorer) -> None:
    answers: dict[int | str, dict[str, Any]] = {
        200: {"model": schemas.Segmentation, "content": {PNG: {}}},
        **REFUSALS,
    }

    @app.post("/segment", response_model=None, responses=answers, openapi_extra=schemas.UPLOAD_FORM)
    async def segment(request: Request) -> Response:
        """Segments an image: JSON with the maps of all iterations or, if accepted first, a palette PNG of labels."""
        started = time.perf_counter()
        async with segment_form(request, explorer.limits) as form:
            model = explorer.model(form.model)
            iteration = model.checked_iteration(form.iteration)
            if form.file is not None:
                picture = await explorer.accept(form.file)
            else:
                picture = explorer.kept(form.key or "")
        note(request, model=model.id, key=picture.key)
        if prefers_png(request.headers.get("accept", "")):
            return Response(await explorer.mask(model, picture, iteration), media_type=PNG)
        answer = await explorer.segmentation(model, picture)
        return JSONResponse({**answer, "milliseconds": _milliseconds(started)})


def _add_explain(app: FastAPI, explorer: Explorer) -> None:
    answers: dict[int | str, dict[str, Any]] = {200: {"model": schemas.Explanation}, **REFUSALS}

    @app.post("/explain", response_model=None, responses=answers)
    async def explain(request: Request, question: schemas.Question) -> Response:
        """Every message that the node at a pixel receives, and what it believes because of them."""
        started = time.perf_counter()
        model = explorer.model(question.model)
        note(request, model=model.id, key=question.key)
        picture = explorer.kept(question.key)
        answer = await explorer.explanation(model, picture, question.x, question.y, question.iteration)
        return JSONResponse({**answer, "milliseconds": _milliseconds(started)})


def _add_listings(app: FastAPI, explorer: Explorer, samples: Samples) -> None:
    @app.get("/health", response_model=schemas.Health)
    async def health() -> dict[str, Any]:
        """Whether the server is there."""
        return {"status": "ok", "version": __version__, "models": len(explorer.models)}

    @app.get("/models", response_model=schemas.ModelList)
    async def models() -> dict[str, Any]:
        """The models on offer."""
        described = [model.description() for model in explorer.models]
        return {"models": described, "default": described[0]["id"]}

    @app.get("/samples", response_model=schemas.SampleList)
    async def sample_names() -> dict[str, Any]:
        """The images on offer."""
        return {"samples": list(samples)}

    @app.get("/samples/{name}", response_class=Response)
    def sample(name: str) -> Response:
        """One of the images on offer."""
        listed = samples.get(name)
        content = None if listed is None else listed.content()
        if listed is None or content is None:
            raise HTTPException(404, "there is no such sample; GET /samples lists them")
        return Response(content, media_type=listed.media_type)

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Figures for Prometheus."""
        return Response(explorer.metrics.text(), media_type=CONTENT_TYPE_LATEST)


def _add_page(app: FastAPI, files: Mapping[str, PageFile]) -> None:
    @app.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        return _page_file(request, files.get("index.html"))

    @app.get("/static/{name}", include_in_schema=False)
    async def static(request: Request, name: str) -> Response:
        return _page_file(request, files.get(name))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(reference.page(app.openapi()))

    @app.get("/docs.css", include_in_schema=False)
    async def docs_style() -> Response:
        return Response(reference.STYLE, media_type="text/css")


def _page_file(request: Request, file: PageFile | None) -> Response:
    if file is None:
        raise HTTPException(404, "there is no such file; the page is at /")
    headers = {"ETag": file.tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)


def _add_refusals(app: FastAPI, explorer: Explorer) -> None:
    def refused(
        request: Request, status: int, text: str, headers: Mapping[str, str] | None = None
    ) -> Response:
        note(request, error=text)
        return JSONResponse({"error": text}, status, headers)

    @app.exception_handler(InputError)
    async def bad_input(request: Request, error: InputError) -> Response:
        return refused(request, 400, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        place = ".".join(part for part in first["loc"][1:] if isinstance(part, str))[:100] or "body"
        return refused(request, 422, f"{place}: {first['msg']}; see /docs")

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        return refused(request, error.status_code, str(error.detail), error.headers)

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, _: ClientDisconnect) -> Response:
        return refused(request, 400, "the client went away before all had arrived")

    @app.exception_handler(NotKept)
    async def not_kept(request: Request, _: NotKept) -> Response:
        return refused(request, 404, "the image is not, or no longer, kept; send it again")

    @app.exception_handler(Overloaded)
    async def overloaded(request: Request, error: Overloaded) -> Response:
        note(request, error=f"the queue for {error} is full")
        return busy(explorer.limits)


def prefers_png(accept: str) -> bool:
    """Whether an Accept header names PNG, and before or above JSON.

    >>> prefers_png("image/png"), prefers_png("application/json, image/png;q=0.5"), prefers_png("*/*")
    (True, False, False)
    >>> prefers_png("image/png;q=²")
    True
    """
    wishes: dict[str, tuple[float, int]] = {}
    for place, wish in enumerate(accept.lower().split(",")):
        name, _, options = wish.partition(";")
        quality = options.replace(" ", "").removeprefix("q=").partition(";")[0]
        weight = float(quality) if quality.replace(".", "", 1).isdecimal() else 1.0
        wishes.setdefault(name.strip(), (weight, -place))
    png, json = wishes.get(PNG), wishes.get("application/json")
    return png is not None and png[0] > 0 and (json is None or png > json)


def _milliseconds(started: float) -> float:
    return round(1000 * (time.perf_counter() - started), 2)
