"""Brings the page of the paper's tables in, with its figures, which lie beside the results outside docs/."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PAGE = "reproduction.md"
FIGURES = "results"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Leave the page out of the navigation as long as there are no results to write it from."""
    if not (Path(config.docs_dir) / PAGE).is_file():
        config.nav = without(config.nav, PAGE)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the figures."""
    folder = Path(config.docs_dir).parent / FIGURES
    if files.get_file_from_path(PAGE) is not None:
        for figure in sorted(folder.glob("*.png")):
            files.append(File.generated(config, f"{FIGURES}/{figure.name}", abs_src_path=str(figure)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point to the figures where the site has them; in a checkout they are one folder up."""
    return markdown.replace(f"](../{FIGURES}/", f"]({FIGURES}/") if page.file.src_uri == PAGE else markdown


def without(nav: Any, page: str) -> Any:
    """Return a navigation without one page, however deep."""
    if isinstance(nav, list):
        return [without(entry, page) for entry in nav if page not in _pages(entry)]
    if isinstance(nav, dict):
        return {title: without(entry, page) for title, entry in nav.items()}
    return nav


def _pages(entry: Any) -> list[Any]:
    return list(entry.values()) if isinstance(entry, dict) else [entry]
