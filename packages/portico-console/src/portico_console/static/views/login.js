// OAuth debugger: the login of a client step by step, with each document and its violations.

import { fill, h, plain } from "../dom.js";
import { makeTree } from "../tree.js";
import { within } from "../service.js";

const LEVELS = { __proto__: null, ok: "good", warning: "warn", error: "bad" };

export function view(place, app) {
  const given = app.target?.kind === "url" ? app.target.spec : "";
  const field = h("input", { type: "url", class: "wide", id: "chain-url", value: given, placeholder: "https://example.org/mcp", autocomplete: "off" });
  const found = h("div", { "aria-live": "polite" });
  const look = (event) => {
    event.preventDefault();
    fill(found, h("p", { class: "quiet" }, "Fetching…"));
    within(found, async () => {
      const chain = await app.call("oauth_chain", { url: field.value.trim() });
      fill(found, h("div", { class: "stack" }, h("p", {}, h("span", { class: `badge ${chain.ok ? "good" : "bad"}` }, chain.ok ? "Discovery succeeded" : "Discovery failed")), h("ol", { class: "steps" }, chain.steps.map(step))));
    });
  };
  fill(place, h("div", { class: "page" }, h("h1", {}, "OAuth debugger"), h("p", { class: "lead quiet" }, "Follows the discovery a client performs before login: the 401 challenge, protected resource metadata and authorization server metadata. Read-only."),
    h("form", { class: "card", on: { submit: look } }, h("label", { for: "chain-url" }, "Server URL"), field, h("div", {}, h("button", { type: "submit", class: "primary" }, "Run discovery"))), found));
  return { refresh() {}, go() {} };
}

const step = (one) => h("li", { class: one.ok ? "good" : "bad" }, h("div", { class: "card" },
  h("div", { class: "row apart" }, h("h2", {}, plain(one.title ?? one.name, 160)), one.status ? h("span", { class: "badge" }, String(one.status)) : undefined),
  one.request ? h("code", { class: "breakable" }, plain(`${one.request.method} ${one.request.url}`, 600)) : undefined,
  one.findings?.length ? h("ul", { class: "stack plainlist" }, one.findings.map((finding) => h("li", {}, h("span", { class: `badge ${LEVELS[finding.level] ?? ""}` }, plain(finding.level, 12)), " ", plain(finding.text, 800), finding.rule ? h("span", { class: "quiet" }, ` (${plain(finding.rule, 120)})`) : undefined))) : undefined,
  one.document ? makeTree(one.document, { label: "Document", open: 1 }) : one.text ? h("pre", {}, plain(one.text, 4000)) : undefined,
  one.headers?.length ? h("details", { class: "headers" }, h("summary", {}, `${one.headers.length} headers`), one.headers.map(([name, value]) => h("div", {}, plain(name, 80), ": ", plain(value, 600)))) : undefined));
