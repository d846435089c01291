"""Reports by their HTML: well formed, nothing from elsewhere, every figure of the run, words in place of charts."""

from __future__ import annotations

import json
import math
import re
import stat
from datetime import date
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch

from dprec.fit import main as fit
from dprec.metrics import UserMeans
from dprec.report import main as report
from dprec.reporting.charts import OTHERS, epsilon_scale
from dprec.reporting.differences import differences
from dprec.reporting.finished import Finished
from dprec.reporting.pages import in_plain_words, run_page

VOID = {"meta", "line", "circle", "polyline", "br"}
SETTINGS = """
data: {dataset: synthetic, synthetic_users: 80, synthetic_items: 30, batch_size: 20, max_length: 10}
model: {class_path: dprec.models.Spectral, init_args: {top: 10, rank: 4}}
trainer: {max_steps: 4, check_val_every_n_epoch: 1, log_every_n_steps: 1, enable_progress_bar: false}
"""


class Page(HTMLParser):
    """A page's tags, checked to close in order, its text, and all that would make a browser ask for something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def asks_for_nothing(page: Page, text: str) -> None:
    assert not {"script", "link", "img", "iframe", "object", "image", "use"} & {tag for tag, _ in page.tags}
    assert not {"src", "href", "xlink:href", "style"} & {name for _, attributes in page.tags for name in attributes}
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert "://" not in text
    assert "url(" not in text
    assert "@import" not in text


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A private run, one without privacy, and one that EANA breaks."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "r.yaml").write_text(SETTINGS)
    eana = ["--model", "dprec.models.DualEncoder", "--model.tied", "false", "--model.negatives", "4"]
    eana += ["--model.weight_decay", "0", "--privacy.noise_multiplier", "1", "--privacy.sparsity", "EANA"]
    private = ["--privacy.epsilon", "4", "--baselines", "ease"]
    for name, words in {"private": private, "open": [], "eana": eana}.items():
        assert fit([str(folder / "r.yaml"), *words, "--name", name, "--out", str(folder / name)]) == 0
    return folder


@pytest.mark.full
def test_eana_says_what_it_reveals_in_place_of_an_epsilon(runs: Path) -> None:
    """Of two tables, each with a row for an item; a user reads those of items in their history and of their targets."""
    found = json.loads((runs / "eana" / "metrics.json").read_text())["revealed_not_private"]
    private = json.loads((runs / "private" / "metrics.json").read_text())
    assert "revealed_not_private" not in private
    assert (found["users"], found["rows"]) == (80, 2 * private["items"])
    assert 0 < found["users_of_a_row"][2] <= 80
    assert (found["epsilon_theorem_3_1"] is None) == (found["rows_of_one_user"] > 0)


@pytest.mark.full
@pytest.mark.parametrize("name", ["private", "open", "eana"])
def test_a_run_leaves_a_page_that_says_everything(runs: Path, name: str) -> None:
    path = runs / name / "report.html"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600  # it holds metrics without noise
    text = path.read_text()
    page = Page(text)
    asks_for_nothing(page, text)
    metrics = json.loads((runs / name / "metrics.json").read_text())
    for metric in ("ndcg@10", "hit@10", "popularity_ndcg@10", "popularity_hit@10"):
        assert f"{metrics[metric]:.4g}" in page.words
    assert f"dprec fit {runs / name}/config.yaml --out NEW_FOLDER" in page.words
    assert "synthetic_users: 80" in page.words
    assert f"Finished on {date.today().isoformat()}." in page.words
    promises = page.named("p")[0]["class"]
    assert "head:" in page.words
    assert "long:" in page.words
    if name == "private":
        assert (
            len(re.findall(r"\bease\b", page.words)) == 1 + page.words.count("ease, NOT PRIVATE") > 2
        )  # 1: the recipe
        assert promises == "promise"
        assert "one user's whole history in the data as without it" in page.words
        for part in metrics["guarantee"].split("; assumed public: ")[1].split("; not covered: "):
            for one in part.split("; "):
                assert one in page.words
        assert "Assumed public: the number of users (80)" in page.words
        assert "item frequencies" in page.words  # a release in the ledger
        assert "ε spent over the steps" in page.words
    else:
        assert promises == "promise none"
        assert f"This run promises nothing: it is {metrics['guarantee']}." in page.words
        assert "at most" not in page.words.partition("What it reached")[0]


def test_charts_have_words_in_their_place(runs: Path) -> None:
    page = Page((runs / "private" / "report.html").read_text())
    charts = page.named("svg")
    assert len(charts) == 4  # two scales, ε and the loss; one evaluation is no curve
    for chart in charts:
        assert chart["role"] == "img"
        assert re.search(r"\d", chart["aria-label"] or "")
    assert len(page.named("details")) == len(charts) + 3  # the guarantee, groups of users and the recipe are, too
    assert all(head.get("scope") in ("col", "row") for head in page.named("th"))


def test_spent_epsilon_rises_to_the_runs(runs: Path) -> None:
    run = Finished.read(runs / "private")
    steps, epsilons = zip(*run.spent(), strict=True)
    assert (steps[0], steps[-1], epsilons[-1]) == (0, 4, run.metrics["epsilon"])
    assert list(epsilons) == sorted(epsilons)
    assert epsilons[0] > 0.1  # the releases before training
    assert Finished.read(runs / "open").spent() == []


def test_the_sentence_never_promises_more_than_the_ledger(runs: Path) -> None:
    run = Finished.read(runs / "private")
    factor = float(re.search(r"at most ([\d,.]+) times", in_plain_words(run))[1].replace(",", ""))  # type: ignore[index]
    assert math.exp(run.metrics["epsilon"]) <= factor < 1.01 * math.exp(run.metrics["epsilon"]) + 0.01


def test_several_runs_are_a_row_each(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = runs / "all.html"
    assert report([str(runs / name) for name in ("private", "open", "eana")] + ["--out", str(out)]) == 0
    assert f"report: {out}" in capsys.readouterr().out
    text = out.read_text()
    page = Page(text)
    asks_for_nothing(page, text)
    assert page.words.count("This run promises nothing") == 2
    for name in ("private", "open", "eana"):
        assert f"{name} ({runs / name})" in page.words
    assert len(page.named("rect")) == 5  # all of them, EASE and popularity
    assert page.words.count("differs by") == 4  # two metrics of the second run and the third, beside the first
    assert page.words.count("paired by user") == 4


def test_a_run_cannot_write_html_into_its_page(runs: Path, tmp_path: Path) -> None:
    run = Finished.read(runs / "private")
    evil = "<script src=//x></script>\"'&"
    metrics = {**run.metrics, "run": evil, "dataset": evil, "notice": evil}
    broken = Finished(tmp_path / evil, metrics, run.privacy, evil, {evil: [(1, 2), (3, 4)]})
    page = Page(run_page(broken))
    assert not page.named("script")
    assert evil in page.words


def finished(users: int, seed: int, who: str = "", better: float = 0.0) -> Finished:
    """A run on invented users, whose numbers are mostly the user's own and little the run's."""
    user = np.random.default_rng(0).random(users)
    values = 0.9 * user + 0.1 * np.random.default_rng(seed).random(users) + better
    means = UserMeans(["ndcg@10"])
    means.update(np.arange(users), torch.from_numpy(values)[:, None, None], torch.ones(users, 1, dtype=torch.bool))
    ends = {"ndcg@10": means.intervals()["ndcg@10"].tolist()}
    metrics = {"ndcg@10": float(values.mean()), "popularity_ndcg@10": 0.1, "intervals": ends}
    drawn = {"who": who, "ndcg@10": means.resampled()["ndcg@10"].tolist()} if who else {}
    return Finished(Path("run"), metrics, {}, "", {}, resampled=drawn)


def test_pairs_of_runs_on_the_same_users_tell_small_differences() -> None:
    one, other = finished(2000, 1, "same", better=0.01), finished(2000, 2, "same")
    (paired,) = differences(one, other)
    assert paired.paired
    assert paired.low > 0  # the run's own part alone counts
    values = [0.1 * np.random.default_rng(seed).random(2000) for seed in (1, 2)]
    error = np.std(values[0] - values[1]) / 2000**0.5
    assert paired.high - paired.low == pytest.approx(2 * 1.96 * error, rel=0.1)
    for stranger in (finished(2000, 2, "others"), finished(2000, 2)):
        (alone,) = differences(one, stranger)
        assert not alone.paired
        assert alone.low < 0 < alone.high
        assert alone.value == paired.value
        error = (2 * np.var(0.9 * np.random.default_rng(0).random(2000)) / 2000) ** 0.5
        assert alone.high - alone.low == pytest.approx(2 * 1.96 * error, rel=0.1)
    elsewhere = Finished(Path("run"), {**one.metrics, "dataset": "another"}, {}, "", {}, resampled=one.resampled)
    assert differences(one, elsewhere) == []  # figures on other data do not compare
    old = Finished(Path("run"), {"ndcg@10": 0.5, "popularity_ndcg@10": 0.1}, {}, "", {})
    assert differences(one, old) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "usage: dprec report"),
        (["nowhere"], "no run at 'nowhere'"),
        (["empty"], "it is not finished"),
        (["odd"], "cannot read the run in odd"),
        (["private", "private"], "--out comparison.html"),
        (["private", "--json", "1"], "unrecognized arguments: --json"),
    ],
)
def test_a_mistake_is_one_line(
    runs: Path, words: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(runs)
    Path("empty").mkdir(exist_ok=True)
    Path("odd").mkdir(exist_ok=True)
    Path("odd/metrics.json").write_text("[")
    assert report(words) == (2 if words else 0)
    told = capsys.readouterr()
    assert says in told.out + told.err


@pytest.mark.parametrize("epsilon", [0.003, 1.0, 8.0, 5000.0])
def test_every_epsilon_is_on_the_scale_beside_what_the_documents_say_of_others(epsilon: float) -> None:
    chart = epsilon_scale(epsilon, "user")
    places = [float(x) for x in re.findall(r'cx="([\d.-]+)"', chart)]
    assert all(210 <= x <= 640 for x in places)
    assert len(places) == 1 + sum(len(values) for _, values in OTHERS)
    rows = re.findall(r"\| ([^|]+) \| ([\d, /]+) \|", (Path(__file__).parents[2] / "docs/questions.md").read_text())
    told = [(who.split(",")[0], [float(one) for one in re.split(r"[,/]", said)]) for who, said in rows]
    assert told == [(who.split(",")[0].removesuffix("'s paper"), [*values]) for who, values in OTHERS]
