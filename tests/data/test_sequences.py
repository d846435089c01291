import gzip

import pytest
import pytorch_lightning as pl

from dprec.data import SequenceBatch, Sequences
from dprec.errors import UserError
from tests.quiet import trainer


@pytest.fixture
def log(tmp_path):
    """User u meets items u, u + 1, ... of 12, eight of them."""
    path = tmp_path / "films.txt.gz"
    pairs = "".join(f"u{user} f{(user + place) % 12:02d}\n" for place in range(8) for user in range(12))
    path.write_bytes(gzip.compress(pairs.encode()))
    return str(path)


def small(log, **options):
    settings = {"dataset": "file", "path": log, "batch_size": 4, "sampling_seed": 0, "validation": False}
    return Sequences(**{**settings, **options})


def test_a_file_becomes_sequences(log):
    data = small(log)
    data.setup()
    assert (data.users, data.items, data.name) == (12, 13, "films")
    assert data.catalogue_ids == [f"f{item:02d}" for item in range(12)]
    assert data.catalogue.encode_history(["f03", "x"]) == ([4], ["x"])
    assert data.popularity.tolist() == [0.0, *[7.0] * 12]  # eight events each, one of them held out
    assert data.load() is data.load()


def test_nobody_trains_on_what_comes_later_and_validation_is_the_default(tmp_path):
    """Every event is an item of its own, so that an item says whose it is and when it was met."""
    rows = [(f"u{user}", f"{10 * user + place + 1}", place) for user in range(12) for place in range(3 + user % 5)]
    path = tmp_path / "log.csv"
    path.write_text("user,item,time\n" + "".join(f"{user},{item},{time}\n" for user, item, time in rows))
    data = Sequences(dataset="file", path=str(path), min_events=0, batch_size=12)
    number = {raw: place for place, raw in enumerate(data.catalogue_ids, 1)}
    events = [[number[f"{10 * user + place + 1}"] for place in range(3 + user % 5)] for user in range(12)]
    tested = [history for history in events if len(history) >= 4]  # the others are too short to hold two out
    held_out = {item for history in tested for item in history[-2:]}
    trained = {
        item
        for micro in data.train_dataloader().dataset.__getitems__(range(12))
        for item in (*micro.history.flatten().tolist(), *micro.targets.flatten().tolist())
    }
    assert trained - {0} == {item for history in events for item in history} - held_out
    assert not data.popularity[sorted(held_out)].any()
    for loader, known in ((data.val_dataloader(), 2), (data.test_dataloader(), 1)):
        found = {}
        for batch in loader:
            for history, target, seen in zip(batch.history, batch.target, batch.seen, strict=True):
                assert history[history != 0].tolist() == seen[seen != 0].tolist()
                found[int(target)] = history[history != 0].tolist()
        assert found == {history[-known]: history[:-known] for history in tested}


@pytest.mark.parametrize("sampling", ["poisson", "shuffle"])
def test_training_serves_the_drawn_users(log, sampling):
    data = small(log, sampling=sampling)
    logical = list(data.train_dataloader())
    again = small(log, sampling=sampling)
    assert len(logical) == len(again.batches) == 3
    for batch, users in zip(logical, again.batches, strict=True):
        assert sum(map(len, batch)) == len(users)
        assert all(isinstance(micro, SequenceBatch) for micro in batch)
        expected = {tuple((user + place) % 12 + 1 for place in range(6)) for user in users_by_text(users)}
        assert {tuple(filter(None, row)) for micro in batch for row in micro.history.tolist()} == expected


def users_by_text(users):
    """Users are numbered by their text: u0, u1, u10, u11, u2, ..."""
    names = sorted(f"u{user}" for user in range(12))
    return [int(names[user][1:]) for user in users]


def test_lightning_trains_through_empty_draws(log):
    class Counting(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.sizes = []

        def training_step(self, batch, _):
            assert all(isinstance(micro, SequenceBatch) for micro in batch)
            self.sizes.append(sum(map(len, batch)))

        def configure_optimizers(self):
            return None

    model, data = Counting(), small(log, batch_size=1)
    trainer(max_epochs=2).fit(model, datamodule=data)
    again = small(log, batch_size=1).batches
    assert model.sizes == [len(users) for _ in range(2) for users in again]
    assert 0 in model.sizes


def test_what_is_assumed_public(log, tmp_path):
    found = small(log).assumptions
    assert found[0] == "the number of users (12)"
    assert found[1:] == [
        "the item catalogue, although it lists the items that at least 5 users in this data saw, without noise"
    ]
    assert small(log, min_events=0).assumptions[1].endswith("that anybody in this data saw, without noise")
    assert small(log, catalogue="from-data").assumptions == small(log, catalogue=None).assumptions == found
    (tmp_path / "items.txt").write_text("f05\nf04\nf03\nf02\nf01\nnew\n")
    public = small(log, catalogue=str(tmp_path / "items.txt"), min_events=2)
    assert public.catalogue_ids == ["f05", "f04", "f03", "f02", "f01", "new"]
    assert len(public.assumptions) == 2
    assert "items.txt" in public.assumptions[1]
    assert public.popularity[-1] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampling": "sometimes"}, "data.sampling is 'sometimes': give poisson or shuffle"),
        ({"batch_size": 0}, "data.batch_size is 0"),
        ({"batch_size": 13}, "the data has 12 users"),
        ({"max_length": 0}, "data.max_length is 0"),
        ({"tokens": 0}, "data.tokens is 0"),
        ({"min_events": 9}, "items was seen by 9 users, of whom the log has 12"),
        ({"dataset": "netflix"}, "data.dataset is 'netflix': give one of file, synthetic, movielens-100k"),
        ({"on_missing": "shrug"}, "data.on_missing is 'shrug'"),
        ({"path": None}, "data.path is not set"),
        ({"dataset": "synthetic"}, "takes no data.path"),
        ({"format": "xml"}, "data.format is 'xml'"),
    ],
)
def test_mistakes_are_one_line(log, options, message):
    with pytest.raises(UserError, match=message) as error:
        next(iter(small(log, **options).train_dataloader()))
    assert "\n" not in str(error.value)
