"""A request's body, read and refused in one line; nothing of it is kept or logged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from dprec.data.logs.context import ContextColumns
from dprec.errors import UserError
from dprec.serving.histories import History, example
from dprec.serving.served import Recommended, Served


@dataclass(frozen=True)
class Limits:
    """What one request may ask, and how many the service takes at a time."""

    k: int = 1000
    history: int = 1000  # events
    body: int = 65_536  # bytes
    requests: int = 512  # that wait or are answered
    seconds: float = 10.0  # until a request's body is here


class Refused(Exception):
    """A request that gets no answer: a status of HTTP and one line."""

    def __init__(self, status: int, says: str) -> None:
        super().__init__(says)
        self.status = status


@dataclass(frozen=True)
class Question:
    """What a request asks: the best `k` items after a history."""

    history: History
    k: int = 10
    exclude_seen: bool = True

    @classmethod
    def read(cls, body: bytes, limits: Limits, columns: ContextColumns | None = None) -> Question:
        """From JSON such as {"history": ["12", "7"], "k": 10, "exclude_seen": true}.

        A run that reads context has its columns, and events in place of ids.
        """
        try:
            value = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
        except (ValueError, RecursionError):  # the message of json would hold a part of the history
            raise Refused(400, 'the body is not JSON: send {"history": ["12", "7"], "k": 10}') from None
        if not isinstance(value, dict) or "history" not in value:
            raise Refused(400, 'the body is not an object with a history: send {"history": ["12", "7"], "k": 10}')
        if set(value) - {"history", "k", "exclude_seen"}:
            raise Refused(400, "the body has an unknown key: give history, k and exclude_seen")
        k, exclude_seen = value.get("k", min(10, limits.k)), value.get("exclude_seen", True)
        if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= limits.k:
            raise Refused(400, f"k is no whole number from 1 to {limits.k}")
        if not isinstance(exclude_seen, bool):
            raise Refused(400, "exclude_seen is neither true nor false")
        return cls(_history(value["history"], limits, columns), k, exclude_seen)


def _history(told: Any, limits: Limits, columns: ContextColumns | None) -> History:
    wanted = dict if columns is not None else (str, int)
    if not isinstance(told, list) or not all(isinstance(one, wanted) and not isinstance(one, bool) for one in told):
        raise Refused(400, f"history is no list of {example(columns)}")
    if len(told) > limits.history:
        raise Refused(413, f"the history has {len(told)} events, more than {limits.history}: send the most recent ones")
    try:
        return History.read(told, "history", columns)
    except UserError as error:
        raise Refused(400, str(error)) from None
    except ValueError:  # a number of thousands of digits
        raise Refused(400, "history has a number that is too long") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


# Requests that wait at the same time are answered by one pass of the model.


MOST = 64  # requests in one pass: what comes later waits no longer than this takes


class RequestBatcher:
    """Answers questions, each as if it were alone; the model works in a thread of its own."""

    def __init__(self, served: Served) -> None:
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
                await self._answer_some([pair for pair in batch if not pair[1].done()])  # done: nobody waits any more
        finally:
            self._work = None

    async def _answer_some(self, batch: Sequence[tuple[Question, asyncio.Future[Recommended]]]) -> None:
        loop = asyncio.get_running_loop()
        for exclude_seen in (True, False):
            asked = [(question, answer) for question, answer in batch if question.exclude_seen is exclude_seen]
            if not asked:
                continue
            questions = [question for question, _ in asked]
            try:
                found = await loop.run_in_executor(self._thread, self._recommend, questions, exclude_seen)
            except Exception as error:
                for _, answer in asked:
                    if not answer.done():
                        answer.set_exception(error)
            else:
                for (_, answer), one in zip(asked, found, strict=True):
                    if not answer.done():
                        answer.set_result(one)

    def _recommend(self, questions: Sequence[Question], exclude_seen: bool) -> list[Recommended]:
        """With the largest k of all, of which each takes the first."""
        most = max(question.k for question in questions)
        found = self.served.recommend_after([question.history for question in questions], most, exclude_seen)
        return [
            replace(one, items=one.items[: question.k], scores=one.scores[: question.k])
            for question, one in zip(questions, found, strict=True)
        ]
