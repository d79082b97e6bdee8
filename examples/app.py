"""A tool with a user interface (MCP Apps). Hosts that support apps show the page with the result, others the text.

The page calls the tool `roll_again`, which is hidden from models.
Try it: run `portico dev examples/app.py` and call `roll`.
"""

from __future__ import annotations

import random

from portico import AppPage, Server

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Dice</title>
<style>
  body { margin: 0; padding: 12px; font: 3rem system-ui; text-align: center }
  p { margin: 0 0 8px }
  button { font: 1rem system-ui }
</style>
<p id="dice">…</p>
<button id="again">Roll again</button>
<script>
  let next = 1;
  const waiting = new Map();
  const post = (message) => parent.postMessage({ jsonrpc: "2.0", ...message }, "*");
  const tell = (name, params) => post({ method: `ui/notifications/${name}`, params });
  const ask = (method, params) =>
    new Promise((done) => { waiting.set(next, done); post({ id: next++, method, params }); });

  const show = ({ structuredContent }) => {
    dice.textContent = (structuredContent?.dice ?? []).map((n) => "⚀⚁⚂⚃⚄⚅"[n - 1]).join(" ");
  };
  const dress = ({ theme }) => { if (theme) document.documentElement.style.colorScheme = theme; };

  addEventListener("message", ({ source, data }) => {
    if (source !== parent) return;
    if (data.method === "ui/notifications/tool-result") show(data.params);
    else if (data.method === "ui/notifications/host-context-changed") dress(data.params);
    else if (data.method === "ui/resource-teardown") post({ id: data.id, result: {} });
    else if (data.method === undefined) { waiting.get(data.id)?.(data.result ?? {}); waiting.delete(data.id); }
  });
  again.onclick = async () => show(await ask("tools/call", { name: "roll_again", arguments: { count: 2 } }));

  ask("ui/initialize", {
    protocolVersion: "2026-01-26", appInfo: { name: "dice", version: "1.0.0" }, appCapabilities: {},
  }).then(({ hostContext }) => {
    dress(hostContext ?? {});
    tell("initialized", {});
    new ResizeObserver(() => tell("size-changed", { height: document.body.offsetHeight })).observe(document.body);
  });
</script>
"""

server = Server("dice", version="1.0.0")


@server.tool(ui=AppPage(PAGE, uri="ui://dice/table", title="Dice", prefers_border=True))
def roll(count: int = 2) -> dict[str, list[int]]:
    """Roll some dice."""
    return {"dice": [random.randint(1, 6) for _ in range(count)]}


@server.tool(ui="ui://dice/table", visibility=["app"])
def roll_again(count: int = 2) -> dict[str, list[int]]:
    """Roll some dice, for the page."""
    return roll(count)


if __name__ == "__main__":
    server.run()
