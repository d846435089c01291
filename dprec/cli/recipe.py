"""A recipe's YAML, with checks for mistakes that YAML allows."""

from __future__ import annotations

from typing import Any

import yaml

from dprec.errors import UserError


def load_recipe(text: str, path: str) -> Any:
    """The result of `yaml.safe_load`; refuses a key that is given twice, and an empty privacy block.

    >>> load_recipe("seed: 3\\nprivacy: null", "a.yaml")
    {'seed': 3, 'privacy': None}
    """
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        _refuse_repeated(root, path, set())
        if isinstance(root, yaml.MappingNode):
            for key, value in root.value:
                # `privacy: null` is a decision; an empty block may be one whose lines are commented out.
                if key.value == "privacy" and value.value in ("", []):
                    raise UserError(
                        f"{path}: the privacy block is empty: give privacy.epsilon, or write `privacy: null` "
                        "to train without privacy"
                    )
        return loader.construct_document(root)
    finally:
        loader.dispose()


def _refuse_repeated(node: yaml.Node, path: str, visited: set[int]) -> None:
    if id(node) in visited:  # an alias
        return
    visited.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _refuse_repeated(value, path, visited)
    if isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in lines:
                    raise UserError(
                        f"{path} gives {key.value!r} twice in one block (lines {lines[key.value]} and {line}): keep one"
                    )
                lines[key.value] = line
            _refuse_repeated(value, path, visited)
