"""Who computes which users of a step, and how many processes there are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from dprec.privacy import cores as package
from dprec.privacy.cores.dealing import dealt
from tests.privacy.cores.support import batch_of

pytestmark = pytest.mark.full


def test_every_user_is_dealt_once_and_shares_are_alike() -> None:
    for sizes_of_parts in ([7, 4, 1], [1], [2], [40, 30, 20, 10, 5], [100], []):
        parts = batch_of(sizes=sizes_of_parts)
        for several in (1, 2, 3, 8):
            shares = dealt(parts, several)
            assert len(shares) == several
            rows = sorted(tuple(row[row != 0].tolist()) for share in shares for part in share for row in part.history)
            assert rows == sorted(tuple(row[row != 0].tolist()) for part in parts for row in part.history)
            assert all(len(part) for share in shares for part in share)
    many = batch_of(sizes=[4000, 3000, 2000])
    work = [sum(int((part.history != 0).sum()) for part in share) for share in dealt(many, 3)]
    assert max(work) < 1.2 * min(work)


def test_there_are_no_more_processes_than_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(48)))
    for quota, expected in (("max 100000", 8), ("250000 100000", 3), ("", 8)):
        file = tmp_path / "cpu.max"
        file.write_text(quota)
        monkeypatch.setattr(package, "Path", lambda _, file=file: file)
        assert package.cores() == expected
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert package.cores() == 1
