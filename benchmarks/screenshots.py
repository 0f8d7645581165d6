"""Takes the pictures of docs/report.md: `python -m benchmarks.screenshots DEMO OTHER [--out FOLDER]`.

The first page is shown in light, with a node chosen, and on a phone; the second in the dark.
"""

from __future__ import annotations

import argparse
import base64
from pathlib import Path
from typing import Any

from benchmarks.browser import chromium, look, open_page

IMAGES = Path(__file__).parent.parent / "docs" / "images"
CHOOSE = """
const field = document.getElementById("search");
field.value = arguments[0];
field.dispatchEvent(new Event("input"));
field.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
"""


def take(driver: Any, path: Path) -> None:
    """Write what the window shows, after two more frames."""
    driver.execute_async_script(
        "const done = arguments[0]; requestAnimationFrame(() => setTimeout(done, 250));"
    )
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png", "optimizeForSpeed": False})
    path.write_bytes(base64.b64decode(shot["data"]))


def main() -> None:
    """Take all pictures."""
    parser = argparse.ArgumentParser(description="Pictures of report pages, for the documents.")
    parser.add_argument("demo", type=Path)
    parser.add_argument("other", type=Path)
    parser.add_argument("--node", default="42", help="The node to choose on the first page.")
    parser.add_argument("--out", type=Path, default=IMAGES)
    asked = parser.parse_args()
    with chromium() as driver:
        driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        look(driver, width=1440, height=940)
        open_page(driver, asked.demo)
        driver.execute_script(CHOOSE, asked.node)
        take(driver, asked.out / "report.png")
        driver.execute_script("document.documentElement.style.scrollBehavior = 'auto'")
        driver.execute_script("document.getElementById('model-section').scrollIntoView()")
        take(driver, asked.out / "report-scores.png")
        look(driver, width=390, height=844, scale=1.5)
        open_page(driver, asked.demo)
        take(driver, asked.out / "report-phone.png")
        look(driver, width=1440, height=900, dark=True)
        open_page(driver, asked.other)
        take(driver, asked.out / "report-dark.png")


if __name__ == "__main__":
    main()
