"""The documents as a site: no warning, no link that leads nowhere, nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.commands.support import environment

pytestmark = pytest.mark.full

pytest.importorskip("sphinx")
pytest.importorskip("myst_parser")
pytest.importorskip("furo")

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", str(ROOT / "docs"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    return folder


def test_every_document_is_a_page_and_in_the_contents(site: Path) -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert pages <= {path.stem for path in site.glob("*.html")}
    first = (site / "index.html").read_text()
    assert [page for page in sorted(pages - {"index"}) if f'href="{page}.html"' not in first] == []


def test_every_recipe_is_in_the_gallery(site: Path) -> None:
    gallery = (site / "recipes.html").read_text()
    assert [path.stem for path in (ROOT / "recipes").glob("*.yaml") if f">{path.stem}<" not in gallery] == []


def test_links_lead_somewhere_and_nothing_comes_from_elsewhere(site: Path) -> None:
    texts = {page.resolve(): page.read_text() for page in site.glob("*.html")}
    places = {page: set(re.findall(r'\bid="([^"]+)"', text)) for page, text in texts.items()}
    wrong, seen = [], 0
    for page, text in texts.items():
        wrong += [
            f"{page.name} fetches {url}" for url in re.findall(r'<(?:script|img|link)[^>]+"(https?:[^"]+)"', text)
        ]
        for link in re.findall(r'(?:href|src)="([^"]*)"', text):
            if re.match(r"\w+:", link):
                continue
            path, _, place = unquote(link).partition("#")
            target = (page.parent / path.partition("?")[0]).resolve() if path else page
            seen += 1
            if not target.exists() or (place and place not in places.get(target, {place})):
                wrong.append(f"{page.name} links to {link}")
    assert seen > 1000
    assert wrong == []
