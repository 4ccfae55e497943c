"""The routes of the explorer, over HTTP.

Every refusal is JSON with one line, `{"error": …}`. The page's files, read once from the package, are under /static.
FastAPI's pages for /openapi.json are off, as they load scripts from elsewhere.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import PurePath
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from messagenet._version import __version__
from messagenet.errors import InputError
from messagenet.explorer import schemas
from messagenet.explorer.explorer import CacheMiss, Explorer
from messagenet.explorer.guards import BodyLimits, SameOriginOnly, SecurityHeaders, busy_response
from messagenet.explorer.logs import RequestLog, log_details
from messagenet.explorer.models import SampleImages, find_model
from messagenet.explorer.uploads import read_segment_form
from messagenet.explorer.work_queue import Overloaded

PNG = "image/png"
PAGE_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".png": PNG,
    ".svg": "image/svg+xml",
}
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.ErrorResponse, "description": text}
    for status, text in {
        400: "The request cannot be answered.",
        403: "The request comes from another site's page.",
        404: "The image is not cached: send it again.",
        408: "The request took too long to arrive.",
        413: "The request is too long.",
        415: "Not the content type that this route takes.",
        422: "A field is missing or wrong.",
        503: "The server is busy; Retry-After says when to try again.",
    }.items()
}


def create_app(explorer: Explorer, samples: SampleImages, host: str = "127.0.0.1") -> FastAPI:
    """The application, which closes the explorer when it shuts down; `host` is the address the server listens on."""

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
    app.add_middleware(SameOriginOnly, host=host)
    app.add_middleware(RequestLog, metrics=explorer.metrics)
    app.add_middleware(SecurityHeaders)
    _add_refusals(app, explorer)
    _add_page(app)
    _add_listings(app, explorer, samples)
    _add_inference(app, explorer)
    return app


def page_files() -> dict[str, bytes]:
    """The files of the page by name; nothing else is served from the package."""
    entries = (files("messagenet.explorer") / "page").iterdir()
    return {entry.name: entry.read_bytes() for entry in entries if PurePath(entry.name).suffix in PAGE_TYPES}


def prefers_png(accept: str) -> bool:
    """Whether an Accept header names PNG, and before or above JSON.

    >>> prefers_png("image/png"), prefers_png("application/json, image/png;q=0.5"), prefers_png("*/*")
    (True, False, False)
    >>> prefers_png("image/png;q=²")
    True
    """
    weights: dict[str, tuple[float, int]] = {}
    for index, entry in enumerate(accept.lower().split(",")):
        name, _, options = entry.partition(";")
        quality = options.replace(" ", "").removeprefix("q=").partition(";")[0]
        weight = float(quality) if quality.replace(".", "", 1).isdecimal() else 1.0
        weights.setdefault(name.strip(), (weight, -index))
    png, json = weights.get(PNG), weights.get("application/json")
    return png is not None and png[0] > 0 and (json is None or png > json)


def _add_inference(app: FastAPI, explorer: Explorer) -> None:
    responses = {200: {"model": schemas.Segmentation, "content": {PNG: {}}}, **REFUSALS}

    @app.post("/segment", response_model=None, responses=responses, openapi_extra=schemas.SEGMENT_FORM)
    async def segment(request: Request) -> Response:
        """Segments an image: JSON with the maps of all iterations or, if Accept prefers it, a palette PNG of labels."""
        started = time.perf_counter()
        async with read_segment_form(request, explorer.limits) as form:
            model = find_model(explorer.models, form.model)
            iteration = model.resolve_iteration(form.iteration)
            upload = (
                explorer.cached_upload(form.key or "") if form.file is None else await explorer.add_upload(form.file)
            )
        log_details(request, model=model.id, key=upload.key)
        if prefers_png(request.headers.get("accept", "")):
            return Response(await explorer.mask(model, upload, iteration), media_type=PNG)
        answer = await explorer.segmentation(model, upload)
        return JSONResponse({**answer, "milliseconds": _milliseconds(started)})

    @app.post("/explain", response_model=None, responses={200: {"model": schemas.Explanation}, **REFUSALS})
    async def explain(request: Request, question: schemas.ExplainRequest) -> Response:
        """Explains a pixel: the beliefs of its node, and every message that the node receives."""
        started = time.perf_counter()
        model = find_model(explorer.models, question.model)
        log_details(request, model=model.id, key=question.key)
        upload = explorer.cached_upload(question.key)
        answer = await explorer.explanation(model, upload, question.x, question.y, question.iteration)
        return JSONResponse({**answer, "milliseconds": _milliseconds(started)})


def _add_listings(app: FastAPI, explorer: Explorer, samples: SampleImages) -> None:
    @app.get("/health", response_model=schemas.Health)
    async def health() -> dict[str, Any]:
        """Whether the server is up."""
        return {"status": "ok", "version": __version__, "models": len(explorer.models)}

    @app.get("/models", response_model=schemas.ModelList)
    async def models() -> dict[str, Any]:
        """The models on offer."""
        described = [model.description() for model in explorer.models]
        return {"models": described, "default": described[0]["id"]}

    @app.get("/samples", response_model=schemas.SampleList)
    async def sample_names() -> dict[str, Any]:
        """The names of the sample images."""
        return {"samples": list(samples)}

    @app.get("/samples/{name}", response_class=Response)
    def sample(name: str) -> Response:
        """A sample image."""
        found = samples.get(name)
        content = None if found is None else found.content()
        if found is None or content is None:
            raise HTTPException(404, "there is no such sample; GET /samples lists them")
        return Response(content, media_type=found.media_type)

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(explorer.metrics.text(), media_type=CONTENT_TYPE_LATEST)


def _add_page(app: FastAPI) -> None:
    contents = page_files()
    tags = {name: f'"{hashlib.sha256(content).hexdigest()[:16]}"' for name, content in contents.items()}

    @app.get("/static/{name}", include_in_schema=False)
    async def static(request: Request, name: str) -> Response:
        if name not in contents:
            raise HTTPException(404, "there is no such file; the page is at /")
        headers = {"ETag": tags[name], "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == tags[name]:
            return Response(status_code=304, headers=headers)
        return Response(contents[name], media_type=PAGE_TYPES[PurePath(name).suffix], headers=headers)

    @app.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        return await static(request, "index.html")


def _add_refusals(app: FastAPI, explorer: Explorer) -> None:
    def refuse(request: Request, status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
        log_details(request, error=text)
        return JSONResponse({"error": text}, status, headers)

    @app.exception_handler(InputError)
    async def bad_input(request: Request, error: InputError) -> Response:
        return refuse(request, 400, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        field = ".".join(part for part in first["loc"][1:] if isinstance(part, str))[:100] or "body"
        return refuse(request, 422, f"{field}: {first['msg']}; see /openapi.json")

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        return refuse(request, error.status_code, str(error.detail), error.headers)

    @app.exception_handler(ClientDisconnect)
    async def disconnected(request: Request, _: ClientDisconnect) -> Response:
        return refuse(request, 400, "the client disconnected before the request had arrived")

    @app.exception_handler(CacheMiss)
    async def cache_miss(request: Request, _: CacheMiss) -> Response:
        return refuse(request, 404, "the image is not cached, or not any more; send it again")

    @app.exception_handler(Overloaded)
    async def overloaded(request: Request, error: Overloaded) -> Response:
        log_details(request, error=f"the queue for {error} is full")
        return busy_response(explorer.limits)


def _milliseconds(started: float) -> float:
    return round(1000 * (time.perf_counter() - started), 2)
