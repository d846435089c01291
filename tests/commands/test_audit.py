from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from dprec.audit import main as audit
from dprec.auditing.planted import Marked
from dprec.verify import self_check
from tests.auditing.support import noise_times
from tests.commands.support import ROOT, refused, strict

pytestmark = pytest.mark.full

SMALL = ["--canaries", "1,6", "--each", "3", "--references", "200", "--coins", "60", "--length", "8", "--noise", "none"]

SPARSE_MODEL = ["--model.class_path", "dprec.models.DualEncoder", "--model.tied", "false", "--model.negatives", "4"]


@pytest.fixture(scope="module")
def audited(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("audits") / "films"
    assert audit([str(recipe), *SMALL, "--beside", "loud = --privacy.max_norm 3", "--out", str(out)]) == 0
    return out


def test_every_system_has_what_is_promised_and_what_was_seen(audited: Path) -> None:
    report = strict(audited / "audit.json")
    assert [row["system"] for row in report["systems"]] == ["no privacy", "loud", "epsilon 4"]
    plain, loud, private = report["systems"]
    assert plain["promised_epsilon"] is None
    assert private["promised_epsilon"] == pytest.approx(4, abs=0.01)
    assert private["sampling_rate"] == 15 / (60 + 3 * 7 + 2 * 60)
    for row in report["systems"]:
        assert row["breaches"] == []
        assert row["steps"] == row["planned_steps"] == 8
        assert row["empirical_epsilon"].keys() == {"sequences", "gradients"}
        assert [point["occurrences"] for point in row["exposures"]] == [1, 6]
    for row in (loud, private):
        assert row["gauges"].keys() == {"noise", "share", "repetition"}
        assert row["gauges"]["noise"]["measured"] == pytest.approx(row["noise_multiplier"], rel=0.3)


def test_the_result_says_how_to_repeat_it(audited: Path) -> None:
    report = strict(audited / "audit.json")
    assert report["canaries"] == {
        "occurrences": [1, 6], "each": 3, "references": 200, "coins": 60, "length": 8, "seed": 0,
    }  # fmt: skip
    assert report["asked"][1] == {"system": "loud", "overrides": {"privacy.max_norm": "3"}}
    assert (audited / "exposure.png").read_bytes().startswith(b"\x89PNG")


def test_an_audit_that_was_stopped_goes_on(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [str(recipe), *SMALL, "--checkpoint_every", "2", "--out", str(tmp_path / "audit")]
    honest = Marked.on_before_optimizer_step

    def interrupted(self: Any, optimizer: Any) -> None:
        if self.global_step == 5:
            raise KeyboardInterrupt
        honest(self, optimizer)

    with monkeypatch.context() as patch:
        patch.setattr(Marked, "on_before_optimizer_step", interrupted)
        assert audit(asked) == 130
    assert "stopped; continue with the same command" in capsys.readouterr().err
    assert audit(asked) == 0
    assert "from step 4" in capsys.readouterr().out
    row = strict(tmp_path / "audit" / "audit.json")["systems"][0]
    assert row["steps"] == 8


def test_an_engine_that_breaks_its_promise_fails_the_command(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unchecked = ["--privacy.verify", "0"]  # else the run would find it by itself
    with noise_times(0.5)(), mock.patch.object(self_check, "STEPS", 0):
        assert audit([str(recipe), *SMALL, *unchecked, "--out", str(tmp_path / "audit")]) == 3
    shown = capsys.readouterr()
    assert "the guarantee is not kept: epsilon 4: noise is" in shown.err
    assert "BREACH" in shown.out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--canaries", "many"], "--canaries is 'many': give numbers of users"),
        (["--noise", "little"], "--noise is 'little': give noise multipliers"),
        (["--strategies", "EANA"], "--strategies needs noise to place: give --noise"),
        (["--noise", "1", "--strategies", "EAMA"], "--strategies: "),
        (["--noise", "1", "--strategies", "EANA,FEST"], "which --noise does not have: name FEST in --beside"),
        (["--beside", "x = --privacy.epsilon '4"], "--beside x: No closing quotation: close it"),
        (["--beside", "nothing"], "--beside is 'nothing': give a name and overrides"),
        (["--beside", "epsilon 4 = --seed 1"], "there are two systems 'epsilon-4'"),
        (["--length", "11"], "--length is 11 but a model sees 10 items"),
        (["--data.batch_sise", "3"], "unknown key 'data.batch_sise'; did you mean data.batch_size?"),
    ],
)
def test_mistakes(options: list[str], says: str, recipe: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in refused(capsys, audit, [str(recipe), *SMALL, *options])


def test_click_models_have_no_histories_to_plant(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit([str(ROOT / "recipes" / "criteo_dpsgd.yaml"), *SMALL]) == 2
    assert "give the audit a recipe of a recommender" in capsys.readouterr().err


def test_every_strategy_is_audited_in_one_command_and_eana_promises_nothing(recipe: Path, tmp_path: Path) -> None:
    sparse = ["--strategies", "EANA,LazyDP,AdaFEST", "--model.optimizer", "sgd", "--model.weight_decay", "0"]
    small = [*SMALL[:-2], "--noise", "0.5", "--canaries", "1", "--trainer.max_steps", "3"]
    unlimited = ["--privacy.epsilon", "null", "--privacy.noise_multiplier", "1"]
    asked = [str(recipe), *small, *SPARSE_MODEL, *sparse, *unlimited]
    assert audit([*asked, "--out", str(tmp_path / "audit")]) == 0
    rows = {row["system"]: row for row in strict(tmp_path / "audit" / "audit.json")["systems"]}
    eana = rows["EANA 0.5"]
    assert eana["promised_there"] is None
    assert eana["breaches"] == []
    assert eana["gauges"]["noise"]["breach"]
    assert eana["revealed"]["users"] == eana["users"]
    assert 0 < eana["revealed"]["users_of_a_row"][0] <= eana["revealed"]["users_of_a_row"][-1]
    assert rows["LazyDP 0.5"]["revealed"] is None
    for name in ("DP-SGD 0.5", "LazyDP 0.5", "AdaFEST 0.5"):
        assert rows[name]["promised_there"] >= rows[name]["promised_epsilon"]
        assert rows[name]["gauges"]["noise"]["measured"] == pytest.approx(
            rows[name]["gauges"]["noise"]["promised"], rel=0.3
        )
    assert rows["AdaFEST 0.5"]["gauges"]["noise"]["promised"] == pytest.approx(0.5 * 1.25**0.5)  # σ₁ = 2 σ₂
