"""Keeps the site readable without a network: a page that would load something from elsewhere is a warning."""

from __future__ import annotations

import logging
import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.pages import Page

LOADED = re.compile(
    r"""<(?:script|link|img|iframe|source|video|audio|embed|object)\b[^>]*?
        \b(?:src|href|data)=["']?((?:https?:)?//[^"'\s>]+)""",
    re.VERBOSE | re.IGNORECASE,
)
log = logging.getLogger("mkdocs.hooks.offline")


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Look through a finished page; with `--strict` a warning ends the build."""
    for address in loaded_from_elsewhere(output):
        log.warning("%s loads %s from the network", page.file.src_uri, address)
    return output


def loaded_from_elsewhere(html: str) -> list[str]:
    """Return the addresses of what a browser fetches to show a page; what a reader may click on is none."""
    return LOADED.findall(html)
