// Access: view the server as another principal, and explain policy decisions.

import { button, fill, fresh, h, plain } from "../dom.js";
import { within } from "../service.js";

const COLOURS = { __proto__: null, allow: "good", deny: "bad", insufficient_scope: "warn", confirm: "warn" };

export function view(place, app) {
  const field = (label, hint = "", value = "") => {
    const id = fresh("access");
    const input = h("input", { type: "text", class: "wide", id, placeholder: hint, value, autocomplete: "off", spellcheck: "false" });
    return { input, element: h("div", { class: "field" }, h("label", { for: id }, label), input) };
  };
  const who = field("Principal", "anna@example.org", app.principal?.id ?? "");
  const scopes = field("Scopes (space-separated)", "tools:read", (app.principal?.scopes ?? []).join(" "));
  const groups = field("Groups (space-separated)", "engineers", (app.principal?.groups ?? []).join(" "));
  const kind = h("select", { "aria-label": "Kind" }, ["tool", "resource", "prompt"].map((one) => h("option", { value: one }, one)));
  const name = field("Name", "delete_task");
  const args = field("Arguments (JSON)", "{}");
  const answer = h("div", { "aria-live": "polite" });
  const list = (text) => text.split(/[\s,]+/).filter(Boolean);
  const principal = () => (who.input.value.trim() ? { id: who.input.value.trim(), scopes: scopes.input.value.trim() ? list(scopes.input.value) : null, groups: list(groups.input.value) } : null);
  const explain = (event) => {
    event.preventDefault();
    within(answer, async () => {
      const given = args.input.value.trim();
      const said = await app.call("explain", { principal: principal(), kind: kind.value, name: name.input.value.trim(), ...(given ? { arguments: JSON.parse(given) } : {}) });
      fill(answer, h("div", { class: "card" }, h("p", {}, h("span", { class: `badge ${COLOURS[said.outcome] ?? ""}` }, plain(said.outcome, 20)), " ", plain(said.says ?? "", 300)), h("ol", {}, (said.why ?? []).map((line) => h("li", {}, plain(line, 600))))));
    });
  };
  fill(place, h("div", { class: "page" }, h("h1", {}, "Access policy"),
    h("div", { class: "card" }, h("h2", {}, "Impersonate a principal"), who.element, scopes.element, groups.element, h("div", { class: "row" }, button("View as principal", () => {
      const chosen = principal();
      app.viewAs(chosen ?? undefined);
      location.hash = "#/self/tools";
    })), h("p", { class: "about" }, "Lists tools, resources and prompts, and makes calls, as this principal.")),
    h("form", { class: "card", on: { submit: explain } }, h("h2", {}, "Explain a decision"), h("div", { class: "row" }, kind), name.element, args.element, h("div", {}, h("button", { type: "submit", class: "primary" }, "Explain"))), answer));
  return { refresh() {}, go() {} };
}
