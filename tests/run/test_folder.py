"""Whose a run's folder is."""

from __future__ import annotations

from pathlib import Path

import pytest

from dprec.errors import UserError
from dprec.run.saved.folder import RunFolder


def test_of_two_runs_that_find_a_folder_free_at_once_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder(tmp_path / "run")
    monkeypatch.setattr(RunFolder, "refuse_if_taken", lambda self: None)  # both have looked before either claims
    run.claim("seed: 1\n")
    with pytest.raises(UserError, match="already holds a run"):
        run.claim("seed: 2\n")
    assert "seed: 1" in run.config.read_text()
