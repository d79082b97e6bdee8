// Live activity: calls, timings and errors.

import { fill, h, number, plain, span } from "../dom.js";
import { makePlot } from "../plot.js";
import { makeTable } from "../results.js";
import { within } from "../service.js";

const MOST_POINTS = 300;
const ms = (seconds) => span(seconds * 1000);

export function view(place, app) {
  const figures = h("div", { class: "figures card" });
  const calls = makePlot({ title: "Requests per second", series: [{ name: "calls", key: "rate", colour: "--accent" }, { name: "errors", key: "errors", colour: "--bad" }], format: (value) => (value >= 100 ? number(Math.round(value)) : String(Math.round(value * 10) / 10)) });
  const times = makePlot({ title: "Latency", series: [{ name: "p50", key: "p50", colour: "--good" }, { name: "p95", key: "p95", colour: "--warn" }, { name: "p99", key: "p99", colour: "--bad" }], format: ms });
  const tools = h("div", { class: "card" });
  let points = [];
  fill(place, h("div", { class: "page" }, h("h1", {}, "Metrics"), figures, h("div", { class: "cards wide-cards" }, calls.element, times.element), tools));

  function take(metrics) {
    points.push({ at: metrics.at, rate: metrics.rate, errors: metrics.error_rate, p50: metrics.p50, p95: metrics.p95, p99: metrics.p99 });
    if (points.length > MOST_POINTS) points = points.slice(-MOST_POINTS);
    draw(metrics);
  }

  function draw(metrics) {
    calls.set(points);
    times.set(points);
    fill(figures, [[number(metrics.calls), "calls since start"], [number(metrics.errors), "errors"], [number(metrics.in_flight), "in flight"], [metrics.p50 ? ms(metrics.p50) : "–", "p50 now"], [metrics.p99 ? ms(metrics.p99) : "–", "p99 now"]].map(([value, text]) => h("div", {}, h("div", { class: "figure-big" }, value), h("div", { class: "quiet" }, text))));
    const rows = [...(metrics.tools ?? [])].sort((a, b) => b.errors - a.errors || b.calls - a.calls);
    const time = (value) => (value === null || value === undefined ? "–" : ms(value));
    // A table that has the focus is not updated until it loses it.
    if (tools.contains(document.activeElement)) return;
    fill(tools, h("h2", {}, "By tool and method"), rows.length ? makeTable(rows, { caption: "Sorted by errors", columns: [["name", "Name", (value, row) => plain(value || row.method, 120)], ["calls", "Calls", number], ["errors", "Errors", (value) => (value ? h("span", { class: "badge bad" }, number(value)) : "0")], ["rate", "Per second", (value) => (value ? value.toFixed(1) : "0")], ["p50", "p50", time, "figure"], ["p95", "p95", time, "figure"], ["p99", "p99", time, "figure"]] }) : h("p", { class: "quiet" }, "No calls yet."));
  }

  within(figures, async () => {
    const metrics = await app.call("metrics");
    points = (metrics.history ?? []).map((one) => ({ ...one }));
    draw(metrics);
  });
  const off = app.on("metrics", take);
  return { leave: off, refresh() {}, go() {} };
}
