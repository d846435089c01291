"""A run over texts: every leaf of its checkpoint is made private, or is the same whatever one record holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from dprec.fit import main as fit
from tests.commands.test_leaves import equal, leaves

pytestmark = pytest.mark.full

pytest.importorskip("transformers")

FEST_ROWS = r"callbacks\.Privacy\.sparsity\.0\.rows"  # the answer of its release
NOISED = re.compile(rf"state_dict\..*|optimizer_states\.\d+\.state\.\d+\.(exp_avg|exp_avg_sq)|{FEST_ROWS}")
ADAFEST = "{class_path: dprec.sparsity.AdaFEST, init_args: {tables: '*word_embeddings*', threshold: 2.0}}"
SETTINGS = {
    "adafest": {"privacy.sparsity": ADAFEST, "model.weight_decay": "0"},
    "fest": {"privacy.sparsity": "{class_path: dprec.sparsity.FEST, init_args: {tables: '*word_embeddings*', keep: 9}}",
             "model.weight_decay": "0"},
    "user": {"data.user_column": "who"},
}  # fmt: skip


def write(log: Path, unit: str, other: bool) -> None:
    """Neighbours: another text with another label at one place, or another number of records of one user."""
    rows = [(f"u{n % 24}", f"w{n} w{n % 7} w3", n % 2) for n in range(72)]
    if other and unit == "user":
        rows += [("u0", "unmet " * 40, 1)] * 30
    elif other:
        rows[0] = ("u0", "unmet words of it alone " * 9, 1)
    log.write_text("who,text,label\n" + "".join(f"{user},{text},{label}\n" for user, text, label in rows))


def trained(here: Path, out: str, settings: dict[str, str]) -> dict[str, object]:
    options = {
        "data.path": "log.csv", "data.test_path": "test.csv", "data.batch_size": "8", "data.words": "60",
        "trainer.max_steps": "4", "checkpoint_every": "2",
    }  # fmt: skip
    words = [word for key, value in {**settings, **options}.items() for word in (f"--{key}", value)]
    assert fit(["recipe.yaml", *words, "--out", out]) == 0
    return dict(leaves(torch.load(here / out / "checkpoints/last.ckpt", weights_only=True)))


@pytest.mark.parametrize("name", SETTINGS)
def test_texts_that_differ_by_one_record_or_user_differ_in_noised_leaves_alone(name: str, here: Path) -> None:
    (here / "recipe.yaml").write_text(
        "data: {class_path: dprec.data.Texts, init_args: {dataset: texts}}\n"
        "model: {class_path: dprec.models.TextClassifier}\nprivacy: {epsilon: 8}\n"
    )
    write(here / "test.csv", name, False)
    found = []
    for number in range(2):
        write(here / "log.csv", name, bool(number))
        found.append(trained(here, f"run{number}", SETTINGS[name]))
    one, other = found
    assert any(NOISED.fullmatch(leaf) for leaf in one)
    told = [leaf for leaf in one.keys() & other.keys() if not equal(one[leaf], other[leaf])]
    told += list(one.keys() ^ other.keys())
    assert [leaf for leaf in told if not NOISED.fullmatch(leaf)] == []
    for file in ("config.yaml", "privacy.json"):
        assert (here / "run0" / file).read_text().replace("run0", "run1") == (here / "run1" / file).read_text(), file
