"""Answer requests from a trained run over HTTP: ``python -m dprec.serve RUN [--port N]``."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING

from dprec.cli.arguments import CommandLine
from dprec.cli.command import Command
from dprec.cli.usage import SERVE
from dprec.errors import UserError
from dprec.lightning import leave_out

if TYPE_CHECKING:
    from rich.console import Console

HOME = ("127.0.0.1", "localhost", "::1")
PORT = 8000


def serve(line: CommandLine, console: Console) -> None:
    # Imported here, so that help does not wait for torch.
    from dprec.serving.events import History
    from dprec.serving.question import Limits
    from dprec.serving.served import load
    from dprec.serving.service import refuse_without_packages, server

    host, port, trusted = line.take("host") or HOME[0], line.take_number("port", least=0), line.take_list("trust")
    names = {"k": "max_k", "history": "max_history", "body": "max_body", "requests": "max_requests"}
    given = {name: line.take_number(option) for name, option in names.items()}
    line.refuse_overrides()
    run = line.only("RUN")
    refuse_without_packages()
    served = load(run, trusted)
    served.recommend_after([History([]), History(served.items[:1])], 10)  # what the first request would wait for
    with _listening(host, PORT if port is None else port) as bound:
        limits = Limits(**{name: number for name, number in given.items() if number is not None})
        if host not in HOME:
            print(f"warning: who reaches {host} may ask: this service has no password and no TLS", file=sys.stderr)
        where = f"[{host}]" if ":" in host else host
        console.print(f"{run} answers at http://{where}:{bound.getsockname()[1]}", soft_wrap=True)
        sys.stdout.flush()  # to a reader that waits for this line
        server(served, limits).run(sockets=[bound])


def _listening(host: str, port: int) -> socket.socket:
    if port > 65535:
        raise UserError(f"--port is {port}: give a number up to 65535, or 0 for any that is free")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise UserError(f"cannot listen at {host}, port {port} ({error.strerror}): give another --port") from None


main = Command(serve, SERVE, positionals="RUN", own_process=leave_out)


if __name__ == "__main__":
    sys.exit(main())
