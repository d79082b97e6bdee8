"""With 2,000 tools and a result of 5 MB the page responds to input within 100 ms.

How long the browser takes is measured inside it, from the input event to the next frame, against a machine that is busy:
the same work is done several times, and the best counts.
"""

from __future__ import annotations

from typing import Any

from playwright.sync_api import expect

LIMIT = 100.0  # milliseconds
TRIES = 5


def best(page: Any, *acts: str) -> float:
    """The best time to the next frame after one of these, in milliseconds."""
    measured = []
    for turn in range(TRIES):
        page.wait_for_function(
            "() => new Promise(resolve => requestIdleCallback(() => resolve(true), {timeout: 2000}))"
        )
        measured.append(page.evaluate(MEASURE, acts[turn % len(acts)]))
    return min(measured)


MEASURE = """async name => {
  const list = document.querySelector('[role=listbox]');
  const acts = {
    scroll: () => { list.scrollTop = (list.scrollTop + 20000) % 90000; },
    filter: () => { const field = document.querySelector('input[type=search]'); field.value = field.value ? '' : 'many_19'; field.dispatchEvent(new Event('input')); },
    move: () => { list.focus(); list.dispatchEvent(new KeyboardEvent('keydown', {key: 'PageDown', bubbles: true})); },
    open: () => { const tree = document.querySelector('[role=tree]'); const one = tree.querySelector('[aria-expanded=false] > .line'); one.click(); },
    more: () => { document.querySelector('[role=tree] .more').click(); },
    way: () => { const one = document.querySelector('.result .segments [aria-pressed=false]'); one.click(); },
  };
  const began = performance.now();
  acts[name]();
  await new Promise(resolve => requestAnimationFrame(() => setTimeout(resolve)));
  return performance.now() - began;
}"""


def test_two_thousand_tools_are_scrolled_filtered_and_walked_through(tried: Any) -> None:
    page = tried.page
    tried.go("tools")
    options = page.get_by_role("listbox", name="Tools").get_by_role("option")
    expect(options.first).to_be_visible()
    assert options.count() < 60  # the rest is not drawn
    assert options.first.get_attribute("aria-setsize") == "2012"
    for act in ("scroll", "filter", "move"):
        assert best(page, act) < LIMIT, act


def test_five_megabyte_result_opens_within_the_time_limit(tried: Any) -> None:
    page = tried.page
    tried.go("tools", "large")
    page.get_by_role("button", name="Run Ctrl ↵").click()
    result = page.get_by_role("region", name="Run").first
    expect(result.get_by_text("done")).to_be_visible(timeout=30_000)
    expect(result.get_by_role("table").get_by_role("row")).to_have_count(101)
    result.get_by_role("button", name="Tree").click()
    result.get_by_role("treeitem", name="rows:").locator(".mark").first.click()
    for act in ("open", "more", "way"):
        assert best(page, act) < LIMIT, act
