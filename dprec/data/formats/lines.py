"""Lines of texts that hold an id, a text or a history each."""

from __future__ import annotations


def lines_in(text: str) -> list[str]:
    """Lines as files have them: other characters at which `str.splitlines` cuts may stand in ids and texts.

    >>> lines_in("a\\u2028b\\nc\\n"), lines_in("")
    (['a\\u2028b', 'c'], [])
    """
    return text.removesuffix("\n").split("\n") if text else []
