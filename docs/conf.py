"""The documents as a site: `sphinx-build -W docs site`."""

from __future__ import annotations

import inspect
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from dprec import __version__
from dprec.cli.arguments import first_sentence, shipped

project, author, release = "dprec", "the dprec authors", __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["measured"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = "dprec"
html_static_path, html_css_files = ["_static"], ["code.css"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_default_options = {"show-inheritance": False}
add_module_names = False
maximum_signature_line_length = 90


class Gallery(SphinxDirective):
    """Every recipe: what it says of itself first, and all of it on demand."""

    def run(self) -> list[nodes.Node]:
        found: list[nodes.Node] = []
        for recipe in shipped().values():
            self.env.note_dependency(str(recipe))
            section = nodes.section(ids=[recipe.stem.replace("_", "-")])
            section += nodes.title(recipe.stem, recipe.stem)
            section += nodes.paragraph(text=first_sentence(recipe))
            section += nodes.literal_block(text=recipe.read_text(), language="yaml")
            found.append(section)
        return found


def docstring_as_markdown(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Turn what a docstring has of Markdown into reStructuredText: code between single backticks."""
    inherited = what == "class" and not thing.__dict__.get("__doc__")
    text = "" if inherited else "\n".join(lines)
    lines[:] = inspect.cleandoc(text.replace("``", "`").replace("`", "``")).splitlines()


def setup(app: Sphinx) -> None:
    app.add_directive("gallery", Gallery)
    app.connect("autodoc-process-docstring", docstring_as_markdown)
