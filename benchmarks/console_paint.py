"""How soon the console is there: first paint, and the list of tools in it, in Chromium on this machine.

    python benchmarks/console_paint.py [LOADS]

A server with 2,000 tools is started, and its page is loaded again and again, as by a browser that was there before.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import chromium  # noqa: E402

SERVER = ROOT / "tests" / "console" / "varied.py"
PAINTS = """async () => {
  await document.querySelector('[role=option]') || await new Promise(resolve => {
    const watching = new MutationObserver(() => {
      if (document.querySelector('[role=option]')) { watching.disconnect(); resolve(); }
    });
    watching.observe(document.body, {childList: true, subtree: true});
  });
  const listed = performance.now();
  const paints = performance.getEntriesByType('paint').map(one => [one.name, one.startTime]);
  return {...Object.fromEntries(paints), listed};
}"""


def main() -> None:
    loads = int(sys.argv[1]) if sys.argv[1:] else 15
    command = [sys.executable, "-m", "portico", "serve", str(SERVER), "--transport", "http", "--port", "0"]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert child.stderr is not None
        link = next(found[0] for line in child.stderr if (found := re.search(r"http://\S+/#token=\S+", line)))
        with chromium.running(chromium.executable()) as browser:
            measured = measure(browser, link, loads)
    finally:
        child.terminate()
        child.wait(30)
    print(f"| | median of {loads} | worst |\n|---|---|---|")
    for name, text in (
        ("first-paint", "first paint"),
        ("first-contentful-paint", "first text"),
        ("listed", "2,000 tools listed"),
    ):
        values = [one[name] for one in measured if name in one]
        print(f"| {text} | {statistics.median(values):.0f} ms | {max(values):.0f} ms |")


def measure(browser: Any, link: str, loads: int) -> list[dict[str, float]]:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.goto(link)
    page.locator("[role=option]").first.wait_for()
    measured = []
    for _ in range(loads):
        page.goto("about:blank")
        page.goto(link.split("#")[0])
        measured.append(page.evaluate(PAINTS))
    return measured


if __name__ == "__main__":
    main()
