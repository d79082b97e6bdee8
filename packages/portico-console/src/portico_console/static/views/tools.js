// Tools: a form from the schema, the call and its result.

import { button, clearErrors, empty, facts, fill, h, lead, number, ownVersion, plain, say, show, split } from "../dom.js";
import { makeForm } from "../form.js";
import { makeList } from "../list.js";
import { showResult } from "../results.js";
import { copyMenu, makeRun, makeRuns, saveButton } from "../run.js";
import { makeTree } from "../tree.js";

const HINTS = [["readOnlyHint", true, "read-only", "good"], ["destructiveHint", true, "destructive", "bad"], ["idempotentHint", true, "idempotent", ""], ["openWorldHint", true, "open world", "warn"]];

/** The app page of a tool; hosts must support the older member too. */
function pageOf(tool) {
  const uri = tool._meta?.ui?.resourceUri ?? tool._meta?.["ui/resourceUri"];
  return typeof uri === "string" && uri.startsWith("ui://") ? uri : undefined;
}

/** Whether a tool is visible to models or to apps; by default to both. */
function isFor(tool, who) {
  const seen = tool._meta?.ui?.visibility;
  return !Array.isArray(seen) || seen.includes(who);
}

/** Names of the tools that an app may call: tools for apps, and behind a gateway only those of its own server. */
function appTools(tools, owners, name) {
  const own = tools.filter((one) => isFor(one, "app") && owners[one.name]?.[0] === owners[name]?.[0]);
  return new Map(own.flatMap((one) => [[owners[one.name]?.[1] ?? one.name, one.name], [one.name, one.name]]));
}

export function view(place, app, rest) {
  const list = makeList({ label: "Tools", choose: (tool) => app.goto("tools", tool.name) });
  const { detail, choose, leave } = split(place, list, "Tool");
  // Arguments and results stay while another tool is shown.
  const opened = new Map();
  let current;
  let turn = 0;
  let tools;
  let weights = {};
  let owners = {};
  let wanted = rest;

  /** Existing results stay in the document: an app in them would restart. */
  async function show(name, given) {
    const mine = ++turn;
    const tool = tools?.find((one) => one.name === name);
    choose(name);
    if (tool) list.select(tool);
    const next = tool ? makeOnce(tool, given) : undefined;
    if (next && next === current) return;
    await current?.runs.leave();
    if (mine !== turn) return;
    current = next;
    fill(detail, next ? [button("← All tools", () => app.goto("tools"), { class: "back small" }), next.elements] : name ? empty("Tool not found", plain(name)) : instructions(app, tools?.length === 0));
  }

  function makeOnce(tool, given) {
    const text = JSON.stringify(tool);
    const known = opened.get(tool.name);
    if (!given && known?.text === text) return known;
    if (opened.size > 30) opened.clear();
    const made = { text, ...makeTool(app, tool, weights[tool.name], given, known?.runs ?? makeRuns(), () => appTools(tools, owners, tool.name)) };
    opened.set(tool.name, made);
    return made;
  }

  async function load() {
    try {
      const answer = await app.items("tools");
      tools = answer.items;
      weights = answer.weights ?? {};
      owners = answer.owners ?? {};
      list.set(tools.map((tool) => ({ title: tool.name, text: tool.description ?? tool.title, badge: isFor(tool, "model") ? undefined : "app only", value: tool })));
      await show(wanted[0], wanted[1] === "saved" ? app.given : undefined);
      if (wanted[0] && document.activeElement === document.body) detail.querySelector("h1")?.focus();
    } catch (why) {
      fill(detail, h("p", { role: "alert" }, plain(why.message, 1000)));
    }
  }

  load();
  return {
    refresh: () => { load(); say("Tool list updated"); },
    async go(next) {
      wanted = next;
      await show(next[0], next[1] === "saved" ? app.given : undefined);
      if (next[0]) detail.querySelector("h1")?.focus();
    },
    async leave() {
      await current?.runs.leave();
      leave();
    },
  };
}

const STARTED = "portico-console-started";

/** First steps, shown until closed. */
function firstSteps(app) {
  if (localStorage.getItem(STARTED)) return undefined;
  const card = h("section", { class: "card", "aria-label": "First steps" },
    h("div", { class: "row apart" }, h("h2", {}, "First steps"), button("Close", () => { localStorage.setItem(STARTED, "yes"); card.remove(); }, { class: "small" })),
    h("ol", {},
      h("li", {}, "Select a tool on the left, fill in its form and press Run."),
      app.has("saved") ? h("li", {}, "Press Save to keep a call under Saved calls and repeat it later.") : undefined,
      app.has("wire") ? h("li", {}, "Open Traffic to read the messages between client and server.") : undefined,
      h("li", {}, "Press Ctrl-K to search tools and views, / to filter a list.")));
  return card;
}

function instructions(app, none) {
  const { server, instructions: text, protocol_version: revision } = app.target;
  return [h("h1", {}, plain(server?.title ?? server?.name ?? app.target.title, 120)),
    lead(text ?? (none ? "" : "Select a tool. Press / to filter, Ctrl-K for the command palette."), 2000),
    facts([["Version", ownVersion(server)], ["Protocol version", revision], ["Target", app.target.spec]]), none ? empty("No tools", "This server has no tools.") : firstSteps(app)];
}

function makeTool(app, tool, weight, given, runs, tools) {
  const form = makeForm(tool.inputSchema ?? {}, { value: given });
  // Since 2026-07-28 the list does not say which tools support tasks: the server decides for each call.
  const listed = tool.execution?.taskSupport;
  const able = listed ? listed === "optional" : app.target.capabilities?.extensions?.["io.modelcontextprotocol/tasks"];
  const asTask = able ? h("input", { type: "checkbox" }) : undefined;
  const anyway = button("Send anyway", () => start(form.read()), { hidden: true });
  const request = () => {
    const args = form.read();
    return args === undefined ? undefined : { target: app.target.id, method: "tools/call", name: tool.name, arguments: args };
  };

  function start(args) {
    anyway.hidden = true;
    const where = { target: app.target.id, ...(app.principal && app.target.id === "self" ? { as_principal: app.principal } : {}) };
    let beside;
    const run = makeRun(app, { tool: "call_tool", name: tool.name, args: { ...where, name: tool.name, arguments: args, ...(asTask?.checked ? { as_task: true } : {}) } },
      (result) => showResult(result, { open: (uri) => app.goto("resources", uri) }),
      { again: () => start(args), reuse: () => { form.set(args); form.focus(); }, over: (said) => beside?.then((one) => one.over(said)) });
    const uri = pageOf(tool);
    if (uri) {
      beside = import("../apps.js").then(({ makeApp }) => makeApp(app, { where, uri, tool, args, tools }))
        .catch(() => ({ element: h("p", { role: "alert" }, "Failed to load the app."), over() {}, end() {} }));
      beside.then((one) => run.element.append(one.element));
      run.leave = () => beside.then((one) => one.end());
    }
    runs.add(run);
  }

  function submit() {
    const wrong = form.problems();
    if (form.read() === undefined) return;
    anyway.hidden = !wrong.length;
    // A message about an earlier attempt would contradict this one.
    clearErrors();
    if (wrong.length) say(`${wrong.length} schema ${wrong.length === 1 ? "violation" : "violations"}`, "bad");
    else start(form.read());
  }

  const run = button(["Run ", h("kbd", {}, "Ctrl ↵")], submit, { class: "primary" });
  const box = h("div", { class: "card" }, form.element, h("div", { class: "row actions" }, run, anyway, asTask ? h("label", { class: "row" }, asTask, "as a task") : undefined, app.has("saved") ? saveButton(app, request) : undefined, copyMenu(app, request)));
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey || (event.target.matches("input:not([type=checkbox])")))) {
      event.preventDefault();
      submit();
    }
  });
  const hints = HINTS.filter(([key, value]) => tool.annotations?.[key] === value).map(([, , text, colour]) => h("span", { class: `badge ${colour}` }, text));
  return {
    runs,
    elements: [
      h("div", { class: "stack" }, h("h1", { tabindex: "-1" }, plain(tool.title ?? tool.name, 200)),
        h("div", { class: "row" }, tool.title && tool.title !== tool.name ? h("code", { class: "breakable" }, plain(tool.name, 200)) : undefined, hints, weight ? h("span", { class: "badge", title: "Estimated tokens of the definition" }, `${number(weight)} tokens`) : undefined,
          button("Definition", () => contract(tool), { class: "plain small" }))),
      tool.description ? lead(tool.description) : undefined, box, runs.element],
  };
}

function contract(tool) {
  show("Definition", h("div", { class: "stack" }, makeTree(tool, { label: plain(tool.name, 80), open: 2 })));
}
