"""The service under many requests at once, and under hostile ones between them."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dprec.fit import main as fit
from dprec.serving.served import load
from tests.commands.support import environment

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

AT_ONCE, SECONDS, PATIENCE = 200, 30, 60
HOSTILE = (
    b'{"history": ' + b"[" * 5000,
    b'{"history": [NaN]}',
    b"\xff\xfe\x00",
    b'{"history": ["x"], "k": 1000000000}',
)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[int, list[str]]]:
    """Where a process answers from a run with thousands of items, and some of these."""
    size = ["--data.synthetic_users", "3000", "--data.synthetic_items", "10000", "--data.min_events", "0"]
    assert fit(["quickstart", *size, "--trainer.max_steps", "1", "--out", str(tmp_path / "run")]) == 0
    words = [sys.executable, "-m", "dprec", "serve", str(tmp_path / "run"), "--port", "0"]
    with subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            found = re.search(rb":(\d+)\n", process.stdout.readline())
            assert found
            yield int(found[1]), load(tmp_path / "run").items[:5]
        finally:
            process.terminate()
            said = process.communicate()[1].decode()
    assert "Traceback" not in said


async def asked(port: int, body: bytes) -> tuple[int, dict]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /recommend HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    writer.write(f"{head}connection: close\r\n\r\n".encode() + body)
    answer = await reader.read()
    writer.close()
    start, _, rest = answer.partition(b"\r\n\r\n")
    return int(start.split()[1]), json.loads(rest)


async def load_of(port: int, items: list[str]) -> list[tuple[int, dict, float, bool]]:
    """What each request got, after how many seconds, and whether it was hostile."""
    seen, end = [], time.monotonic() + SECONDS

    async def one(client: int) -> None:
        turn = client
        while time.monotonic() < end:
            hostile = turn % 50 == 0
            question = {"history": [items[turn % 5]], "k": 10}
            start = time.monotonic()
            body = HOSTILE[turn // 50 % 4] if hostile else json.dumps(question).encode()
            status, told = await asyncio.wait_for(asked(port, body), PATIENCE)
            seen.append((status, told, time.monotonic() - start, hostile))
            turn += 1

    await asyncio.gather(*map(one, range(AT_ONCE)))
    return seen


@pytest.mark.nightly
def test_two_hundred_at_once_are_answered_for_half_a_minute(running: tuple[int, list[str]]) -> None:
    seen = asyncio.run(load_of(*running))
    seconds = sorted(took for _, _, took, hostile in seen if not hostile)
    middle, late = (seconds[int(share * len(seconds))] for share in (0.5, 0.99))
    print(f"{len(seen)} requests, {AT_ONCE} at once: median {1e3 * middle:.0f} ms, 99 of 100 in {1e3 * late:.0f} ms")
    assert {(status, told.get("source")) for status, told, _, hostile in seen if not hostile} == {(200, "history")}
    refused = [(status, told) for status, told, _, hostile in seen if hostile]
    assert len(refused) > 4
    assert all(
        status in (400, 413) and list(told) == ["error"] and "\n" not in told["error"] for status, told in refused
    )
