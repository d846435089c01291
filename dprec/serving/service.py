"""The HTTP service of a run: /recommend, /similar or /predict, /health, /guarantee. It stores and logs no history."""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from dprec.cli.command import finite
from dprec.errors import UserError
from dprec.serving.predictions import ClickRun, TextRun
from dprec.serving.requests import Request
from dprec.serving.served import Served
from dprec.serving.top_k import Question, Recommended

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request as HTTPRequest
    from starlette.responses import Response

Read = TypeVar("Read")
AnyRun: TypeAlias = "Served | ClickRun | TextRun"


@dataclass(frozen=True)
class Limits:
    """The limits of one request, and how many requests the service takes at a time."""

    k: int = 1000
    history: int = 1000  # events
    several: int = 100  # histories or items in a request
    body: int = 65_536  # bytes
    requests: int = 512  # that wait or are being answered
    seconds: float = 10.0  # to receive a request's body

    def refuse_more(self, given: Any, of: str, most: int, instead: str = "ask in several requests") -> None:
        if isinstance(given, (list, dict)) and len(given) > most:
            raise Refused(413, f"the request has {len(given)} {of}, more than {most}: {instead}")

    def k_of(self, value: Mapping[str, Any]) -> Any:
        k = value.get("k", min(10, self.k))
        if isinstance(k, int) and k > self.k:
            raise Refused(400, f"k must be a whole number from 1 to {self.k}")
        return k


class Refused(UserError):
    """A refused request: an HTTP status and one line."""

    def __init__(self, status: int, says: str) -> None:
        super().__init__(says)
        self.status = status


ONE = "history"  # the key of a single history in a body


def request_of(body: bytes, limits: Limits) -> tuple[Request, bool]:
    """Return the request in a body, and whether it has a single history, named "history".

    Such as {"history": ["12", "7"], "k": 10, "exclude_seen": true, "items": [...], "exclude": [...]}. A run that reads
    context takes events instead of ids. `histories` has several, as in `Served.recommend`.
    """
    others = [name for name in Request.__dataclass_fields__ if name != "histories"]
    value = json_of(body, (ONE, "histories"), others, '{"history": ["12"], "k": 10}')
    histories, items, exclude = (value.get(name) for name in ("histories", "items", "exclude"))
    if ONE in value:
        histories = {ONE: value[ONE]}
        items, exclude = (None if ids is None else {ONE: ids} for ids in (items, exclude))
    if not isinstance(histories, (list, dict)):
        raise Refused(400, "histories must be a list of histories, or an object of histories by name")
    limits.refuse_more(histories, "histories", limits.several)
    for each in histories.values() if isinstance(histories, dict) else histories:
        limits.refuse_more(each, "events in a history", limits.history, "send the most recent ones")
    seen = value.get("exclude_seen", True)
    return Request(histories, limits.k_of(value), seen, items, exclude, value.get("only")), ONE in value


def json_of(body: bytes, one_of: Sequence[str], others: Sequence[str], example: str) -> dict[str, Any]:
    """Return the object of a body with exactly one key of `one_of`, optionally keys of `others`, and no more."""
    try:
        value = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):  # json's message would contain a part of the history
        raise Refused(400, f"the body is not JSON: send {example}") from None
    if not isinstance(value, dict) or sum(key in value for key in one_of) != 1:
        wanted = "either " * (len(one_of) > 1) + " or ".join(one_of)
        raise Refused(400, f"the body is not an object with {wanted}: send {example}")
    if set(value) - {*one_of, *others}:
        raise Refused(400, f"the body has an unknown key: give {', '.join([*one_of, *others])}")
    return value


MOST = 64  # questions in one pass of the model: later ones wait at most for one pass


class RequestBatcher:
    """Answers waiting questions together, each as if it were alone, in the model's own thread."""

    def __init__(self, served: Any) -> None:
        self.served = served
        self._waiting: deque[tuple[Question, Future[Recommended]]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="recommend")

    async def answer(self, question: Question) -> Recommended:
        answer: Future[Recommended] = Future()
        self._waiting.append((question, answer))
        self._thread.submit(self._answer_some)  # an earlier call may already have answered
        return await asyncio.wrap_future(answer)

    def _answer_some(self) -> None:
        some = [self._waiting.popleft() for _ in range(min(MOST, len(self._waiting)))]
        some = [pair for pair in some if pair[1].set_running_or_notify_cancel()]  # not cancelled
        if not some:
            return
        try:
            found = self.served.answer([question for question, _ in some])
        except Exception as error:
            for _, answer in some:
                answer.set_exception(error)
        else:
            for (_, answer), one in zip(some, found, strict=True):
                answer.set_result(one)

    async def run(self, work: Callable[..., Read], *given: Any, **named: Any) -> Read:
        """What the model makes of something, in its own thread."""
        return await asyncio.wrap_future(self._thread.submit(work, *given, **named))


LOG = logging.getLogger("dprec.serve")
HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
HEAD = 16_384  # bytes of a request before its body


class Service:
    """Answers requests about one run."""

    def __init__(self, served: AnyRun, limits: Limits) -> None:
        self.served: Any = served
        self.limits = limits
        self.paths = {"/predict": self._predict}
        if isinstance(served, Served):
            self.paths = {"/recommend": self._recommend, "/similar": self._similar}
        self._batcher = RequestBatcher(served)
        self._busy = 0

    async def _recommend(self, body: bytes) -> dict[str, Any]:
        request, is_one = request_of(body, self.limits)
        names, questions = self.served.reader.read(request)
        found = [vars(one) for one in await asyncio.gather(*map(self._batcher.answer, questions))]
        if is_one:
            return found[0]
        return {"answers": dict(zip(names, found, strict=True)) if isinstance(request.histories, dict) else found}

    async def _similar(self, body: bytes) -> dict[str, Any]:
        value = json_of(body, ("items",), ("k",), '{"items": ["12"], "k": 10}')
        self.limits.refuse_more(value["items"], "ids", self.limits.several)
        found = await self._batcher.run(self.served.similar, value["items"], self.limits.k_of(value))
        return {"similar": [vars(one) for one in found]}

    async def _predict(self, body: bytes) -> dict[str, Any]:
        if isinstance(self.served, ClickRun):
            key, others, example = "records", "", '[{"ad_id": "3", "device": null}]'
        else:
            key, others, example = "texts", "pairs", '["..."]'
        value = json_of(body, (key,), others.split(), f'{{"{key}": {example}}}')
        if not all(isinstance(given, list) for given in value.values()):
            raise Refused(400, f"{' and '.join(value)} must be lists, such as {example}")
        return {"predictions": await self._batcher.run(self.served.predict, value.pop(key), **value)}

    async def post(self, request: HTTPRequest) -> Response:
        """Answer what is asked of one of the paths."""
        if self._busy >= self.limits.requests:
            return _refusal(503, f"{self.limits.requests} requests are waiting: ask again later", {"retry-after": "1"})
        self._busy += 1
        try:
            return _json(await self.paths[request.url.path](await self._body(request)))
        except UserError as error:
            status = error.status if isinstance(error, Refused) else 400
            return _refusal(status, str(error), {"connection": "close"} if status in (408, 413, 415) else {})
        except Exception as error:
            # Without its message, which may contain a part of the history.
            place = traceback.extract_tb(error.__traceback__)[-1]
            LOG.error("a request ended in %s at %s, line %s", type(error).__name__, place.filename, place.lineno)
            return _refusal(500, "internal error: the service's log names the line")
        finally:
            self._busy -= 1

    async def _body(self, request: HTTPRequest) -> bytes:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # this also blocks requests of foreign pages in a browser
            raise Refused(415, "the body is not JSON: send it with content-type application/json")
        try:
            return await asyncio.wait_for(self._read(request), self.limits.seconds)
        except asyncio.TimeoutError:
            raise Refused(408, f"the body did not arrive within {self.limits.seconds:g} seconds") from None

    async def _read(self, request: HTTPRequest) -> bytes:
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

    async def health(self, request: HTTPRequest) -> Response:
        items = {"items": len(self.served.catalogue)} if isinstance(self.served, Served) else {}
        return _json({"status": "ok"} | items)

    async def guarantee(self, request: HTTPRequest) -> Response:
        told = self.served.facts["guarantee"]
        return _json({key: told.get(key) for key in ("guarantee", "epsilon", "delta", "assumed_public")})


def application(served: AnyRun, limits: Limits) -> Starlette:
    """Return the service as an ASGI application, for any server."""
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.routing import Route

    service = Service(served, limits)
    routes = [
        *(Route(path, service.post, methods=["POST"]) for path in service.paths),
        Route("/health", service.health),
        Route("/guarantee", service.guarantee),
    ]

    async def no_such(request: HTTPRequest, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
        posts = ", ".join(f"POST {path}" for path in service.paths)
        return _refusal(status, f"ask {posts}, GET /health or GET /guarantee", headers)

    return Starlette(routes=routes, exception_handlers={HTTPException: no_such})


def server(served: AnyRun, limits: Limits) -> uvicorn.Server:
    """Return a server for the application, which logs no requests."""
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
