"""Requests that wait at the same time are answered by one pass of the model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from dprec.serving.question import Question
from dprec.serving.served import Recommended, Served

MOST = 64  # requests in one pass: what comes later waits no longer than this takes


class Together:
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
