// Prompts: arguments with completion, and the resulting messages.

import { button, empty, fill, fresh, h, later, lead, plain, say, split } from "../dom.js";
import { makeList } from "../list.js";
import { showBlock } from "../results.js";
import { copyMenu, makeRun, makeRuns, saveButton } from "../run.js";

export function view(place, app, rest) {
  const list = makeList({ label: "Prompts", choose: (prompt) => app.goto("prompts", prompt.name) });
  const { detail, choose, leave } = split(place, list, "Prompt");
  let prompts = [];
  let wanted = rest;
  const opened = new Map();

  function show(name) {
    choose(name);
    const prompt = prompts.find((one) => one.name === name);
    if (!prompt) return void fill(detail, empty("Prompts", prompts.length ? "Select a prompt." : "This server has no prompts."));
    list.select(prompt);
    if (!opened.has(name)) opened.set(name, makePrompt(app, prompt, wanted[1] === "saved" ? app.given : undefined));
    fill(detail, button("← All prompts", () => app.goto("prompts"), { class: "back small" }), opened.get(name));
  }

  async function load() {
    try {
      prompts = (await app.items("prompts")).items;
      opened.clear();
      list.set(prompts.map((prompt) => ({ title: prompt.name, text: prompt.description ?? prompt.title, value: prompt })));
      show(wanted[0]);
    } catch (why) {
      fill(detail, h("p", { role: "alert" }, plain(why.message, 1000)));
    }
  }

  load();
  return {
    refresh: load,
    go(next) { wanted = next; show(next[0]); detail.querySelector("h1")?.focus(); },
    leave,
  };
}

function makePrompt(app, prompt, given = {}) {
  const runs = makeRuns();
  const known = (prompt.arguments ?? []).slice(0, 100);
  const fields = known.map((argument) => [argument, completing(app, { type: "ref/prompt", name: prompt.name }, argument.name, () => read(), argument, given[argument.name])]);
  const read = () => Object.fromEntries(fields.filter(([, field]) => field.input.value !== "").map(([argument, field]) => [argument.name, field.input.value]));
  const request = () => ({ target: app.target.id, method: "prompts/get", name: prompt.name, arguments: read() });
  const start = (args) => runs.add(makeRun(app, { tool: "get_prompt", name: prompt.name, args: { target: app.target.id, name: prompt.name, arguments: args } }, showMessages, { again: () => start(args) }));
  const submit = (event) => {
    event.preventDefault();
    const missing = fields.find(([argument, field]) => argument.required && field.input.value === "");
    if (!missing) return start(read());
    missing[1].input.setAttribute("aria-invalid", "true");
    missing[1].input.focus();
    say(`${missing[0].name} is required`, "bad");
    return undefined;
  };
  return [h("h1", { tabindex: "-1" }, plain(prompt.title ?? prompt.name, 200)), prompt.description ? lead(prompt.description) : undefined,
    h("form", { class: "card", on: { submit } }, fields.length ? fields.map(([, field]) => field.element) : h("p", { class: "about" }, "No arguments."),
      h("div", { class: "row" }, h("button", { type: "submit", class: "primary" }, "Get prompt"), app.has("saved") ? saveButton(app, request) : undefined, copyMenu(app, request))), runs.element];
}

const showMessages = (result) => h("div", { class: "stack" }, result.description ? h("p", { class: "about" }, plain(result.description, 2000)) : undefined,
  (result.messages ?? []).slice(0, 200).map((message) => h("div", { class: "stack" }, h("div", {}, h("span", { class: "badge accent" }, plain(message.role, 20))), showBlock(message.content))));

/** A text field whose values the server completes. */
export function completing(app, ref, name, context, about = {}, value = "") {
  const id = fresh("field");
  const values = h("datalist", { id: `${id}-values` });
  const input = h("input", { type: "text", class: "wide", id, list: `${id}-values`, value: value ?? "", autocomplete: "off", spellcheck: "false", "aria-required": about.required ? "true" : undefined, placeholder: about.required ? "required" : "" });
  const seek = later(async () => {
    try {
      const said = await app.call("complete", { target: app.target.id, ref, argument: name, value: input.value, context: context() });
      const found = said.result?.completion?.values ?? [];
      fill(values, found.slice(0, 100).map((one) => h("option", { value: String(one) })));
    } catch {
      // Completion is optional; ignore its failures.
    }
  }, 150);
  if (app.target.capabilities?.completions !== undefined) {
    input.addEventListener("input", seek);
    input.addEventListener("focus", seek, { once: true });
  }
  return { input, element: h("div", { class: "field" }, h("label", { for: id }, plain(about.title ?? name, 120)), input, values, about.description ? h("p", { class: "about" }, plain(about.description, 1000)) : undefined) };
}
