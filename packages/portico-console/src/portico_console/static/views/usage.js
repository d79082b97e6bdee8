// Usage: calls, errors, latency and estimated tokens by tool, upstream, client or principal, from the audit log; by principal
// also remaining monthly budgets.

import { button, empty, fill, h, number, plain, save, segments, sheet, span } from "../dom.js";
import { makeTable } from "../results.js";
import { within } from "../service.js";

const DIMENSIONS = ["tool", "upstream", "client", "principal"];
const PERIODS = [["", "This month (UTC)"], ["1", "Last hour"], ["24", "Last 24 hours"], ["168", "Last 7 days"], ["720", "Last 30 days"]];

export function view(place, app) {
  const body = h("div", { class: "card" });
  const figures = h("div", { class: "figures card" });
  const period = h("select", { "aria-label": "Period" }, PERIODS.map(([hours, title]) => h("option", { value: hours }, title)));
  let by = "tool";
  const options = () => ({ by, ...(period.value ? { hours: Number(period.value) } : {}) });
  const time = (value) => (value === null || value === undefined ? "–" : span(value));
  const left = (budgets) => (budgets ?? []).map(({ name, unit, left, amount }) => h("div", { class: left ? "" : "badge bad" }, plain(`${name}: ${number(left)} of ${number(amount)} ${unit}`, 120)));
  const load = () => within(body, async () => {
    const { rows, total, left_out } = await app.call("usage", options());
    fill(figures, [[number(total.calls), "calls"], [number(total.errors), "errors"], [time(total.p50_ms), "p50"], [time(total.p95_ms), "p95"], [number(total.tokens_in), "estimated tokens in"], [number(total.tokens_out), "estimated tokens out"]].map(([value, text]) => h("div", {}, h("div", { class: "figure-big" }, value), h("div", { class: "quiet" }, text))));
    fill(body, rows.length ? table(rows) : empty("No calls", "The audit log has no calls in this period."), left_out ? h("p", { class: "quiet" }, `${number(left_out)} more rows in the CSV file`) : undefined);
  });
  const table = (rows) => makeTable(rows, { label: "Usage", columns: [["name", "Name", (value) => plain(value, 120)], ["calls", "Calls", number], ["errors", "Errors", (value) => (value ? h("span", { class: "badge bad" }, number(value)) : "0")], ["p50_ms", "p50", time, "figure"], ["p95_ms", "p95", time, "figure"], ["tokens_in", "Tokens in", number], ["tokens_out", "Tokens out", number], ...(rows.some((row) => row.budgets) ? [["budgets", "Left this month", left]] : [])] });
  const download = () => within(body, async () => {
    const { csv } = await app.call("usage", { ...options(), format: "csv" });
    save(`usage-by-${by}.csv`, csv, "text/csv");
    await load();
  });
  period.addEventListener("change", load);
  const dimensions = segments(DIMENSIONS.map((one) => `By ${one}`), (index) => { by = DIMENSIONS[index]; dimensions.press(index); load(); }, "Group by");
  fill(place, sheet("Usage", [dimensions.element, period, button("Download CSV", download)], figures, body));
  load();
  return { refresh: load, go() {} };
}
