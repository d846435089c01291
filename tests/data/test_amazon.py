"""Amazon's video games, which a user puts in a folder, in each form they come in."""

import gzip
from pathlib import Path

import pytest

from dprec.data import Sequences
from dprec.errors import UserError

EVENTS = [(f"A{user:013d}", f"B{item:09d}", 1_400_000_000 + 7 * item) for user in range(8) for item in range(6)]
PAIRS = "".join(f"{user} {item}\n" for user, item, _ in EVENTS)
RATINGS = "".join(f"{user},{item},5.0,{time}\n" for user, item, time in reversed(EVENTS))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data" / "amazon-games"
    folder.mkdir(parents=True)
    return folder


def put(path: Path, text: str) -> None:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Games.txt", PAIRS),
        ("Games.txt.gz", PAIRS),
        ("ratings_Video_Games.csv", RATINGS),
        ("ratings.csv.gz", RATINGS),
    ],
)
def test_every_form_gives_the_same_histories(folder: Path, name: str, text: str) -> None:
    put(folder / name, text)
    put(folder / "README.md", "not a log")
    data = Sequences(dataset="amazon-games", batch_size=2)
    assert (data.users, data.items, data.name, data.stand_in) == (8, 7, "amazon-games", False)
    histories = data.load().histories
    assert all(histories.of(user).tolist() == [1, 2, 3, 4, 5, 6] for user in range(8))


def test_absence_says_what_to_put_where(folder: Path) -> None:
    message = r"amazon-games is not in data/amazon-games .*: put there one file .*user,item,rating,timestamp"
    with pytest.raises(UserError, match=message):
        Sequences(dataset="amazon-games").setup()


def test_items_before_users_are_refused(folder: Path) -> None:
    """Read as it stands, every item would be a user whose history is protected."""
    put(folder / "games.csv", "".join(f"{item},{user},5.0,{time}\n" for user, item, time in EVENTS))
    with pytest.raises(UserError, match="item,user,rating,timestamp a line: swap"):
        Sequences(dataset="amazon-games").setup()
