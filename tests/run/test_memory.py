from __future__ import annotations

import os
import subprocess
import sys

import pytest

COUNTED = """
import resource
from dprec.run.process import keep_freed_memory
{asked}
for block in range(10):
    bytes([block]) * (1 << 20)  # less than a huge page
    if block == 1:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def fresh_pages(asked: str, **variables: str) -> int:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")} | variables
    code = COUNTED.format(asked=asked)
    return int(subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True).stdout)


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks glibc")
def test_freed_memory_is_not_fresh_again() -> None:
    assert fresh_pages("assert keep_freed_memory()") < 100
    assert fresh_pages("assert not keep_freed_memory()", MALLOC_TRIM_THRESHOLD_="0") > 1000
