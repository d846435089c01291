"""The download, against a GroupLens of our own in a folder."""

import zipfile

import pytest

from dprec.data import Sequences
from dprec.data.datasets import source
from dprec.errors import UserError

RATINGS = "".join(f"{user}::{item}::5::{item}\n" for user in range(6) for item in range(6))


@pytest.fixture
def grouplens(tmp_path, monkeypatch):
    """A host with a tiny ml-1m.zip; the working directory is another folder."""
    host = tmp_path / "host"
    host.mkdir()
    with zipfile.ZipFile(host / "ml-1m.zip", "w") as archive:
        archive.writestr("ml-1m/ratings.dat", RATINGS)
        archive.writestr("ml-1m/README", "usage licence")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(source, "GROUPLENS", host.as_uri())
    return host


@pytest.fixture
def offline(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(source, "GROUPLENS", (tmp_path / "nowhere").as_uri())


def test_a_release_is_fetched_once(grouplens, tmp_path):
    data = Sequences(dataset="movielens-1m", batch_size=2)
    found = data.users, data.items, data.name, data.stand_in, data.notice
    assert found == (6, 7, "movielens-1m", False, None)
    home = tmp_path / "work" / "data" / "movielens-1m"
    files = ["ml-1m", "ml-1m/README", "ml-1m/ratings.dat"]
    assert sorted(str(file.relative_to(home)) for file in home.rglob("*")) == files
    (grouplens / "ml-1m.zip").unlink()
    assert Sequences(dataset="movielens-1m", batch_size=2).users == 6


@pytest.mark.parametrize("on_missing", ["error", "stand-in"])
@pytest.mark.parametrize("place", ["missing", "host"])
def test_a_given_folder_without_the_log_is_refused(grouplens, tmp_path, on_missing, place):
    """Neither a download into it nor a stand-in: the path was mistyped."""
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match=rf"movielens-1m is not in .*{place}: data\.path needs ratings\.dat"):
        Sequences(dataset="movielens-1m", path=str(tmp_path / place), on_missing=on_missing).setup()
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("damage", ["a byte", "half"])
@pytest.mark.parametrize("on_missing", ["error", "stand-in"])
def test_a_damaged_archive_is_refused_and_leaves_nothing(grouplens, tmp_path, on_missing, damage):
    """Not even a stand-in: the network is there, and the answer is wrong."""
    whole = (grouplens / "ml-1m.zip").read_bytes()
    harmed = whole.replace(RATINGS.encode()[:9], b"9" * 9, 1) if damage == "a byte" else whole[: len(whole) // 2]
    assert harmed != whole
    (grouplens / "ml-1m.zip").write_bytes(harmed)
    with pytest.raises(UserError, match=r"ml-1m\.zip is no whole zip archive \(.*\): try again"):
        Sequences(dataset="movielens-1m", on_missing=on_missing).setup()
    assert not list((tmp_path / "work" / "data" / "movielens-1m").iterdir())


def test_without_a_network_the_error_says_where_the_file_belongs(offline):
    with pytest.raises(UserError, match=r"unzip ml-1m\.zip so that .*ml-1m/ratings\.dat exists"):
        Sequences(dataset="movielens-1m").setup()


def test_without_a_network_a_stand_in_says_what_it_is(offline, tmp_path):
    data = Sequences(
        dataset="movielens-1m", on_missing="stand-in", synthetic_users=100, synthetic_items=30, batch_size=10
    )
    data.setup()
    assert data.stand_in
    assert data.name == "movielens-1m-stand-in"
    assert data.notice.startswith("STAND-IN DATA: movielens-1m")
    assert "\n" not in data.notice
    assert data.users == 100
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("dataset", "place"),
    [
        ("movielens-1m", "ratings.dat"),
        ("movielens-1m", "ml-1m/ratings.dat"),
        ("movielens-100k", "ml-100k/u.data"),
        ("movielens-20m", "ml-20m/ratings.csv"),
        ("movielens-32m", "ratings.csv"),
    ],
)
def test_a_release_is_found_in_its_folder(offline, tmp_path, dataset, place):
    log = tmp_path / "here" / place
    log.parent.mkdir(parents=True)
    text = RATINGS if log.suffix == ".dat" else RATINGS.replace("::", "\t" if log.name == "u.data" else ",")
    log.write_text(("userId,movieId,rating,timestamp\n" if log.suffix == ".csv" else "") + text)
    for name in (dataset, "file"):
        assert Sequences(dataset=name, path=str(tmp_path / "here")).users == 6
