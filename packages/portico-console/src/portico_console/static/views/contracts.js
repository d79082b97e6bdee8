// Contracts of the tools: token cost, lint findings, changes since a lock file.

import { button, empty, fill, h, number, plain } from "../dom.js";
import { makeTable } from "../results.js";
import { offers, use, within } from "../service.js";

const LEVELS = { __proto__: null, breaking: "bad", major: "bad", minor: "warn", patch: "good", none: "good", error: "bad", warning: "warn" };

export function view(place, app) {
  const weights = h("div", { class: "card" });
  const lint = h("div", { class: "stack" });
  const diff = h("div", { class: "stack" });
  const file = h("input", { type: "file", id: "lock-file" });
  file.accept = ".json,.lock,.toml,.md,application/json";
  const compare = () => within(diff, async () => {
    const text = await file.files[0]?.text();
    if (text === undefined) return;
    // Allow choosing the same file again after a change.
    file.value = "";
    fill(diff, h("p", { class: "quiet" }, "Comparing…"));
    fill(diff, showDiff(await use(app, "contracts", "diff", { old: text })));
  });
  file.addEventListener("change", compare);
  fill(place, h("div", { class: "page" }, h("h1", {}, "Contracts"), weights,
    offers(app, "contracts", "diff") ? h("div", { class: "card" }, h("h2", {}, "Compare with a lock file"), h("p", { class: "about" }, "Select a file written by portico contracts lock, or a saved tools/list result."), h("label", { for: "lock-file" }, "Lock file"), file, diff) : undefined,
    offers(app, "contracts", "lint") ? h("div", { class: "card" }, h("div", { class: "row apart" }, h("h2", {}, "Findings"), button("Lint all tools", () => lintAll(app, lint), { class: "small" })), lint) : undefined));
  const load = () => within(weights, async () => fill(weights, await weigh(app)));
  load();
  return { refresh: load, go() {} };
}

async function weigh(app) {
  const { items, weight, weights = {} } = await app.items("tools");
  const rows = items.map((tool) => ({ name: tool.name, tokens: weights[tool.name] ?? 0 })).sort((a, b) => b.tokens - a.tokens);
  const top = rows[0]?.tokens || 1;
  const bar = (tokens) => {
    const line = h("div", { class: "hbar" });
    line.style.width = `${(tokens / top) * 100}%`;
    return h("div", { class: "share" }, line);
  };
  return [h("div", { class: "figures" }, figure(number(weight ?? 0), "tokens for all tool definitions"), figure(number(items.length), "tools"), figure(number(Math.round((weight ?? 0) / (items.length || 1))), "tokens per tool (average)")),
    app.about.tool_search && app.target.id === "self" ? h("p", { class: "quiet" }, "Tool search is enabled: clients list only some of these tools, and find the others with find_tools.") : undefined,
    !rows.length ? empty("No tools", "This server has no tools.") : makeTable(rows, { caption: "Sorted by token count", columns: [["name", "Tool"], ["tokens", "Tokens", number], ["share", "Share", (_, row) => bar(row.tokens)]] })];
}

const figure = (value, text) => h("div", {}, h("div", { class: "figure-big" }, value), h("div", { class: "quiet" }, text));

function showDiff(said) {
  return [h("p", {}, h("span", { class: `badge ${LEVELS[said.level] ?? ""}` }, plain(said.level, 20)), ` ${said.changes.length} ${said.changes.length === 1 ? "change" : "changes"}`),
    said.changes.length ? makeTable(said.changes) : undefined,
    said.migration ? h("details", {}, h("summary", {}, "Migration guide"), h("pre", {}, plain(said.migration, 20000))) : undefined];
}

async function lintAll(app, place) {
  await within(place, async () => {
    const { items } = await app.items("tools");
    // The tool that reads shortened results belongs to no contract.
    const queue = items.filter((tool) => !tool._meta?.["portico/results"]).map((tool) => tool.name).slice(0, 500);
    const findings = [];
    let done = 0;
    const total = queue.length;
    const bar = h("progress", { max: total, "aria-label": "Linting" });
    fill(place, bar);
    const work = async () => {
      for (let name = queue.shift(); name !== undefined; name = queue.shift()) {
        const said = await use(app, "contracts", "lint", { tool: name }).catch((why) => ({ findings: [{ level: "error", message: why.message }] }));
        findings.push(...(said.findings ?? []).map((one) => ({ tool: name, ...one })));
        bar.value = ++done;
      }
    };
    await Promise.all([work(), work(), work()]);
    // Recommendations are optional: tools with nothing else are fine.
    const faults = findings.filter((one) => one.severity !== "recommendation");
    fill(place,
      faults.length ? null : h("p", {}, h("span", { class: "badge good" }, "no findings"), ` ${number(total)} tools checked`),
      findings.length ? makeTable(findings) : null);
  });
}
