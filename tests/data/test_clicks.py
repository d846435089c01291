"""Click records as a data module: cut in time, drawn, batched; and the files of days."""

import gzip

import pytest

from dprec.data import Clicks
from dprec.data.datasets.click_presets import VOCABULARIES
from dprec.errors import UserError

SIZES = [3, 4, 5] + [9] * 23


def rows(first, last):
    """Record n says its number in the first count, and in its values."""
    return "".join(f"{int(n % 4 == 0)}\t{n}" + "\t" * 12 + f"\t{n:08x}" * 26 + "\n" for n in range(first, last))


@pytest.fixture
def log(tmp_path):
    (tmp_path / "train.txt").write_text(rows(0, 70))
    return str(tmp_path)


@pytest.fixture
def days(tmp_path):
    """Four days of 10, 20, 30 and 40 records."""
    folder = tmp_path / "days"
    folder.mkdir()
    for day, (first, last) in enumerate([(0, 10), (10, 30), (30, 60), (60, 100)]):
        (folder / f"day_{day}.gz").write_bytes(gzip.compress(rows(first, last).encode()))
    return str(folder)


def small(path, dataset="criteo-kaggle", **options):
    return Clicks(**{"dataset": dataset, "path": path, "vocabularies": SIZES, "batch_size": 6, **options})


def numbers(batches):
    return [int(n) for batch in batches for n in batch.numbers[:, 0]]


def test_a_log_without_marks_is_cut_into_equal_days(log):
    data = small(log, validation=True)
    data.setup()
    assert (data.users, data.unit, data.name, data.stand_in) == (50, "record", "criteo-kaggle", False)
    assert data.sizes == {"numbers": 13, "vocabularies": tuple(SIZES)}
    assert numbers(data.val_dataloader()) == list(range(50, 60))
    assert numbers(data.test_dataloader()) == list(range(60, 70))
    assert numbers(small(log).val_dataloader()) == list(range(60, 70))
    assert data.periods() == [range(start, start + 10) for start in range(0, 50, 10)]
    assert data.periods(2) == [range(0, 20), range(20, 40), range(40, 50)]
    assert data.load() is data.load()
    assert small(log, days=2).users == 35


@pytest.mark.parametrize("sampling", ["poisson", "shuffle"])
@pytest.mark.parametrize("micro_batch", [1, 4, 100])
def test_training_serves_the_drawn_records(log, sampling, micro_batch):
    data = small(log, sampling=sampling, sampling_seed=0, micro_batch=micro_batch)
    drawn = small(log, sampling=sampling, sampling_seed=0).batches
    served = list(data.train_dataloader())
    assert len(served) == len(drawn) == 10
    for batch, records in zip(served, drawn, strict=True):
        assert numbers(batch) == records
        assert all(0 < len(micro) <= micro_batch for micro in batch)


def test_periods_are_trained_on_in_time_order(days):
    data = small(days, "criteo-days", period_days=1, batch_size=5)
    assert data.batches.periods == ((range(0, 10), 2), (range(10, 30), 4), (range(30, 60), 6))
    drawn_from = [period for period, steps in data.batches.periods for _ in range(steps)]
    for period, batch in zip(drawn_from, data.train_dataloader(), strict=True):
        assert set(numbers(batch)) <= set(period)


def test_vocabularies_are_those_published_or_declared():
    assert len(VOCABULARIES) == 26
    assert sum(VOCABULARIES) == 338_782
    assert Clicks(dataset="synthetic").sizes["vocabularies"] == VOCABULARIES
    scaled = Clicks(dataset="synthetic", table_scale=0.01).vocabularies
    assert (scaled[2], min(scaled), scaled[8]) == (827, 3, 3)
    for wrong in ([5] * 25, [1] + [5] * 25, []):
        with pytest.raises(UserError, match="26 sizes of at least 2"):
            Clicks(vocabularies=wrong)
    with pytest.raises(UserError, match="table_scale"):
        Clicks(table_scale=0)


def test_the_fingerprint_names_the_data_and_tells_nothing_of_it(log, tmp_path):
    print_of, content = small(log).fingerprint, small(log).content
    assert content == small(log, batch_size=3).content
    assert print_of == small(log, batch_size=3, micro_batch=1).fingerprint
    assert print_of != small(log, validation=True).fingerprint
    assert print_of != small(log, table_scale=2.0).fingerprint
    (tmp_path / "train.txt").write_text(rows(100, 170))
    assert small(log).fingerprint == print_of  # as many records, of other content
    assert small(log).content != content
    (tmp_path / "train.txt").write_text(rows(0, 77))
    assert small(log).fingerprint != print_of


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, "put train.txt or train.txt.gz there"),
        ({"dataset": "criteo-days"}, "put day_0, day_1"),
        ({"path": "nowhere", "on_missing": "stand-in"}, "criteo-kaggle is not in nowhere"),
        ({"dataset": "netflix"}, "data.dataset is 'netflix'"),
        ({"on_missing": "guess"}, "data.on_missing is 'guess'"),
        ({"dataset": "synthetic", "path": "x"}, "takes no data.path"),
        ({"dataset": "synthetic", "days": 0}, "data.days is 0"),
        ({"dataset": "synthetic", "synthetic_records": 6}, "data.synthetic_records is 6"),
        ({"dataset": "synthetic", "test_days": 7}, "data.test_days is 7 of 7 days"),
        ({"dataset": "synthetic", "test_days": 6, "validation": True}, "at least 2 before them"),
        ({"dataset": "synthetic", "test_days": 0}, "data.test_days is 0"),
    ],
)
def test_mistakes_are_named_in_one_line(tmp_path, monkeypatch, options, wanted):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        Clicks(**{"synthetic_records": 100, "table_scale": 0.01, **options}).setup()
    assert wanted in str(caught.value)
