// Resources and templates: read, fill in variables, subscribe.

import { button, empty, fill, h, lead, plain, say, split } from "../dom.js";
import { makeList } from "../list.js";
import { showContents } from "../results.js";
import { copyMenu, makeRun, makeRuns, saveButton } from "../run.js";
import { completing } from "./prompts.js";

export function view(place, app, rest) {
  const list = makeList({ label: "Resources", choose: (one) => app.goto("resources", one.uri ?? one.uriTemplate) });
  const { detail, choose, leave } = split(place, list, "Resource");
  let all = [];
  let wanted = rest;
  const runs = new Map();

  function show(uri) {
    choose(uri);
    if (!uri) return void fill(detail, all.length ? empty("Resources", "Select a resource or a template.") : empty("No resources", "This server lists no resources. You can still read one by URI."), direct());
    // Resources that are not listed can be read too, for example from a link in a result.
    const one = all.find((item) => (item.uri ?? item.uriTemplate) === uri) ?? { uri, name: uri };
    list.select(one);
    if (!runs.has(uri)) runs.set(uri, makeRuns());
    fill(detail, button("← All resources", () => app.goto("resources"), { class: "back small" }), one.uriTemplate ? template(one, runs.get(uri)) : resource(one, runs.get(uri)), runs.get(uri).element);
  }

  const read = (uri, kept) => kept.add(makeRun(app, { tool: "read_resource", name: uri, args: { target: app.target.id, uri } },
    (result) => h("div", { class: "stack" }, (result.contents ?? []).slice(0, 100).map((one) => showContents(one))), { again: () => read(uri, kept) }));

  const actions = (uri, kept) => {
    const request = () => ({ target: app.target.id, method: "resources/read", name: uri(), arguments: {} });
    return h("div", { class: "row" }, button("Read", () => read(uri(), kept), { class: "primary" }), subscription(uri), app.has("saved") ? saveButton(app, request) : undefined, copyMenu(app, request));
  };

  const subscription = (uri) => app.target.capabilities?.resources?.subscribe ? button("Subscribe", async () => {
    try {
      await app.call("subscribe", { target: app.target.id, uri: uri() });
      say("Subscribed");
    } catch (why) {
      say(why.message, "bad");
    }
  }) : undefined;

  const resource = (one, kept) => [head(one), h("code", { class: "breakable" }, plain(one.uri, 500)), actions(() => one.uri, kept)];

  function template(one, kept) {
    const names = [...String(one.uriTemplate).matchAll(/\{[?&#./;+]?([^}]{1,200})\}/g)].flatMap((found) => found[1].split(",")).map((name) => name.replace(/[*]$|:\d+$/g, "")).slice(0, 50);
    const fields = names.map((name) => [name, completing(app, { type: "ref/resource", uri: one.uriTemplate }, name, () => Object.fromEntries(fields.map(([key, field]) => [key, field.input.value])))]);
    const uri = () => expand(one.uriTemplate, Object.fromEntries(fields.map(([name, field]) => [name, field.input.value])));
    const shown = h("code", { class: "breakable quiet" });
    const spell = () => { shown.textContent = plain(uri(), 500); };
    fields.forEach(([, field]) => field.input.addEventListener("input", spell));
    spell();
    return [head(one), h("code", { class: "breakable" }, plain(one.uriTemplate, 500)),
      h("div", { class: "card" }, fields.map(([, field]) => field.element), shown, actions(uri, kept))];
  }

  function direct() {
    const field = h("input", { type: "text", class: "wide mono", "aria-label": "Resource URI", placeholder: "scheme://…", autocomplete: "off" });
    return h("form", { class: "row", on: { submit: (event) => { event.preventDefault(); if (field.value) app.goto("resources", field.value); } } }, field, h("button", { type: "submit" }, "Open"));
  }

  async function load() {
    try {
      const [resources, templates] = await Promise.all(["resources", "templates"].map((kind) => app.items(kind)));
      all = [...resources.items, ...templates.items];
      list.set(all.map((one) => ({ title: one.title ?? one.name, text: one.uri ?? one.uriTemplate, badge: one.uriTemplate ? "template" : one.mimeType, value: one })));
      show(wanted[0]);
    } catch (why) {
      fill(detail, h("p", { role: "alert" }, plain(why.message, 1000)));
    }
  }

  load();
  return {
    refresh: () => { load(); say("Resources updated"); },
    go(next) { wanted = next; show(next[0]); detail.querySelector("h1")?.focus(); },
    leave,
  };
}

const head = (one) => h("div", { class: "stack" }, h("h1", { tabindex: "-1" }, plain(one.title ?? one.name, 200)), one.description ? lead(one.description) : undefined);

/** Expand the part of RFC 6570 that servers use: {a}, {+a}, {/a}, {?a,b}, {&a}, {#a}, {.a}. */
function expand(template, values) {
  return String(template).replace(/\{([?&#./;+]?)([^}]{1,200})\}/g, (_, operator, names) => {
    const encode = operator === "+" || operator === "#" ? encodeURI : encodeURIComponent;
    const given = names.split(",").map((raw) => raw.replace(/[*]$|:\d+$/g, "")).filter((name) => values[name]);
    if (!given.length) return "";
    if (operator === "?" || operator === "&" || operator === ";") return operator + given.map((name) => `${name}=${encode(values[name])}`).join(operator === ";" ? ";" : "&");
    const start = operator === "+" || operator === "" ? "" : operator;
    return start + given.map((name) => encode(values[name])).join(operator === "/" || operator === "." ? operator : ",");
  });
}
