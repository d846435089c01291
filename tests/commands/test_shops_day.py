"""A shop's day, from an empty folder: log, catalogue, private training; each way to ask gives the same numbers."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import dprec
from dprec.export import main as export
from dprec.fit import main as fit
from dprec.predict import main as predict
from dprec.recommend import main as recommend
from dprec.serving.service import Limits

pytestmark = pytest.mark.full

STEPS = ["--trainer.max_steps", "8", "--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]


def write_shop(folder: Path) -> pl.DataFrame:
    """A log of orders and one of clicks, with a shop's own column names, and a public catalogue; ids have blanks."""
    draw = np.random.default_rng(0)
    skus = [f"SKU {100 + n}" for n in range(30)]
    kinds = [("shoes", "toys", "books")[n % 3] + ("|sale" if n % 5 == 0 else "") for n in range(30)]
    pl.DataFrame({"item": skus, "category": kinds}).write_csv(folder / "catalogue.csv")
    customer = np.repeat(np.arange(90), 8)
    article = (customer % 3 + 3 * draw.integers(0, 10, 720)).tolist()
    hours = pl.datetime_range(pl.datetime(2024, 3, 1), pl.datetime(2024, 3, 30, 23), "1h", eager=True).dt.to_string()
    orders = pl.DataFrame(
        {
            "customer_no": [f"c {number}" for number in customer],
            "article": [skus[place] for place in article],
            "ordered_at": hours.to_list(),
            "action": draw.choice(["buy", "view"], 720, p=[0.8, 0.2]),
        }
    ).sample(fraction=1, shuffle=True, seed=0)
    orders.write_csv(folder / "orders.csv", separator=";")
    likes = [float(place % 3 == 0) for place in article]
    orders.select("customer_no", "ordered_at").with_columns(
        article=pl.Series(skus).gather(article), price=draw.random(720).round(2), clicked=draw.binomial(1, likes)
    ).write_csv(folder / "shown.csv")
    return orders


def test_candidates_neighbours_vectors_and_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    orders, feature = write_shop(tmp_path), "catalogue.csv"
    names = {"user_column": "customer_no", "item_column": "article", "time_column": "ordered_at"}
    columns = [word for name, column in names.items() for word in (f"--data.{name}", column)]
    data = ["--data.path", "orders.csv", "--data.where", "action = 'buy'", "--data.batch_size", "30"]
    model = ["--model", "Transformer", "--model.dim", "8", "--model.features", "{category: 8}"]
    settings = [*columns, *data, *model, "--model.feature_file", feature, "--privacy.epsilon", "8", *STEPS]
    (tmp_path / "shop.yaml").write_text("data: {dataset: file, min_events: 2}\n")
    assert fit(["shop.yaml", *settings, "--out", "run"]) == 0

    shop = dprec.load("run", features=feature)
    assert shop.guarantee.startswith("(8, ")
    assert f"the features of items in {feature}" in shop.guarantee
    only = {"category": "sale"}
    frame = shop.recommend(orders, k=3, only=only)
    assert recommend(["run", "--users", "orders.csv", "--features", feature, "--only", "category=sale", "-k", "3",
                      "--out", "all.parquet"]) == 0  # fmt: skip
    assert pl.read_parquet("all.parquet").equals(frame)
    assert set(frame["item"]) <= set(pl.read_csv(feature).filter(pl.col("category").str.contains("sale"))["item"])

    bought = orders.filter(pl.col("action") == "buy").sort("ordered_at")
    histories = {name: bought.filter(pl.col("customer_no") == name)["article"].to_list() for name in ("c 1", "c 2")}
    named = shop.recommend(histories, k=3, only=only)
    for name, found in named.items():
        assert frame.filter(pl.col("user") == name)["item"].to_list() == found.items
    (near,) = shop.similar(["SKU 100"], k=4)
    vectors = shop.item_vectors()
    for body, path, wanted in (
        ({"histories": histories, "k": 3, "only": only}, "/recommend", {"answers": plain(named)}),
        ({"history": histories["c 1"], "k": 3, "only": only}, "/recommend", vars(named["c 1"])),
        ({"items": ["SKU 100"], "k": 4}, "/similar", {"similar": [vars(near)]}),
    ):
        assert_alike(asked(shop, path, body), wanted)

    pl.DataFrame(vectors._asdict()).write_parquet("vectors.parquet")
    assert (pl.read_parquet("vectors.parquet")["vectors"].to_numpy() == vectors.vectors).all()
    users = shop.user_vectors(histories)
    best = [vectors.ids[place] for place in np.argsort(-users.vectors[0] @ vectors.vectors.T)]
    (exact,) = shop.recommend([histories["c 1"]], k=5, exclude_seen=False)
    assert best[:5] == exact.items
    if find_spec("faiss") is not None:
        import faiss

        index = faiss.IndexHNSWFlat(vectors.vectors.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
        index.add(vectors.vectors)
        assert {vectors.ids[place] for place in index.search(users.vectors, 5)[1][0]} == set(exact.items)
    assert export(["run", "--format", "torch", "--out", "out"]) == 0
    ids = json.loads(Path("out/items.json").read_text())
    numbers = torch.tensor([[ids.index(raw) for raw in histories["c 1"]]])
    scores = torch.export.load("out/model.pt2").module()(numbers)[0]
    assert [ids[place] for place in scores.argsort(descending=True)[:5]] == exact.items
    capsys.readouterr()
    assert recommend(["run", "--history", ", ".join(histories["c 1"]), "-k", "5", "--allow-seen", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["items"] == exact.items


def test_click_predictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_shop(tmp_path)
    settings = {
        "path": "shown.csv", "user_column": "customer_no", "time_column": "ordered_at", "batch_size": "30",
        "categories": "{article: 64}", "numbers": "{price: log}",
    }  # fmt: skip
    words = [word for name, value in settings.items() for word in (f"--data.{name}", value)]
    assert fit(["clicks", *words, *STEPS, "--out", "run"]) == 0
    run, shown = dprec.load("run"), pl.read_csv("shown.csv").drop("clicked")
    assert predict(["run", "--log", "shown.csv", "--keep", "article", "--out", "p.parquet"]) == 0
    found = run.predict(shown, keep=["article"])
    assert pl.read_parquet("p.parquet").equals(found)
    records = shown.head(20).to_dicts()
    wanted = found["probability"][:20].to_list()
    assert run.predict(records) == pytest.approx(wanted, rel=1e-6)
    assert asked(run, "/predict", {"records": records})["predictions"] == pytest.approx(wanted, rel=1e-6)


def asked(run: Any, path: str, body: dict[str, Any]) -> Any:
    """What the run answers over HTTP."""
    for package in ("starlette", "uvicorn"):
        pytest.importorskip(package)
    from tests.serving.test_service import answering, ask

    with answering(run, Limits()) as port:
        status, told = ask(port, "POST", path, body)
    assert status == 200, told
    return told


def plain(named: dict[str, Any]) -> dict[str, Any]:
    return {name: vars(found) for name, found in named.items()}


def assert_alike(found: Any, wanted: Any) -> None:
    """The same, but for rounding of scores that other users' company changes."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for key in wanted:
            assert_alike(found[key], wanted[key])
    elif isinstance(wanted, list) and wanted and not isinstance(wanted[0], (str, float)):
        for one, other in zip(found, wanted, strict=True):
            assert_alike(one, other)
    else:
        assert found == (pytest.approx(wanted, rel=1e-5) if wanted and isinstance(wanted[0], float) else wanted)
