"""Turns the parser's many lines into one: the key, the expected type and the given value."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable

from dprec.cli.keys import parameters

_YAML = "YAML reads yes, no and digits as other things"
# Python gives a union's types in the order in which somebody first asked for them.
_ORDER = {"bool": 0, "int": 1, "float": 2, "str": 3, "null": 5}  # 4: all others


def one_line(message: str) -> str:
    """Keep the innermost key, the expected types and the value of a nested type error.

    >>> one_line('Parser key "trainer.max_steps":\\n  Expected a <class \\'int\\'>. Got value: q')
    "trainer.max_steps is 'q': expected int"
    >>> one_line('Parser key "data.labels":\\n  Expected a <class \\'str\\'>. Got value: True')
    "data.labels is 'True': expected str, so put it in quotes: YAML reads yes, no and digits as other things"
    """
    path = re.findall(r'Parser key "([\w.]+)"', message)
    refused = re.search(r"(?:class_path '([\w.]+)':\s+)?Option '([\w.]+)' is not accepted", message)
    if refused:
        return f"unknown key {'.'.join([*path, refused[2]])!r}: {_instead(refused[2], refused[1])}"
    # An outer `X or None` lists its own failures after the inner ones, so the deepest key's part comes first.
    part = message.rpartition('Parser key "')[2]
    expected, value = _innermost(part)
    if path and "dot import path" in expected and value is not None:
        return f"{_dotted(path)} is {value!r}: there is no such class; give a dotted path, such as my_module.MyClass"
    if path and expected and value is not None:
        plain = expected in ("str", "str or null")
        quotes = f", so put it in quotes: {_YAML}" if plain and value[:1] not in "[{" else ""
        if not plain and (listed := re.search(r"Subtypes: \[(.*list\[str\].*)\]\n", part)):
            expected = _any_of(map(_plain, listed[1].split(", ")))
            value = part.partition("Given value: ")[2].partition("\n")[0]
            quotes = f', with quotes, as in ["yes", "1"]: {_YAML}'
        return f"{_dotted(path)} is {value!r}: expected {expected}{quotes}"
    return re.sub(r"\s+", " ", message).strip()


def _instead(option: str, class_path: str | None) -> str:
    """What to give in place of an argument that a class does not have."""
    if option == "class_path":
        return "put the arguments of a class under init_args, beside class_path"
    module, _, name = (class_path or "").rpartition(".")
    cls = getattr(sys.modules.get(module), name, None)
    if cls is None:
        return "look for a typo among the arguments of its class"
    close = difflib.get_close_matches(option, parameters(cls), n=1, cutoff=0.75)
    return f"did you mean {close[0]}?" if close else f"{name} takes {', '.join(parameters(cls))}"


def _innermost(part: str) -> tuple[str, str | None]:
    value = re.search(r"(?:Got value|Given value): (.*)", part)
    before = part[: value.start()] if value else part
    types = [_plain(name) for name in re.findall(r"Expected (?:an? )?(.+?)(?:\. |\n|$)", before)]
    return _any_of(types), value[1].strip() if value else None


def _any_of(types: Iterable[str]) -> str:
    return " or ".join(sorted(dict.fromkeys(types), key=lambda name: _ORDER.get(name, 4)))


def _plain(name: str) -> str:
    """The name of a type as people write it."""
    plain = re.sub(r"<class '(?:[\w.]*\.)?(\w+)'>", r"\1", name.strip())
    plain = re.sub(r"(?:typing\.)?Literal\[(.*)\]", r"one of \1", plain)
    return {"NoneType": "null", "list[str]": "list of str"}.get(plain, plain)


def _dotted(path: list[str]) -> str:
    dotted = ""
    for key in path:
        dotted = key if not dotted or key.startswith(f"{dotted}.") else f"{dotted}.{key}"
    return dotted
