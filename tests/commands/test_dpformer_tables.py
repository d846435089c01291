"""The study of DPFormer's tables: what is trained, what is read, and that the page says what the runs say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dprec.bench import main
from dprec.benchmarks.dpformer_study.cells import DATA, EPSILONS, MODELS, VARIANTS, Cell
from dprec.benchmarks.dpformer_study.runs import finished

ROOT = Path(__file__).parents[2]


def leave_a_run(runs: Path, cell: str, seed: int, ndcg: float, **others: object) -> None:
    folder = Cell.read(cell).folder(runs, seed)
    (folder / "logs" / "version_0").mkdir(parents=True)
    values = {
        "epsilon": 4.99, "delta": 1e-4, "noise_multiplier": 2.0, "steps": 40, "seed": seed, "seconds": 12.0,
        "stand_in": False, "protocol": "", "ndcg@10": ndcg, "hit@10": 2 * ndcg, "ndcg@10/all": 0.01, "hit@10/all": 0.02,
    }  # fmt: skip
    (folder / "metrics.json").write_text(json.dumps(values | others))
    (folder / "logs" / "version_0" / "metrics.csv").write_text(
        f"epoch,ndcg@10,step\n0,,9\n0,{ndcg / 2},19\n1,{ndcg},39\n"
    )


def test_the_page_says_what_the_runs_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    runs, page, rows = tmp_path / "runs", tmp_path / "docs" / "results.md", tmp_path / "rows.json"
    leave_a_run(runs, "movielens_spectral_former@5", 0, 0.09)
    leave_a_run(runs, "movielens_spectral_former@5", 1, 0.10)
    leave_a_run(runs, "movielens_spectral_former_plain@5", 0, 0.08)
    leave_a_run(runs, "games_spectral_former@8:0.003:1024", 0, 0.03)
    page.parent.mkdir()
    argv = ["dpformer-tables", "--runs", str(runs), "--document", str(page), "--json", str(rows)]
    assert main(argv) == 0
    assert "9.50 ± 0.50 / 19.00 ± 1.00 (2)" in capsys.readouterr().out
    text = page.read_text()
    line = next(line for line in text.splitlines() if line.startswith("| SpectralFormer"))
    assert line.split(" | ")[2] == "9.50 ± 0.50 / 19.00 ± 1.00 (2)"
    assert "| DPFormer, in the paper |  | 5.88 / 11.13 | 7.70 / 14.31 | 8.42 / 15.40 |" in text
    assert "| `movielens_spectral_former.yaml` | 5 | 0, 1 | 40 | 2 | 12 |" in text
    assert "3.00" not in text  # a run at another learning rate is no cell of the table
    assert len(json.loads(rows.read_text())) == 4
    for picture in ("models", "training", "tuning"):
        file = page.parent / "measured" / f"dpformer_{picture}.png"
        assert file.stat().st_size > 5000
        assert f"measured/{file.name}" in text


def test_figures_on_generated_data_are_in_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave_a_run(tmp_path, "movielens_gru@5", 0, 0.05, stand_in=True)
    assert main(["dpformer-tables", "--runs", str(tmp_path)]) == 2
    assert "generated data" in capsys.readouterr().err


@pytest.mark.parametrize("cell", ["movielens", "netflix_gru@5", "movielens_gru", "movielens_gru@x", "games_gru@5:1"])
def test_a_cell_that_is_none_is_refused(cell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dpformer-tables", "--runs", str(tmp_path), "--cells", cell]) == 2
    assert f"--cells {cell}" in capsys.readouterr().err


def test_no_runs_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dpformer-tables", "--runs", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_every_cell_has_its_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for data in DATA:
        for model in MODELS:
            for epsilon in EPSILONS:
                cell = Cell(data, model, epsilon)
                assert Path(cell.recipe[0]).is_file(), cell
                assert Cell.read(cell.folder(Path(), 0).parent.name) == cell
    assert set(VARIANTS) <= set(MODELS)


def test_what_is_missing_is_trained_and_what_is_there_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    draw = np.random.default_rng(0)
    rows = [f"{user} {item}" for user in range(80) for item in draw.permutation(30)[:8] + 1]
    (tmp_path / "log.txt").write_text("\n".join(rows))
    argv = [
        "dpformer-tables",
        "--cells",
        "movielens_spectral_former_plain@5",
        "--runs",
        "study",
        "--data.path",
        "log.txt",
    ]
    argv += ["--data.batch_size", "20", "--model.top", "10", "--model.rank", "4", "--trainer.max_steps", "2"]
    assert main(argv) == 0
    (row,) = finished(Path("study"))
    assert (row["data"], row["model"], row["target"], row["seed"]) == ("movielens", "spectral_former_plain", 5.0, 0)
    assert row["epsilon"] == pytest.approx(5.0, abs=0.1)
    written = (tmp_path / "study/movielens_spectral_former_plain@5/seed-0/metrics.json").stat().st_mtime_ns
    assert main([*argv, "--seeds", "2"]) == 0
    assert [row["seed"] for row in finished(Path("study"))] == [0, 1]
    assert (tmp_path / "study/movielens_spectral_former_plain@5/seed-0/metrics.json").stat().st_mtime_ns == written
