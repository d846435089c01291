"""The HTTP service of a run: /recommend, /similar or /predict, /health, /guarantee. It keeps and logs no history."""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from dprec.cli.command import finite
from dprec.data.logs.context import ContextColumns
from dprec.errors import UserError, refuse_missing
from dprec.serving.histories import History, example
from dprec.serving.predictions import ClickRun, TextRun
from dprec.serving.served import Served
from dprec.serving.top_k import Question, Recommended

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

Read = TypeVar("Read")
AnyRun: TypeAlias = "Served | ClickRun | TextRun"


@dataclass(frozen=True)
class Limits:
    """What one request may ask, and how many the service takes at a time."""

    k: int = 1000
    history: int = 1000  # events
    similar: int = 100  # items that are asked about
    body: int = 65_536  # bytes
    requests: int = 512  # that wait or are answered
    seconds: float = 10.0  # until a request's body is here


class Refused(UserError):
    """A request that gets no answer: a status of HTTP and one line."""

    def __init__(self, status: int, says: str) -> None:
        super().__init__(says)
        self.status = status


def question_of(body: bytes, limits: Limits, served: Served) -> Question:
    """From JSON such as {"history": ["12", "7"], "k": 10, "exclude_seen": true, "items": [...], "exclude": [...]}.

    A run that reads context has events in place of ids.
    """
    value = _object(body, ("history", "k", "exclude_seen", "items", "exclude"), '{"history": ["12", "7"], "k": 10}')
    exclude_seen = value.get("exclude_seen", True)
    if not isinstance(exclude_seen, bool):
        raise Refused(400, "exclude_seen must be true or false")
    (question,) = served.reader.after([_history(value["history"], limits, served.reader.columns)])
    chosen: dict[str, Any] = {
        name: _ids(value[name], name, served) for name in ("items", "exclude") if value.get(name) is not None
    }
    return replace(question, k=_k(value, limits), exclude_seen=exclude_seen, **chosen)


def items_of(body: bytes, limits: Limits, served: Served) -> tuple[np.ndarray, int]:
    """The numbers of items, and how many similar ones each gets, from JSON such as {"items": ["12"], "k": 10}."""
    value = _object(body, ("items", "k"), '{"items": ["12"], "k": 10}')
    numbers = _ids(value["items"], "items", served)
    if len(numbers) > limits.similar:
        raise Refused(413, f"items has {len(numbers)} ids, more than {limits.similar}: ask in several requests")
    return numbers, _k(value, limits)


def asked_of(body: bytes, run: ClickRun | TextRun) -> tuple[list[Any], ...]:
    """What to predict, from JSON such as {"records": [{"ad_id": "3"}]}, or {"texts": ["..."]}, with pairs."""
    if isinstance(run, ClickRun):
        records = _object(body, ("records",), '{"records": [{"ad_id": "3", "device": null}]}')["records"]
        return (_list(records, dict, "records", "objects with a value for each column"),)
    value = _object(body, ("texts", "pairs"), '{"texts": ["..."]}')
    found = [_list(value[name], str, name, "texts") for name in ("texts", "pairs") if value.get(name) is not None]
    if len(set(map(len, found))) > 1:
        raise Refused(400, f"there are {len(found[0])} texts and {len(found[1])} pairs: give as many")
    return tuple(found)


def _list(told: Any, kind: type | tuple[type, ...], name: str, of: str) -> list[Any]:
    if not isinstance(told, list) or not all(isinstance(one, kind) and not isinstance(one, bool) for one in told):
        raise Refused(400, f"{name} must be a list of {of}")
    return told


def _object(body: bytes, keys: Sequence[str], example: str) -> dict[str, Any]:
    """The object of a body that has the first of these keys, and no others."""
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):  # the message of json would hold a part of the history
        raise Refused(400, f"the body is not JSON: send {example}") from None
    if not isinstance(value, dict) or keys[0] not in value:
        raise Refused(400, f"the body is not an object with {keys[0]}: send {example}")
    if set(value) - set(keys):
        raise Refused(400, f"the body has an unknown key: give {', '.join(keys)}")
    return value


def _k(value: Mapping[str, Any], limits: Limits) -> int:
    k = value.get("k", min(10, limits.k))
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= limits.k:
        raise Refused(400, f"k must be a whole number from 1 to {limits.k}")
    return k


def _ids(told: Any, name: str, served: Served) -> np.ndarray:
    """The numbers of items that the run must know."""
    return served.reader.numbers(_list(told, (str, int), name, 'item ids, such as ["12", "7"]'), name)


def _history(told: Any, limits: Limits, columns: ContextColumns | None) -> History:
    _list(told, dict if columns is not None else (str, int), "history", example(columns))
    if len(told) > limits.history:
        raise Refused(413, f"the history has {len(told)} events, more than {limits.history}: send the most recent ones")
    return History.read(told, "history", columns)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


# Requests that wait at the same time are answered by one pass of the model.


MOST = 64  # requests in one pass: what comes later waits no longer than this takes


class RequestBatcher:
    """Answers questions, each as if it were alone; the model works in a thread of its own."""

    def __init__(self, served: Any) -> None:
        self.served = served
        self._waiting: list[tuple[Question, asyncio.Future[Recommended]]] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="recommend")
        self._work: asyncio.Task[None] | None = None

    async def answer(self, question: Question) -> Recommended:
        answer: asyncio.Future[Recommended] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, answer))
        if self._work is None:
            self._work = asyncio.create_task(self._answer_all())
        return await answer

    async def _answer_all(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
                if waited_for := [pair for pair in batch if not pair[1].done()]:  # done: nobody waits any more
                    await self._answer_some(waited_for)
        finally:
            self._work = None

    async def _answer_some(self, batch: Sequence[tuple[Question, asyncio.Future[Recommended]]]) -> None:
        answers = [answer for _, answer in batch]
        try:
            found = await self.run(self.served.answer, [question for question, _ in batch])
        except Exception as error:
            for answer in answers:
                if not answer.done():
                    answer.set_exception(error)
        else:
            for answer, one in zip(answers, found, strict=True):
                if not answer.done():
                    answer.set_result(one)

    async def run(self, work: Callable[..., Read], *given: Any) -> Read:
        """What the model makes of something, in its own thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *given)


PACKAGES = ("starlette", "uvicorn")
LOG = logging.getLogger("dprec.serve")
HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
HEAD = 16_384  # bytes of a request before its body


def refuse_without_packages() -> None:
    refuse_missing(PACKAGES, "dprec serve", "serve")


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
        return vars(await self._batcher.answer(question_of(body, self.limits, self.served)))

    async def _similar(self, body: bytes) -> dict[str, Any]:
        found = await self._batcher.run(self.served.similar_to, *items_of(body, self.limits, self.served))
        return {"similar": [vars(one) for one in found]}

    async def _predict(self, body: bytes) -> dict[str, Any]:
        predict = self.served.predict_records if isinstance(self.served, ClickRun) else self.served.predict
        return {"predictions": await self._batcher.run(predict, *asked_of(body, self.served))}

    async def post(self, request: Request) -> Response:
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
            # Not its message, which may hold a part of the history.
            place = traceback.extract_tb(error.__traceback__)[-1]
            LOG.error("a request ended in %s at %s, line %s", type(error).__name__, place.filename, place.lineno)
            return _refusal(500, "internal error: the service's log names the line")
        finally:
            self._busy -= 1

    async def _body(self, request: Request) -> bytes:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # which also keeps the pages of others from asking through a browser
            raise Refused(415, "the body is not JSON: send it with content-type application/json")
        try:
            return await asyncio.wait_for(self._read(request), self.limits.seconds)
        except asyncio.TimeoutError:
            raise Refused(408, f"the body did not arrive within {self.limits.seconds:g} seconds") from None

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
        items = {"items": len(self.served.catalogue)} if isinstance(self.served, Served) else {}
        return _json({"status": "ok"} | items)

    async def guarantee(self, request: Request) -> Response:
        told = self.served.facts["guarantee"]
        return _json({key: told.get(key) for key in ("guarantee", "epsilon", "delta", "assumed_public")})


def application(served: AnyRun, limits: Limits) -> Starlette:
    """The service as an application of ASGI, for any server."""
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.routing import Route

    service = Service(served, limits)
    routes = [
        *(Route(path, service.post, methods=["POST"]) for path in service.paths),
        Route("/health", service.health),
        Route("/guarantee", service.guarantee),
    ]

    async def no_such(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
        posts = ", ".join(f"POST {path}" for path in service.paths)
        return _refusal(status, f"ask {posts}, GET /health or GET /guarantee", headers)

    return Starlette(routes=routes, exception_handlers={HTTPException: no_such})


def server(served: AnyRun, limits: Limits) -> uvicorn.Server:
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
