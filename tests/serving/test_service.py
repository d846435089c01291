"""The service answers as the run does, refuses in one line, and lets nothing of a history out."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from dprec.data import Catalogue
from dprec.models import Transformer
from dprec.serve import main as serve
from dprec.serving.served import Served
from dprec.serving.service import Limits

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

ITEMS = ["alien", "brazil", "casablanca", "dune", "7", "élan"]
FACTS = {
    "guarantee": {
        "guarantee": "(4, 0.01)-differentially private",
        "epsilon": float("inf"),
        "delta": 0.01,
        "assumed_public": ["users"],
        "events": [{"count": 3}],
    }
}
SECRET = "a-film-nobody-should-know-of"


@contextmanager
def answering(served: Served, limits: Limits) -> Iterator[int]:
    """A port at which a service answers, in a thread of its own."""
    from dprec.serving.service import server

    bound = socket.create_server(("127.0.0.1", 0), backlog=256)
    running = server(served, limits)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        yield bound.getsockname()[1]
    finally:
        running.should_exit = True
        thread.join()
        bound.close()


@pytest.fixture(scope="module")
def served() -> Served:
    torch.manual_seed(0)
    return Served(Transformer(len(ITEMS) + 1, dim=8, max_length=4), Catalogue(ITEMS), FACTS)


@pytest.fixture(scope="module")
def port(served: Served) -> Iterator[int]:
    with answering(served, Limits(k=5, history=20, body=2000)) as port:
        yield port


def ask(port: int, method: str, path: str, body: Any = None, kind: str = "application/json") -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    sent = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    connection.request(method, path, sent, {"content-type": kind})
    answer = connection.getresponse()
    told = answer.read()
    connection.close()
    return answer.status, json.loads(told)


def asked(port: int, history: list[Any], **options: Any) -> tuple[int, Any]:
    return ask(port, "POST", "/recommend", {"history": history, **options})


@pytest.mark.parametrize(
    ("history", "options"),
    [
        (["alien"], {"k": 3, "exclude_seen": False}),
        (["7", "dune", "what"], {}),
        ([7, " dune "], {"k": 2}),
        ([], {"k": 2}),
        (["élan"] * 9, {}),
        (["alien"], {"items": ["dune", 7, "alien"], "exclude": ["dune"]}),
        ([], {"items": ["dune", "élan"], "exclude": []}),
    ],
)
def test_it_answers_as_the_run_does(port: int, served: Served, history: list[Any], options: dict[str, Any]) -> None:
    found = served.recommend([history], **({"k": 5} | options))[0]
    status, told = asked(port, history, **({"k": 5} | options))
    assert status == 200
    assert (told["items"], told["source"], told["unknown"]) == (found.items, found.source, found.unknown)
    assert told["scores"] == pytest.approx(found.scores, rel=1e-4)


def test_many_at_once_get_what_each_gets_alone(port: int, served: Served) -> None:
    def one(n: int) -> bool:
        history = [ITEMS[(n + step) % len(ITEMS)] for step in range(n % 5)]
        choices: dict[str, Any] = {"k": 1 + n % 4, "exclude_seen": n % 3 == 0, "exclude": [ITEMS[n % 6]]}
        choices |= {"items": [ITEMS[n % 2], ITEMS[n % 4]]} if n % 2 else {}
        status, told = asked(port, history, **choices)
        return status == 200 and told["items"] == served.recommend([history], **choices)[0].items

    with ThreadPoolExecutor(20) as threads:
        assert all(threads.map(one, range(200)))


def test_several_histories_get_what_each_gets_alone(port: int, served: Served) -> None:
    named = {"ann": ["alien"], "bob": ["7", "what"], "eve": []}
    for histories, items in ((named, {"bob": ["dune", "élan"]}), ([*named.values()], [None, ["dune", "élan"], None])):
        body = {"histories": histories, "k": 3, "items": items, "exclude": ["brazil"]}
        status, told = ask(port, "POST", "/recommend", body)
        assert (status, len(told["answers"])) == (200, 3)
        answers = told["answers"].values() if isinstance(histories, dict) else told["answers"]
        for found, name in zip(answers, named, strict=True):
            choices = {"items": ["dune", "élan"]} if name == "bob" else {}
            (alone,) = served.recommend([named[name]], 3, exclude=["brazil"], **choices)
            assert (found["items"], found["source"], found["unknown"]) == (alone.items, alone.source, alone.unknown)
            assert found["scores"] == pytest.approx(alone.scores, rel=1e-4)
    assert ask(port, "POST", "/recommend", {"histories": [["7"] * 21]})[0] == 413
    assert ask(port, "POST", "/recommend", {"histories": [[]] * 101})[0] == 413
    assert ask(port, "POST", "/recommend", {"histories": [], "history": []})[0] == 400


def test_without_k_it_gives_as_many_as_it_may(port: int, served: Served) -> None:
    assert asked(port, ["7"])[1]["items"] == served.recommend([["7"]], k=5)[0].items


def test_similar_items_are_those_of_the_run(port: int, served: Served) -> None:
    told = {"similar": [vars(one) for one in served.similar(["7", "élan"], k=3)]}
    assert ask(port, "POST", "/similar", {"items": [7, "élan"], "k": 3}) == (200, told)
    for body, status in (
        ({"items": ["7", "elan"]}, 400),
        ({"items": "7"}, 400),
        ({"items": ["7"] * 101}, 413),
        ({"items": ["7"], "k": 6}, 400),
        ({"history": ["7"]}, 400),
    ):
        assert ask(port, "POST", "/similar", body)[0] == status


def test_health_and_guarantee(port: int) -> None:
    assert ask(port, "GET", "/health") == (200, {"status": "ok", "items": len(ITEMS)})
    told = {**FACTS["guarantee"], "epsilon": None}  # JSON has no infinity
    told.pop("events")
    assert ask(port, "GET", "/guarantee") == (200, told)


def about(**values: Any) -> dict[str, Any]:
    return {"history": [SECRET], **values}


REFUSED: dict[str, tuple[Any, int]] = {
    "no JSON": (f'{{"history": ["{SECRET}"'.encode(), 400),
    "no UTF-8": (b'{"history": ["\xff"]}', 400),
    "deep": (b'{"history": ' + b"[" * 1900, 400),
    "NaN": (b'{"history": [NaN]}', 400),
    "half a character": (b'{"history": ["\\ud800"]}', 400),
    "null": (None, 415),
    "no history": ({"k": 3}, 400),
    "a text": ({"history": SECRET}, 400),
    "objects": ({"history": [{"id": SECRET}]}, 400),
    "a flag": ({"history": [True]}, 400),
    "k of 0": (about(k=0), 400),
    "k that is huge": (about(k=10**9), 400),
    "a text for a flag": (about(exclude_seen="no"), 400),
    "items that are a text": (about(items=SECRET), 400),
    "an item that nobody knows": ({"history": [], "exclude": ["7", SECRET]}, 400),
    "histories that are a text": ({"histories": SECRET}, 400),
    "an unknown key": (about(**{SECRET: 1}), 400),
    "a long history": ({"history": ["7"] * 21}, 413),
    "a huge body": ({"history": [SECRET * 100]}, 413),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_question_is_refused_in_one_line(
    port: int, name: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    body, wanted = REFUSED[name]
    status, told = ask(port, "POST", "/recommend", body, "text/plain" if body is None else "application/json")
    assert status == wanted
    assert list(told) == ["error"]
    assert "\n" not in told["error"]
    assert not any(word in told["error"] for word in (SECRET, "Traceback", "Error", ".py"))
    assert caplog.text + "".join(capfd.readouterr()) == ""


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", f"/recommend?history={SECRET}", 405), ("GET", "/../../etc/passwd", 404), ("DELETE", "/health", 405)],
)
def test_other_paths_and_methods_are_refused(
    port: int, method: str, path: str, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    assert ask(port, method, path) == (
        status,
        {"error": "ask POST /recommend, POST /similar, GET /health or GET /guarantee"},
    )
    assert SECRET not in "".join(capfd.readouterr())


def test_a_body_that_does_not_come_is_refused(served: Served) -> None:
    with (
        answering(served, Limits(seconds=0.1)) as port,
        socket.create_connection(("127.0.0.1", port), timeout=300) as connection,
    ):
        head = "POST /recommend HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 90\r\n\r\n"
        connection.sendall(f'{head}{{"history":'.encode())
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == 408
        assert json.loads(answer.read())["error"] == "the body did not arrive within 0.1 seconds"


class Busy(Served):
    """Answers when it may, with `then`."""

    def __init__(self, served: Served, then: Callable[[], None]) -> None:
        super().__init__(served.model, served.catalogue, served.facts)
        self.begun, self.may_end, self.then = threading.Event(), threading.Event(), then

    def answer(self, questions: Any) -> Any:
        self.begun.set()
        self.may_end.wait(60)
        self.then()
        return super().answer(questions)


def test_more_than_it_may_hold_are_sent_away(served: Served) -> None:
    busy = Busy(served, lambda: None)
    with answering(busy, Limits(requests=1)) as port, ThreadPoolExecutor(1) as threads:
        first = threads.submit(asked, port, ["alien"])
        assert busy.begun.wait(60)
        status, told = asked(port, ["dune"])
        assert (status, told["error"]) == (503, "1 requests are waiting: ask again later")
        assert ask(port, "GET", "/health")[0] == 200
        busy.may_end.set()
        assert first.result()[0] == 200
        assert asked(port, ["dune"])[0] == 200


def test_a_mistake_of_its_own_shows_neither_traceback_nor_history(
    served: Served, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise RuntimeError(f"cannot rank {SECRET}")

    broken = Busy(served, fails)
    broken.may_end.set()
    with caplog.at_level(logging.DEBUG), answering(broken, Limits()) as port:
        status, told = asked(port, [SECRET])
        assert (status, told) == (500, {"error": "internal error: the service's log names the line"})
    assert "a request ended in RuntimeError at " in caplog.text
    for said in (caplog.text, *capfd.readouterr()):
        assert SECRET not in said
        assert "Traceback" not in said


def test_a_mistake_of_who_starts_it_is_one_line(
    served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dprec.serving.served.load", lambda *_: served)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for words, says in (
            (["--port", port], f"cannot listen at 127.0.0.1, port {port} ("),
            (["--port", "http"], "port: Not of type NonNegativeInt"),
            (["--port", "65536"], "--port is 65536: give a number up to 65535"),
            (["--max_k", "0"], "max_k: Not of type PositiveInt: 0 does not conform to restriction v>0"),
            (["--workers", "3"], "unrecognized arguments: --workers"),
        ):
            assert serve(["run", *words]) == 2
            told = capsys.readouterr().err
            assert told.startswith(f"error: {says}")
            assert told.count("\n") == 1
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert serve(["run"]) == 2
    assert "needs starlette and uvicorn: pip install 'dprec[serve]'" in capsys.readouterr().err
