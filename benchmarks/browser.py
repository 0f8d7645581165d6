"""A real headless Chromium that opens pages from files, for the browser tests and the page benchmark."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def missing() -> str:
    """Return what is not installed; "" if a browser can be started."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed (pip install selenium)"
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"not installed: {' and '.join(absent)} (Debian: apt-get install chromium chromium-driver)" * bool(
        absent
    )


@contextmanager
def chromium(width: int = 1400, height: int = 1000) -> Iterator[Any]:
    """Start a browser with a temporary profile; downloads go to `.downloads`."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(prefix="h3gnn-browser-", ignore_cleanup_errors=True) as folder:
        for flag in (*FLAGS, f"--user-data-dir={folder}/profile", f"--window-size={width},{height}"):
            options.add_argument(flag)
        driver: Any = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        driver.downloads = Path(folder) / "downloads"
        driver.downloads.mkdir()
        driver.execute_cdp_cmd(
            "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(driver.downloads)}
        )
        look(driver, width=width, height=height)
        try:
            yield driver
        finally:
            driver.quit()


def look(driver: Any, *, width: int = 1400, height: int = 1000, dark: bool = False, scale: float = 1) -> None:
    """Set the window's size, the theme that the system asks for, and the pixels per point."""
    size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [theme]})


def open_page(driver: Any, path: Path, seconds: float = 20) -> None:
    """Open a file and wait until its map is drawn."""
    driver.get(path.resolve().as_uri())
    limit = time.monotonic() + seconds
    while driver.execute_script("return document.documentElement.dataset.ready") != "true":
        if time.monotonic() > limit:
            raise TimeoutError(f"{path} drew no map in {seconds} s: {driver.get_log('browser')}")
        time.sleep(0.02)
