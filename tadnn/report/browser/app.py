"""The browser's pages: which address shows what."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import Route

from tadnn.errors import RequestError, TadnnError, TargetError, UnknownName
from tadnn.report.browser import pages
from tadnn.report.browser.assets import assets
from tadnn.report.browser.exports import BuildExport, Exports
from tadnn.report.browser.guard import Guard
from tadnn.report.browser.records import dumps, row_record, study_json, view_record
from tadnn.report.library import Library

_MOST_TRIAL = 2**53


def build_app(library: Library, build_export: BuildExport | None = None) -> Starlette:
    """Return the browser as an ASGI application.

    Args:
        library: what there is to see.
        build_export: writes the export of a study's trial as a folder; without it networks are
            shown and not handed out.
    """
    site = _Site(library, None if build_export is None else Exports(build_export))
    routes = [
        Route("/", site.studies),
        Route("/studies.json", partial(site.studies, as_json=True)),
        Route("/studies/{study}.json", partial(site.study, as_json=True)),
        Route("/studies/{study}", site.study),
        Route("/studies/{study}/trials/{trial}.json", partial(site.network, as_json=True)),
        Route("/studies/{study}/trials/{trial}", site.network),
        Route("/studies/{study}/trials/{trial}/export.zip", site.export),
        Route("/compare", site.compare),
        Route("/compare.json", partial(site.compare, as_json=True)),
        Route("/latency-models", site.models),
        Route("/latency-models.json", partial(site.models, as_json=True)),
        Route("/latency-models/{model}.json", partial(site.model, as_json=True)),
        Route("/latency-models/{model}", site.model),
        Route("/assets/{name}", site.asset),
    ]
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(Guard, refuse=_refused),
            Middleware(GZipMiddleware, minimum_size=2048, compresslevel=4),
        ],
        exception_handlers={
            TadnnError: _tadnn_error,
            HTTPException: _http_error,
            Exception: _our_error,
        },
        lifespan=site.lifespan,
    )


class _Site:
    """Answers requests; everything slow runs in a thread of its own."""

    def __init__(self, library: Library, exports: Exports | None) -> None:
        self._library, self._exports = library, exports

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Delete at the end what exports left."""
        try:
            yield
        finally:
            if self._exports is not None:
                self._exports.close()

    async def studies(self, request: Request, as_json: bool = False) -> Response:
        rows = await run_in_threadpool(self._library.rows)
        if as_json:
            return _json(dumps({"studies": [row_record(row) for row in rows]}))
        return _page("studies.html", rows=rows, active="studies")

    async def study(self, request: Request, as_json: bool = False) -> Response:
        shelf = await run_in_threadpool(self._library.shelf, request.path_params["study"])
        view = await run_in_threadpool(shelf.view)
        text = await run_in_threadpool(study_json, view)
        if as_json:
            return _json(text)
        return _page("study.html", key=shelf.key, view=view, text=text, active="studies")

    async def network(self, request: Request, as_json: bool = False) -> Response:
        shelf = await run_in_threadpool(self._library.shelf, request.path_params["study"])
        trial = _trial(request)
        view = await run_in_threadpool(shelf.network, trial)
        if as_json:
            return _json(dumps(view_record(view)))
        return _page(
            "network.html",
            key=shelf.key,
            view=view,
            model=_model_name(shelf.view()),
            exportable=self._exports is not None,
            active="studies",
        )

    async def export(self, request: Request) -> Response:
        if self._exports is None:
            raise HTTPException(404, "this browser was started without exports")
        shelf = await run_in_threadpool(self._library.shelf, request.path_params["study"])
        trial = _trial(request)
        view = await run_in_threadpool(shelf.network, trial)  # refuses unknown trials
        # Beside a running search nothing is measured; afterwards it is.
        facts = (view.facts, view.curve, shelf.view().progress.running > 0)
        path = await run_in_threadpool(self._exports.zipped, shelf.key, shelf.spec, trial, facts)
        return FileResponse(path, media_type="application/zip", filename=path.name)

    async def compare(self, request: Request, as_json: bool = False) -> Response:
        keys = request.query_params.getlist("study")
        rows = [] if as_json else await run_in_threadpool(self._library.rows)
        view = None
        if keys or as_json:
            view = await run_in_threadpool(self._library.compare, keys)
        if as_json:
            assert view is not None
            return _json(dumps(view_record(view)))
        return _page("compare.html", view=view, rows=rows, chosen=keys, active="compare")

    async def models(self, request: Request, as_json: bool = False) -> Response:
        names = await run_in_threadpool(self._library.models)
        if as_json:
            return _json(dumps({"latency_models": names}))
        return _page("models.html", names=names, active="models")

    async def model(self, request: Request, as_json: bool = False) -> Response:
        name = request.path_params["model"]
        view = await run_in_threadpool(self._library.model, name)
        if as_json:
            return _json(dumps(view_record(view)))
        columns = pages.held_out_columns()
        return _page("model.html", view=view, columns=columns, active="models")

    async def asset(self, request: Request) -> Response:
        found = assets().get(request.path_params["name"])
        if found is None:
            raise HTTPException(404, "there is no such file")
        headers = {"cache-control": "no-cache", "etag": f'"{found.tag}"'}
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers |= {"content-encoding": "gzip", "vary": "accept-encoding"}
            return Response(found.packed, media_type=found.kind, headers=headers)
        return Response(found.plain, media_type=found.kind, headers=headers)


def _trial(request: Request) -> int:
    text = request.path_params["trial"]
    if not (text.isascii() and text.isdigit() and int(text) < _MOST_TRIAL):
        raise HTTPException(404, f"a trial is named by its number; got {text[:80]!r}")
    return int(text)


def _model_name(view: Any) -> str:
    """Return the name of a study's latency model as its page is named: without a device."""
    return str(view.front["latency_model"] or "").partition("@")[0]


def _page(template: str, status: int = 200, **values: Any) -> Response:
    return HTMLResponse(pages.render(template, **values), status)


def _json(text: str, status: int = 200) -> Response:
    return Response(text, status, media_type="application/json")


def _error(request: Request, status: int, message: str, **headers: str) -> Response:
    sentence = message[0].upper() + message[1:]
    if request.url.path.endswith(".json"):
        answer = _json(pages.error_json(status, sentence), status)
    else:
        answer = _page("error.html", status, code=status, message=sentence, active="")
    answer.headers.update(headers)
    return answer


async def _tadnn_error(request: Request, error: Exception) -> Response:
    missing = isinstance(error, UnknownName | TargetError)
    status = 404 if missing else 400 if type(error) is RequestError else 409
    return _error(request, status, str(error))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentences: dict[int, Callable[[], str]] = {
        404: lambda: f"there is no page {request.url.path[:200]!r}",
        405: lambda: f"pages are read with GET; this was {request.method[:20]!r}",
    }
    default = error.detail in ("Not Found", "Method Not Allowed") and error.status_code in sentences
    message = sentences[error.status_code]() if default else str(error.detail)
    return _error(request, error.status_code, message, **dict(error.headers or {}))


async def _our_error(request: Request, error: Exception) -> Response:
    return _error(request, 500, "something went wrong here; the terminal shows what")


async def _refused(scope: Any, receive: Any, send: Any) -> None:
    status, message = scope["refusal"]
    await _error(Request(scope), status, message)(scope, receive, send)
