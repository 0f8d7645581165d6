"""How long the report page takes to open, and how smoothly it pans, in a real browser.

`python -m benchmarks.page [--nodes 50000] [--out FILE]`. Opening is from the start of the navigation to the
first drawn map. A frame is the time between two drawings, while pointer events drag both maps for seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.browser import chromium, missing, open_page
from benchmarks.cpu import machine
from benchmarks.pages import made_up_page

RESULTS = Path(__file__).parent / "results" / "page.json"
OPENINGS = 5
FRAMES = 150

DRAG = """
const done = arguments[1], map = report.maps[0], box = map.overlay.getBoundingClientRect();
const times = [], drawing = report.frames;
drawing.length = 0;
const send = (kind, x, y) => map.overlay.dispatchEvent(new PointerEvent(kind, {
  pointerId: 1, bubbles: true, clientX: box.left + x, clientY: box.top + y }));
map.overlay.setPointerCapture = () => {};
send("pointerdown", 200, 200);
let last = performance.now(), step = 0;
const next = (now) => {
  times.push(now - last);
  last = now;
  step++;
  send("pointermove", 200 + 120 * Math.sin(step / 12), 200 + 80 * Math.sin(step / 7));
  if (step < arguments[0]) requestAnimationFrame(next);
  else { send("pointerup", 200, 200); done({ between: times.slice(1), drawing: [...drawing] }); }
};
requestAnimationFrame(next);
"""


def measure(nodes: int) -> dict[str, Any]:
    """Return how a page of this many nodes opens and pans."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(made_up_page(nodes))
        with chromium() as browser:
            opened = []
            for _ in range(OPENINGS):
                open_page(browser, page)
                opened.append(_mark(browser))
            browser.set_script_timeout(120)
            frames = browser.execute_async_script(DRAG, FRAMES)
            version = browser.capabilities["browserVersion"]
        return {
            "nodes": nodes,
            "megabytes": round(page.stat().st_size / 2**20, 2),
            "open_ms": round(statistics.median(opened)),
            "open_worst_ms": round(max(opened)),
            "frame_ms": round(statistics.median(frames["between"]), 1),
            "frame_worst_ms": round(max(frames["between"]), 1),
            "draw_ms": round(statistics.median(frames["drawing"]), 1),
            "browser": f"Chromium {version}, headless, without GPU",
        }


def _mark(browser: Any) -> float:
    """Return the milliseconds from the start of the navigation to the first drawn map."""
    at: float = browser.execute_script("return performance.getEntriesByName('map-drawn')[0].startTime")
    return at


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description="How fast the report page opens and pans.")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1_000, 10_000, 50_000])
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    if missing():
        raise SystemExit(missing())
    rows = [measure(nodes) for nodes in asked.nodes]
    for row in rows:
        print(
            f"{row['nodes']:>7,} nodes, {row['megabytes']} MB: open {row['open_ms']} ms "
            f"(worst {row['open_worst_ms']}), frame {row['frame_ms']} ms (worst {row['frame_worst_ms']}), "
            f"of which drawing {row['draw_ms']} ms"
        )
    where = {"processor": machine()["processor"], "cores": os.cpu_count()}
    asked.out.write_text(json.dumps({"machine": where, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
