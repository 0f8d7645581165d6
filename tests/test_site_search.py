"""The search of the site works on pages opened from disk."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import browser

ROOT = Path(__file__).parents[1]
RESULTS = "return [...document.querySelectorAll('.md-search-result__link')].map((one) => one.href)"
ASK = """
document.querySelector('[data-md-toggle=search]').checked = true;
document.querySelector('[data-md-toggle=search]').dispatchEvent(new Event('change'));
const field = document.querySelector('.md-search__input');
field.focus();
field.value = arguments[0];
field.dispatchEvent(new Event('input'));
field.dispatchEvent(new Event('keyup'));
"""


def search(driver: Any, page: Path, words: str) -> list[str]:
    """Return the addresses that the search of a page finds."""
    driver.get(page.resolve().as_uri())
    found: list[str] = []
    until = time.monotonic() + 60
    while not found and time.monotonic() < until:
        driver.execute_script(ASK, words)
        time.sleep(0.3)
        found = driver.execute_script(RESULTS)
    return found


@pytest.mark.skipif(bool(browser.missing()), reason=browser.missing())
def test_search_works_without_a_server(tmp_path: Path) -> None:
    pytest.importorskip("material")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    docs = tmp_path / "docs"
    shutil.copytree(ROOT / "docs" / "javascripts", docs / "javascripts")
    shutil.copytree(ROOT / "docs" / "stylesheets", docs / "stylesheets")
    (docs / "deep").mkdir()
    (docs / "index.md").write_text("# Home\n\nNothing here.\n")
    (docs / "deep" / "other.md").write_text("# Other\n\n## Part\n\nThe heffalump lives here.\n")
    config = load_config(
        str(ROOT / "mkdocs.yml"),
        docs_dir=str(docs),
        site_dir=str(tmp_path / "site"),
        hooks=[str(ROOT / "docs" / "hooks" / "offline.py")],
        nav=[{"Home": "index.md"}, {"Other": "deep/other.md"}],
        plugins=["search", "offline"],
    )
    build(config)
    with browser.chromium() as driver:
        for page in ("index.html", "deep/other.html"):
            found = search(driver, tmp_path / "site" / page, "heffalump")
            assert found, driver.get_log("browser")
            assert any("deep/other.html" in one for one in found)
