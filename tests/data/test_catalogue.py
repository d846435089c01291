import pytest

from dprec.data import Catalogue
from dprec.errors import UserError


def test_read_skips_blank_lines(tmp_path):
    (tmp_path / "items.txt").write_text("b\n\n a \nc\n")
    assert Catalogue.read(tmp_path / "items.txt").ids == ["b", "a", "c"]


def test_lines_end_where_files_end_them(tmp_path):
    """An id may hold what Python takes for the end of a line."""
    ids = ["a\u2028b", "c\x85d", "e\x0bf", "g\x1ch", "i"]
    (tmp_path / "items.txt").write_text("\r\n".join(ids), encoding="utf-8", newline="")
    assert Catalogue.read(tmp_path / "items.txt").ids == ids


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\nb\na\n", r"item 'a' twice \(lines 1 and 3\)"),
        (b"\n \n", "is empty"),
        (b"\xff\xfe\xff", "not UTF-8"),
    ],
)
def test_a_broken_list_is_named(tmp_path, content, message):
    (tmp_path / "items.txt").write_bytes(content)
    with pytest.raises(UserError, match=message):
        Catalogue.read(tmp_path / "items.txt")


def test_a_repeated_id_is_refused():
    with pytest.raises(UserError, match="'b' is in the catalogue twice"):
        Catalogue(["a", "b", "b"])
