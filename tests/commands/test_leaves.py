"""Every leaf of a checkpoint and every file of a run folder: made private, public, or named under "Not covered"."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dprec.fit import main as fit
from tests.commands.support import ROOT

pytestmark = pytest.mark.full

USERS, ITEMS = 24, 12

# What is made of noisy sums, by the name of the leaf. Everything else must be the same whoever is in the data.
NOISED = (
    r"state_dict\..*",  # parameters and what was released into them
    r"optimizer_states\.\d+\.state\.\d+\.(exp_avg|exp_avg_sq|momentum_buffer|sum)",
    r"callbacks\.Privacy\.sparsity\.0\.(own_context|embedding)\.weight",  # momentum of lazy rows, their noise paid
    r"callbacks\.Privacy\.sparsity\.0\.rows",  # the answer of FEST's release
)
WORDS = "tables: '*word_embeddings*'"

SETTINGS = {
    "transformer": {"model": "dprec.models.Transformer", "model.dropout": "0.2"},
    "releases": {"model": "dprec.models.DPFormer"},
    "spectral": {"model": "dprec.models.Spectral", "model.top": "6", "model.rank": "4"},
    "adafest": {
        "model": "dprec.models.DualEncoder",
        "model.tied": "false",
        "model.negatives": "4",
        "model.weight_decay": "0",
        "privacy.sparsity": "{class_path: dprec.sparsity.AdaFEST, init_args: {tables: own_context.*, threshold: 2.0}}",
    },
    "lazydp": {
        "model": "dprec.models.DualEncoder",
        "model.tied": "false",
        "model.negatives": "4",
        "model.optimizer": "sgd",
        "model.momentum": "0.5",
        "privacy.sparsity": "{class_path: dprec.sparsity.LazyDP, init_args: {aggregate: false}}",
    },
    "texts, adafest": {
        "privacy.sparsity": f"{{class_path: dprec.sparsity.AdaFEST, init_args: {{{WORDS}, threshold: 2.0}}}}",
        "model.weight_decay": "0",
    },
    "texts, fest": {
        "privacy.sparsity": f"{{class_path: dprec.sparsity.FEST, init_args: {{{WORDS}, keep: 9}}}}",
        "model.weight_decay": "0",
    },
    "texts of users": {"data.user_column": "who"},
}
RECIPE = "data: {dataset: file}\nprivacy: {epsilon: 8}\n"
OF_TEXTS = (
    "data: {class_path: dprec.data.Texts, init_args: {dataset: texts}}\n"
    "model: {class_path: dprec.models.TextClassifier}\nprivacy: {epsilon: 8}\n"
)
# What else a run is given: of histories, and of texts.
OPTIONS = {
    "data.path": "log.csv", "data.catalogue": "items.txt", "data.min_events": "0", "data.batch_size": "8",
    "data.tokens": "30", "trainer.max_steps": "6", "trainer.check_val_every_n_epoch": "1", "checkpoint_every": "2",
}  # fmt: skip
TEXT_OPTIONS = {
    "data.path": "log.csv", "data.test_path": "test.csv", "data.batch_size": "8", "data.words": "60",
    "trainer.max_steps": "4", "checkpoint_every": "2",
}  # fmt: skip


def leaves(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, (dict, list, tuple)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def equal(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    return one == other


def write(log: Path, events_of_one: int) -> None:
    """Neighbours: everybody has six events, and user 0 has some other number of them."""
    many = {0: events_of_one}
    rows = [(user, (user + place) % ITEMS, place) for user in range(USERS) for place in range(many.get(user, 6))]
    log.write_text("user,item,time\n" + "".join(f"u{user},i{item:02d},{time}\n" for user, item, time in rows))


def write_texts(log: Path, unit: str, other: bool) -> None:
    """Neighbours: another text with another label at one place, or another number of records of one user."""
    rows = [(f"u{n % 24}", f"w{n} w{n % 7} w3", n % 2) for n in range(72)]
    if other and unit == "texts of users":
        rows += [("u0", "unmet " * 40, 1)] * 30
    elif other:
        rows[0] = ("u0", "unmet words of it alone " * 9, 1)
    log.write_text("who,text,label\n" + "".join(f"{user},{text},{label}\n" for user, text, label in rows))


@pytest.mark.parametrize("name", SETTINGS)
def test_neighbouring_data_differ_in_noised_leaves_alone(
    name: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dprec.privacy.run.now", lambda: "2026-01-01T03:00:00+00:00")  # when a run began is public
    texts = name.startswith("texts")
    if texts:
        pytest.importorskip("transformers")
        write_texts(here / "test.csv", name, False)
    (here / "recipe.yaml").write_text(OF_TEXTS if texts else RECIPE)
    (here / "items.txt").write_text("".join(f"i{item:02d}\n" for item in range(ITEMS)))
    words = [f"--{key}={value}" for key, value in (SETTINGS[name] | (TEXT_OPTIONS if texts else OPTIONS)).items()]
    found = []
    for number, events in enumerate((6, 90)):
        if texts:
            write_texts(here / "log.csv", name, bool(number))
        else:
            write(here / "log.csv", events)
        assert fit(["recipe.yaml", *words, "--out", f"run{number}"]) == 0
        last = torch.load(here / f"run{number}/checkpoints/last.ckpt", weights_only=True)
        found.append(dict(leaves(last)))
    one, other = found
    noised = re.compile("|".join(NOISED))
    assert any(noised.fullmatch(leaf) for leaf in one)
    told = [leaf for leaf in one.keys() & other.keys() if not equal(one[leaf], other[leaf])]
    told += list(one.keys() ^ other.keys())
    assert [leaf for leaf in told if not noised.fullmatch(leaf)] == []
    for leaf in one.keys() & other.keys():  # nor does the size of a table say how much somebody met
        if isinstance(one[leaf], torch.Tensor) and not leaf.startswith("callbacks."):
            assert one[leaf].shape == other[leaf].shape, leaf
    # Of the files only these two, which docs/privacy.md names, are of the data.
    text = (ROOT / "docs/privacy.md").read_text().partition("## Not covered")[2].partition("\n## ")[0]
    files = [
        {str(path.relative_to(here / run)) for path in (here / run).rglob("*") if path.is_file()}
        for run in ("run0", "run1")
    ]
    published = {"config.yaml", "privacy.json", "checkpoints/last.ckpt"}
    not_covered = {"metrics.json", "report.html", "logs/version_0/metrics.csv", "logs/data.json"}
    if not texts:
        not_covered.add("logs/resampled.json")
    assert files[0] == files[1] == not_covered | published
    assert all(file in text for file in ("metrics.json", "report.html", "logs/"))
    for file in ("config.yaml", "privacy.json"):
        assert (here / "run0" / file).read_text().replace("run0", "run1") == (here / "run1" / file).read_text(), file
