"""Answer requests from a trained run over HTTP: ``python -m dprec.serve RUN [--port N]``."""

from __future__ import annotations

import socket
import sys

from jsonargparse import ArgumentParser
from rich.console import Console

from dprec.cli.arguments import CommandLine, NonNegativeInt, PositiveInt, add_run, listed
from dprec.cli.command import Command
from dprec.errors import UserError, refuse_missing

HOME = ("127.0.0.1", "localhost", "::1")
PORT = 8000


def options(parser: ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--features", help="a CSV file with a column item, by which a request may choose items")
    parser.add_argument("--host", default=HOME[0], help="the service has no password and no TLS")
    parser.add_argument("--port", type=NonNegativeInt, default=PORT, help="0 takes a free port and prints it")
    parser.add_argument("--max_k", type=PositiveInt, default=1000, help="items in an answer")
    parser.add_argument("--max_history", type=PositiveInt, default=1000, help="events in a history")
    parser.add_argument("--max_body", type=PositiveInt, default=65536, help="bytes of a request")
    parser.add_argument("--max_requests", type=PositiveInt, default=512, help="requests at a time")


def serve(line: CommandLine, console: Console) -> None:
    """Answer requests over HTTP from a trained run; needs pip install 'dprec[serve]'.

      dprec serve runs/mine --port 8000

    POST /recommend      {"history": ["12", "7"], "k": 10, "exclude_seen": true}, oldest first; optional:
                         "items", the only ones to choose from, "exclude", items to leave out, and with
                         --features "only", such as {"genre": ["Comedy"]};
                         answers {"items", "scores", "source", "unknown"}; of several "histories", a list or an
                         object by name, {"answers"} likewise
    POST /similar        {"items": ["12"], "k": 10}; answers {"similar": [{"items", "scores"}]}
    POST /predict        for a run of clicks {"records": [{column: value}]}, with all columns, null for a missing
                         value; for texts {"texts": [...]}, optionally with "pairs"; answers {"predictions": [...]}
    GET /health          {"status": "ok", "items": N}
    GET /guarantee       the run's sentence, ε and δ

    No history is stored or logged. Refused requests get a status of 4xx, or 503 if too many wait, and
    {"error": one line}.
    """
    from dprec.serving.requests import ITEM
    from dprec.serving.served import Served, load
    from dprec.serving.service import Limits, server

    host, run = line.options.host, line.options.run
    refuse_missing(("starlette", "uvicorn"), "dprec serve", "serve")
    served = load(run, listed(line.options.trust), line.options.features)
    if isinstance(served, Served):  # what the first request would wait for
        served.recommend([[], [{ITEM: raw} if served.reader.columns else raw for raw in served.items[:1]]])
    with _listening(host, line.options.port) as bound:
        limits = Limits(**{name: line.options[f"max_{name}"] for name in ("k", "history", "body", "requests")})
        if host not in HOME:
            print(f"warning: everybody who reaches {host} can send requests: no password, no TLS", file=sys.stderr)
        where = f"[{host}]" if ":" in host else host
        console.print(f"{run} answers at http://{where}:{bound.getsockname()[1]}", soft_wrap=True)
        sys.stdout.flush()  # to a reader that waits for this line
        server(served, limits).run(sockets=[bound])


def _listening(host: str, port: int) -> socket.socket:
    if port > 65535:
        raise UserError(f"--port is {port}: give a number up to 65535, or 0 for a free one")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise UserError(f"cannot listen at {host}, port {port} ({error.strerror}): give another --port") from None


main = Command(serve, options, reads_run=True)


if __name__ == "__main__":
    sys.exit(main())
