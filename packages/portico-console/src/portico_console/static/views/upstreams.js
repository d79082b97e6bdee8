// Upstreams: state, last error, and blocked definitions.

import { empty, facts, fill, h, number, plain, sheet, span, when } from "../dom.js";
import { makeTable } from "../results.js";
import { within } from "../service.js";

export function view(place, app) {
  const body = h("div", { class: "stack" });
  fill(place, sheet("Upstreams", undefined, body));
  const draw = (said) => {
    const open = new Set([...body.querySelectorAll("details[open]")].map((one) => one.dataset.key));
    fill(body, said.upstreams.length ? h("div", { class: "cards" }, said.upstreams.map((one) => card(one, open))) : empty("No upstreams", "No upstreams configured."),
      said.held?.length ? h("div", { class: "card" }, h("h2", {}, "Awaiting approval"), h("p", { class: "about" }, "Tool definitions that are new or changed since approval. Review and approve them with portico pins."), makeTable(said.held.map((one) => (typeof one === "object" ? one : { name: one })))) : undefined,
      said.clashes?.length ? h("div", { class: "card" }, h("h2", {}, "Name conflicts"), makeTable(said.clashes.map((one) => (typeof one === "object" ? one : { name: one })))) : undefined);
  };
  within(body, async () => draw(await app.call("upstreams")));
  const off = app.on("upstreams", draw);
  return { leave: off, refresh() {}, go() {} };
}

function card(one, open) {
  const colour = one.up ? "good" : one.state === "not tried" ? "" : one.retry_after ? "warn" : "bad";
  const known = [["Protocol version", one.revision], ["Components", ["tools", "resources", "prompts"].map((kind) => `${number(one[kind] ?? 0)} ${one[kind] === 1 ? kind.slice(0, -1) : kind}`).join(", ")], ["Calls", `${number(one.calls ?? 0)} (${number(one.errors ?? 0)} errors)`], ["In flight", number(one.in_flight ?? 0)], ["Connections", number(one.connections ?? 0)],
    ["Next retry", !one.up && one.retry_after ? `in ${span(one.retry_after * 1000)}` : undefined]];
  return h("article", { class: "card" }, h("div", { class: "row apart" }, h("h2", { class: "row name" }, h("span", { class: `dot ${colour}` }), plain(one.alias, 80)), h("span", { class: `badge ${colour}` }, plain(one.up ? one.state ?? "up" : one.state ?? "away", 30))),
    one.error ? h("p", { class: "problem" }, plain(one.error, 400)) : undefined,
    facts([...known, [one.up ? "Up since" : "Down since", one.since ? when(one.since) : undefined]]),
    one.stderr?.length ? h("details", { open: open.has(one.alias), data: { key: one.alias } }, h("summary", {}, "Recent stderr"), h("pre", { class: "loglines", tabindex: "0" }, one.stderr.slice(-100).map((line) => plain(line, 600)).join("\n"))) : undefined);
}
