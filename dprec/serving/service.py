"""The HTTP service of a run: /recommend, /health and /guarantee. It keeps no history, and logs none."""

from __future__ import annotations

import asyncio
import logging
import traceback
from typing import TYPE_CHECKING, Any

from dprec.cli.command import finite
from dprec.errors import refuse_missing
from dprec.serving.question import Limits, Question, Refused, RequestBatcher
from dprec.serving.served import Served

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

PACKAGES = ("starlette", "uvicorn")
LOG = logging.getLogger("dprec.serve")
HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
HEAD = 16_384  # bytes of a request before its body


def refuse_without_packages() -> None:
    refuse_missing(PACKAGES, "dprec serve", "serve")


class Service:
    """Answers requests about one run."""

    def __init__(self, served: Served, limits: Limits) -> None:
        self.served = served
        self.limits = limits
        self._together = RequestBatcher(served)
        self._busy = 0

    async def recommend(self, request: Request) -> Response:
        if self._busy >= self.limits.requests:
            return _refusal(503, f"{self.limits.requests} requests wait already: ask again", {"retry-after": "1"})
        self._busy += 1
        try:
            question = Question.read(await self._body(request), self.limits, self.served.context_columns)
            found = await self._together.answer(question)
            return _json(
                {"items": found.items, "scores": found.scores, "source": found.source, "unknown": found.unknown}
            )
        except Refused as refused:
            unread = refused.status in (408, 413, 415)
            return _refusal(refused.status, str(refused), {"connection": "close"} if unread else {})
        except Exception as error:
            # Not its message, which may hold a part of the history.
            place = traceback.extract_tb(error.__traceback__)[-1]
            LOG.error("a request ended in %s at %s, line %s", type(error).__name__, place.filename, place.lineno)
            return _refusal(500, "the service has met a mistake of its own; its log says where")
        finally:
            self._busy -= 1

    async def _body(self, request: Request) -> bytes:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # which also keeps the pages of others from asking through a browser
            raise Refused(415, "the body is not JSON: send it with content-type application/json")
        try:
            return await asyncio.wait_for(self._read(request), self.limits.seconds)
        except asyncio.TimeoutError:
            raise Refused(408, f"the body was not here within {self.limits.seconds:g} seconds") from None

    async def _read(self, request: Request) -> bytes:
        from starlette.requests import ClientDisconnect

        body = b""
        try:
            async for chunk in request.stream():
                body += chunk
                if len(body) > self.limits.body:
                    raise Refused(413, f"the body has more than {self.limits.body} bytes: send a shorter history")
        except ClientDisconnect:
            raise Refused(400, "the request ended before its body") from None
        return body

    async def health(self, request: Request) -> Response:
        return _json({"status": "ok", "items": len(self.served.catalogue.ids)})

    async def guarantee(self, request: Request) -> Response:
        told = self.served.facts["guarantee"]
        return _json({key: told.get(key) for key in ("guarantee", "epsilon", "delta", "assumed_public")})


def application(served: Served, limits: Limits) -> Starlette:
    """The service as an application of ASGI, for any server."""
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.routing import Route

    service = Service(served, limits)
    routes = [
        Route("/recommend", service.recommend, methods=["POST"]),
        Route("/health", service.health),
        Route("/guarantee", service.guarantee),
    ]

    async def no_such(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
        return _refusal(status, "ask POST /recommend, GET /health or GET /guarantee", headers)

    return Starlette(routes=routes, exception_handlers={HTTPException: no_such})


def server(served: Served, limits: Limits) -> uvicorn.Server:
    """A server for the application, which writes no line for a request."""
    import uvicorn

    return uvicorn.Server(
        uvicorn.Config(
            application(served, limits),
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,  # warnings go where the process logs
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=4 * limits.requests,  # connections
            h11_max_incomplete_event_size=HEAD,
            timeout_graceful_shutdown=10,
        )
    )


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse(finite(value), status, {**HEADERS, **(headers or {})})


def _refusal(status: int, says: str, headers: dict[str, str] | None = None) -> Response:
    return _json({"error": says}, status, headers)
