// Audit log: one record per call, and the verification of the hash chain.

import { button, empty, fill, h, later, number, plain, sheet, show, span } from "../dom.js";
import { makeTable } from "../results.js";
import { makeTree } from "../tree.js";
import { within } from "../service.js";

const OUTCOMES = ["ok", "error", "denied", "unknown", "invalid", "failed", "limited", "cancelled", "asked", "task", "refused"];
const BAD = new Set(["error", "denied", "failed", "refused", "invalid", "limited", "unknown"]);

export function view(place, app) {
  const body = h("div", { class: "card" });
  const verdict = h("div", { role: "status" });
  const find = h("input", { type: "search", placeholder: "Tool, principal, client…", "aria-label": "Filter audit events" });
  const outcome = h("select", { "aria-label": "Outcome" }, h("option", { value: "" }, "All outcomes"), OUTCOMES.map((one) => h("option", { value: one }, one)));
  let records = [];
  let next;
  const load = (more) => within(body, async () => {
    const said = await app.call("audit", { limit: 100, ...(more === true && next ? { before: next } : {}), ...(find.value.trim() ? { find: find.value.trim() } : {}), ...(outcome.value ? { outcome: outcome.value } : {}) });
    records = more === true ? [...records, ...said.records] : said.records;
    next = said.next;
    fill(body, records.length ? table() : empty("No audit events", "No events match the filter, or none have been recorded yet."), next ? button("Load more", () => load(true)) : undefined);
  });
  const moment = (at) => (typeof at === "number" ? new Date(at > 1e14 ? at / 1000 : at > 1e11 ? at : at * 1000).toISOString().slice(0, 19).replace("T", " ") : plain(at, 40));
  const table = () => makeTable(records, { choose: (record) => show("Audit event", makeTree(record, { label: "Audit event", open: 3 })), columns: [["number", "No."], ["time", "Time", moment, "date"], ["outcome", "Outcome", (value) => h("span", { class: `badge ${BAD.has(value) ? "bad" : value === "ok" ? "good" : ""}` }, plain(value ?? "", 20))], ["principal", "Principal", (value, row) => plain(value || row.client || "–", 60)], ["method", "Method", (value, row) => plain(value || row.kind, 40)], ["name", "Name", (value, row) => plain(row.shown || value || "", 80)], ["micros", "Duration", (value) => (value ? span(value / 1000) : "")], ["rule", "Rule", (value) => plain(value ?? "", 60)]] });
  const verify = () => {
    fill(verdict, h("p", { class: "quiet" }, "Verifying…"));
    within(verdict, async () => {
      const said = await app.call("verify_audit");
      fill(verdict, h("p", {}, h("span", { class: `badge ${said.ok ? "good" : "bad"}` }, said.ok ? "intact" : "not intact"), ` ${number(said.records)} events, ${number(said.checkpoints ?? 0)} checkpoints`), (said.findings ?? []).slice(0, 50).map((one) => h("p", { class: "problem" }, plain(one, 400))), (said.notes ?? []).slice(0, 50).map((one) => h("p", { class: "quiet" }, plain(one, 400))));
    });
  };
  const soon = later(load, 250);
  find.addEventListener("input", soon);
  outcome.addEventListener("change", () => load());
  fill(place, sheet("Audit", [find, outcome, button("Verify integrity", verify)], verdict, body));
  load();
  return { refresh: load, go() {} };
}
