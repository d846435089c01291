"""One person is one user however their id is written, and nobody is made of rows without an id."""

import json

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprec.data.logs.ids import in_order, normal_texts
from dprec.data.logs.interactions import read_interactions
from dprec.errors import UserError

SAME = ["12", "12 ", " 12", "12.0", "12.", "12.00", "\t12\u00a0", "\ufeff12", "\u200b12.0\u200b"]
NOBODY = ["", " ", "NULL", "null", "nan", "NaN", "-nan", "None", "NA", "N/A", "<NA>", r"\N", "undefined", "NaT"]
OWN = ["012", "12.5", "1 2", "a12", "12a", "0x12", "12.0.0", "1e1", "nano", "nullable"]


def people(events):
    return len(set(events.user.tolist()))


def logs(tmp_path, users):
    """The same rows in every format with text in it; an id that a format cannot hold is not among them."""
    rows = [(user, f"i{place}", place) for place, user in enumerate(users)]
    cells = [(f'"{user}"', item, str(time)) for user, item, time in rows]
    (tmp_path / "log.csv").write_text("user,item,time\n" + "".join(",".join(row) + "\n" for row in cells))
    (tmp_path / "semicolons.csv").write_text("user;item;time\n" + "".join(";".join(row) + "\n" for row in cells))
    objects = [{"user": user, "item": item, "time": time} for user, item, time in rows]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in objects))
    pl.DataFrame(rows, schema=["user", "item", "time"], orient="row").write_parquet(tmp_path / "log.parquet")
    (tmp_path / "log.dat").write_text("".join(f"{user}::{item}::5::{time}\n" for user, item, time in rows))
    (tmp_path / "amazon.csv").write_text("".join(f"{user},{item},5.0,{time + 10**9}\n" for user, item, time in rows))
    unquoted = ("\t".join(map(str, row)) + "\n" for row in rows if "\t" not in row[0])
    (tmp_path / "log.tsv").write_text("user\titem\ttime\n" + "".join(unquoted))
    (tmp_path / "u.data").write_text("".join(f"{u}\t{i}\t5\t{t}\n" for u, i, t in rows if "\t" not in u))
    (tmp_path / "pairs.txt").write_text(
        "".join(f"{u} {i}\n" for u, i, _ in rows if len(u.split()) == 1 and u == u.strip())
    )
    return sorted(path for path in tmp_path.iterdir())


def test_one_person_is_one_user_in_every_format(tmp_path, capsys):
    for path in logs(tmp_path, SAME):
        events = read_interactions(path)
        assert people(events) == 1, path.name
        merged = {"log.tsv": 7, "u.data": 7, "pairs.txt": 5}.get(path.name, 8)
        assert f"{merged} more spellings of user ids were merged" in capsys.readouterr().err, path.name


def test_rows_without_a_user_are_nobodys_in_every_format(tmp_path, capsys):
    for path in logs(tmp_path, ["ann", *NOBODY, "bob", "ann"]):
        events = read_interactions(path)
        assert (people(events), len(events)) == (2, 3), path.name
        nobody = len(NOBODY) - 2 * (path.name == "pairs.txt")  # which cannot say that there is nothing
        assert f"{nobody} rows have no user id" in capsys.readouterr().err, path.name


def test_what_is_written_otherwise_is_another_user(tmp_path):
    for path in logs(tmp_path, [*OWN, "12"]):
        assert people(read_interactions(path)) == len(OWN) + (path.name != "pairs.txt"), path.name  # `1 2`


@pytest.mark.parametrize("dtype", [pl.Int32, pl.Int64, pl.UInt64, pl.Float32, pl.Float64, pl.Decimal(20, 2), pl.String])
def test_every_type_of_column_gives_the_same_ids(tmp_path, dtype):
    ids = [9, 10, 11, 12, 1_234_567, None]
    column = pl.Series(ids, dtype=pl.Int64).cast(dtype)
    frame = pl.DataFrame({"user": column, "item": column, "time": range(len(ids))})
    frame.write_parquet(tmp_path / "log.parquet")
    events = read_interactions(tmp_path / "log.parquet")
    assert events.item_ids == ["9", "10", "11", "12", "1234567"]
    assert people(events) == 5


def test_long_float_ids_keep_their_digits_and_rounded_ones_are_refused(tmp_path):
    ids = [float(2**53 - 1), float(2**53 - 2), 123456789012345.0, float("nan")]
    frame = pl.DataFrame({"user": ids, "item": ids, "time": range(len(ids))})
    frame.write_parquet(tmp_path / "log.parquet")
    assert read_interactions(tmp_path / "log.parquet").item_ids == [str(int(one)) for one in sorted(ids[:3])]
    for wrong, dtype in ((2.0**53 + 2, pl.Float64), (2.0**24 + 2, pl.Float32)):
        column = pl.Series([wrong, 1.0], dtype=dtype)
        pl.DataFrame({"user": column, "item": ["a", "b"], "time": [1, 2]}).write_parquet(tmp_path / "log.parquet")
        with pytest.raises(UserError, match="user id .* is a rounded number"):
            read_interactions(tmp_path / "log.parquet")
    (tmp_path / "log.csv").write_text("user,item,time\n1.23456789012346E+15,a,1\n7,b,2\n")
    with pytest.raises(UserError, match="user id 1.23456789012346E\\+15 is a rounded number"):
        read_interactions(tmp_path / "log.csv")


# Hangul filler, braille blank, variation selectors, a joiner, a soft hyphen, a Mongolian and a tag character
UNSEEN = "\u3164\u2800\ufe0f\ufe01\u200d\u00ad\u034f\u115f\u180e\u2064\U000e0100"


@pytest.mark.parametrize("unseen", UNSEEN)
@pytest.mark.parametrize("form", ["{id}{unseen}", "{unseen}{id}", "{unseen}{id} {unseen}"])
def test_characters_that_nobody_sees_make_no_users(unseen, form):
    assert normal_texts(["ann", form.format(id="ann", unseen=unseen)]) == ["ann", "ann"]
    if unseen != "\u2800":  # which has a width, as a space has
        assert normal_texts([f"a{unseen}nn"]) == ["ann"]
    assert normal_texts([unseen]) == [None]


def test_users_that_only_look_alike_are_counted_and_said(tmp_path, capsys):
    users = ["Ann", "ann", "a nn", "007", "7", "\uff17", "bob"]
    (tmp_path / "log.csv").write_text("user,item,time\n" + "".join(f"{user},x,{n}\n" for n, user in enumerate(users)))
    assert people(read_interactions(tmp_path / "log.csv")) == 7
    said = capsys.readouterr().err
    assert "warning: " in said
    assert "6 user ids differ from another only in case" in said
    (tmp_path / "log.csv").write_text("user,item,time\nann,x,1\nbob,x,2\n")
    read_interactions(tmp_path / "log.csv")
    assert capsys.readouterr().err == ""


def test_a_row_without_an_item_counts_for_nothing(tmp_path, capsys):
    pl.DataFrame({"user": ["a", "b"], "item": ["p", None], "time": [1, None]}).write_parquet(tmp_path / "x.parquet")
    assert read_interactions(tmp_path / "x.parquet").item_ids == ["p"]
    assert "1 row has no item id and is left out" in capsys.readouterr().err


@given(st.lists(st.one_of(st.integers(0, 10**19).map(str), st.text("019a.- ", min_size=1)), unique=True, max_size=9))
def test_which_of_two_ids_comes_first_does_not_hang_on_others(ids):
    def ordered(some):
        return in_order(pl.DataFrame({"id": some}, schema={"id": pl.String}))["id"].to_list()

    whole = ordered(ids)
    for left_out in ids:
        assert ordered([each for each in ids if each != left_out]) == [each for each in whole if each != left_out]
