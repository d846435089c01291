"""The commands: ``python -m dprec``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from dprec.cli.usage import COMMANDS


def main(argv: Sequence[str] | None = None) -> int:
    print(COMMANDS, end="")
    return 0 if list(sys.argv[1:] if argv is None else argv) in (["--help"], ["-h"]) else 2


if __name__ == "__main__":
    sys.exit(main())
