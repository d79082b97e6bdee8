// The frame of the views: server and view from the URL, the palette, and global state.

import { ask, button, fill, h, ownVersion, plain, say, show } from "./dom.js";
import * as live from "./live.js";
import { call, signOut } from "./mcp.js";
import { openPalette } from "./palette.js";
import { watchQuestions } from "./questions.js";
import { VIEWS } from "./views.js";

const side = document.getElementById("side");
const main = document.getElementById("main");
const place = h("div", { class: "place" });
const asked = h("div", { id: "asked" });
const banner = h("div", { id: "banner", role: "alert" });

export const app = {
  about: { parts: [] }, targets: [], target: undefined, view: undefined, principal: undefined, kept: new Map(),
  has: (part) => app.about.parts.includes(part),
  call, on: live.on,
  goto(view, ...rest) {
    const next = address(view, ...rest);
    if (location.hash === next) route();
    else location.hash = next;
  },
  address: (view, ...rest) => address(view, ...rest),
  /** The current target's components of a kind, requested once per change of the list. */
  items(kind) {
    const target = app.target;
    const key = JSON.stringify([target.id, kind, target.versions?.[kind], app.principal]);
    if (!app.kept.has(key)) {
      if (app.kept.size > 24) app.kept.clear();
      const asking = call("list_items", { target: target.id, kind, ...(app.principal && target.id === "self" ? { as_principal: app.principal } : {}) });
      asking.catch(() => app.kept.delete(key));
      app.kept.set(key, asking);
    }
    return app.kept.get(key);
  },
  viewAs(principal) {
    app.principal = principal;
    app.kept.clear();
    drawBanner();
    refresh();
  },
};

const address = (view, ...rest) => `#/${[app.target?.id ?? "self", view, ...rest].map(encodeURIComponent).join("/")}`;

let mounted;
let leaving;
let turn = 0;
let shownAt = "";
let door;
let trouble;
let dev;

export async function startShell(about, signInAgain) {
  door = signInAgain;
  app.about = about;
  app.targets = (await call("list_targets")).targets;
  app.target = app.targets[0];
  // The services of a target are known once its tools are listed.
  if (app.target?.state === "open" && app.target.capabilities?.tools) {
    await app.items("tools").catch(() => {});
    app.targets = (await call("list_targets")).targets;
  }
  fill(main, banner, asked, place);
  document.title = `${plain(about.name, 60)} · Portico`;
  window.addEventListener("hashchange", route);
  document.addEventListener("keydown", keys);
  live.onState(connected);
  live.on("targets", ({ targets }) => takeTargets(targets));
  if (app.has("dev")) live.on("dev", (state) => { dev = state; drawBanner(); });
  watchQuestions(app, asked);
  route();
}

function connected(yes, why) {
  if (!yes && why?.status === 401) {
    live.stop();
    return void door(why);
  }
  const now = yes ? undefined : "Connection to the server lost. Reconnecting…";
  if (now === trouble) return;
  const wasAway = trouble !== undefined;
  trouble = now;
  drawBanner();
  if (yes && wasAway) call("list_targets").then(({ targets }) => takeTargets(targets)).catch(() => {});
}

function drawBanner() {
  const parts = [];
  if (trouble) parts.push(h("div", { class: "banner" }, trouble));
  if (dev?.state === "broken") parts.push(h("div", { class: "banner" }, h("strong", {}, `Failed to load ${plain(dev.file, 200)}`), dev.line ? `, line ${dev.line}` : "", ". The last working version is still being served.", h("pre", { tabindex: "0" }, plain(dev.error, 4000))));
  if (app.principal) parts.push(h("div", { class: "banner row apart" }, h("span", {}, "Viewing as ", h("strong", {}, plain(app.principal.id, 80))), button("Stop impersonating", () => app.viewAs(undefined), { class: "small" })));
  fill(banner, parts);
}

function takeTargets(targets) {
  const before = app.target;
  app.targets = targets;
  app.target = targets.find((one) => one.id === before?.id) ?? targets[0];
  drawSide();
  if (!before || app.target?.id !== before.id) return void route();
  const changed = JSON.stringify([before.versions, before.state, before.updated, before.protocol_version]) !== JSON.stringify([app.target.versions, app.target.state, app.target.updated, app.target.protocol_version]);
  const wanted = location.hash.split("/")[2];
  if (wanted && wanted !== app.view?.id && VIEWS.some((view) => view.id === wanted && view.shown(app))) route();
  else if (changed) refresh();
}

/** Update the view; one that cannot be updated is created again. */
function refresh() {
  if (mounted?.refresh) mounted.refresh();
  else {
    shownAt = "";
    route();
  }
}

async function route() {
  const [id, name, ...rest] = location.hash.replace(/^#\/?/, "").split("/").map(readPart);
  const target = app.targets.find((one) => one.id === id) ?? app.target ?? app.targets[0];
  app.target = target;
  const views = VIEWS.filter((view) => view.shown(app));
  const view = views.find((one) => one.id === name) ?? views[0];
  const at = `${target?.id}/${view?.id}`;
  app.view = view;
  side.classList.remove("open");
  drawSide();
  if (at === shownAt && mounted?.go) return void mounted.go(rest);
  const mine = ++turn;
  shownAt = at;
  if (mounted) leaving = mounted.leave?.();
  mounted = undefined;
  await leaving;
  if (mine !== turn) return;
  fill(place);
  place.scrollTop = 0;
  if (!target) return void fill(place, h("div", { class: "page" }, h("h1", {}, "No server connected"), opener()));
  if (target.state === "failed" && !view.apart) return void fill(place, failed(target));
  const found = await import(`./views/${view.id}.js`).catch(() => undefined);
  if (mine !== turn) return;
  if (found) mounted = found.view(place, app, rest) ?? {};
  else fill(place, h("div", { class: "page" }, h("p", { role: "alert" }, "This view failed to load. Check that the server is running."), h("div", {}, button("Retry", () => location.reload()))));
}

const readPart = (part) => {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
};

const failed = (target) => h("div", { class: "page" }, h("h1", {}, plain(target.title, 120)), h("p", { role: "alert" }, plain(target.error ?? "Server unreachable.", 2000)),
  app.has("open") ? h("div", {}, button("Retry", () => call("set_revision", { target: target.id, revision: target.wanted }).catch((why) => say(why.message, "bad")))) : undefined);

// --- sidebar ----------------------------------------------------------------------------------------------------------

function drawSide() {
  const focused = document.activeElement?.closest?.("#side") ? document.activeElement.getAttribute("href") ?? document.activeElement.dataset.key : undefined;
  const groups = Map.groupBy(VIEWS.filter((view) => view.shown(app)), (view) => view.group);
  fill(side,
    h("div", { class: "brand" }, icon(), "Portico", button("Menu", () => side.classList.toggle("open"), { class: "menu small", "aria-expanded": String(side.classList.contains("open")) })),
    targetButton(),
    button([h("span", {}, "Search"), h("kbd", {}, navigator.platform.startsWith("Mac") ? "⌘K" : "Ctrl K")], palette, { class: "seek", "aria-label": "Search or run a command", data: { key: "seek" } }),
    h("nav", { "aria-label": "Views" }, [...groups].map(([group, views]) => h("section", {}, h("h2", {}, group), h("ul", {}, views.map(entry))))),
    h("div", { class: "foot" }, button(schemeText(), nextScheme, { class: "plain small", data: { key: "scheme" }, title: "Toggle theme" }), h("span", { class: "quiet", title: "Version of Portico" }, plain(app.about.portico ?? "", 20))));
  if (focused) [...side.querySelectorAll("a, button")].find((one) => (one.getAttribute("href") ?? one.dataset.key) === focused)?.focus();
}

const icon = () => {
  const picture = h("img", { alt: "", width: 22, height: 22 });
  picture.src = "/console/icon.svg";
  return picture;
};

function entry(view) {
  const element = h("a", { "aria-current": view === app.view ? "page" : undefined }, view.title);
  element.href = address(view.id);
  return h("li", {}, element);
}

function targetButton() {
  const target = app.target;
  if (!target) return button("Connect to a server", chooseTarget, { class: "target" });
  const colour = { open: "good", opening: "warn", failed: "bad" }[target.state] ?? "";
  const server = target.server;
  return button([h("span", { class: "name" }, h("span", { class: `dot ${colour}` }), plain(server?.title ?? server?.name ?? target.title, 60)),
    h("span", { class: "quiet" }, plain([ownVersion(server), target.protocol_version].filter(Boolean).join(" · ") || target.state, 60))], chooseTarget,
  { class: "target", data: { key: "target" }, "aria-label": `Server: ${plain(server?.name ?? target.title, 60)}. Change server or protocol version` });
}

function chooseTarget() {
  const rows = app.targets.map((target) => h("div", { class: "row apart" },
    button([h("span", { class: "name" }, plain(target.server?.name ?? target.title, 80)), " ", h("span", { class: "quiet" }, plain(target.spec ?? target.kind, 80))], () => { dialog.close(); location.hash = `#/${encodeURIComponent(target.id)}/${app.view?.id ?? "tools"}`; }, { class: "plain" }),
    h("span", { class: "row" }, revisions(target), app.targets.length > 1 && app.has("open") && target.id !== "self" ? button("Disconnect", async () => { dialog.close(); takeTargets((await call("close_target", { target: target.id })).targets); }, { class: "small" }) : undefined)));
  const dialog = show("Servers", ...rows, app.has("open") ? opener(() => dialog.close()) : undefined,
    h("div", { class: "row end" }, button("Sign out", async () => { if (await ask("Sign out", "You need a new sign-in link afterwards.", "Sign out")) { await signOut(); location.reload(); } }, { class: "small" })));
}

function revisions(target) {
  const select = h("select", { "aria-label": `Protocol version for ${plain(target.title, 60)}` }, h("option", { value: "" }, "auto (latest common version)"),
    (app.about.revisions ?? []).map((one) => h("option", { value: one, selected: one === target.wanted }, one)));
  select.addEventListener("change", async () => {
    try {
      await call("set_revision", { target: target.id, revision: select.value || null });
      say(`Reconnected${select.value ? ` using ${select.value}` : ""}`);
    } catch (why) {
      say(why.message, "bad");
    }
  });
  return select;
}

function opener(done = () => {}) {
  const field = h("input", { type: "text", class: "wide", id: "open-target", placeholder: "https://…/mcp, command, server.py or mcp.json", autocomplete: "off", spellcheck: "false" });
  const token = h("input", { type: "password", class: "wide", id: "open-token", autocomplete: "off" });
  const problem = h("p", { class: "problem", role: "alert" });
  const open = async (event) => {
    event.preventDefault();
    fill(problem, "Connecting…");
    try {
      const target = await call("open_target", { target: field.value.trim(), ...(token.value ? { token: token.value } : {}) });
      app.targets = (await call("list_targets")).targets;
      done();
      location.hash = `#/${encodeURIComponent(target.id)}/tools`;
    } catch (why) {
      fill(problem, plain(why.message, 600));
    }
  };
  return h("form", { class: "stack card", on: { submit: open } }, h("h3", {}, "Connect to another server"), h("label", { for: "open-target" }, "URL, command or file"), field,
    h("label", { for: "open-token" }, "Bearer token ", h("span", { class: "quiet" }, "(optional)")), token, problem, h("div", {}, h("button", { type: "submit", class: "primary" }, "Connect")));
}

// --- colour schemes, keys -------------------------------------------------------------------------------------------------------

const SCHEMES = { "": "Theme: system", light: "Theme: light", dark: "Theme: dark" };
const schemeText = () => SCHEMES[document.documentElement.dataset.scheme ?? ""];

function nextScheme() {
  const order = Object.keys(SCHEMES);
  const next = order[(order.indexOf(document.documentElement.dataset.scheme ?? "") + 1) % order.length];
  if (next) document.documentElement.dataset.scheme = next;
  else delete document.documentElement.dataset.scheme;
  localStorage.setItem("portico-console-scheme", next);
  drawSide();
  window.dispatchEvent(new Event("resize"));
}

function palette() {
  const views = VIEWS.filter((view) => view.shown(app)).map((view) => ({ title: view.title, kind: "view", run: () => app.goto(view.id) }));
  const found = Promise.all([["tools", "tool", "name"], ["prompts", "prompt", "name"], ["resources", "resource", "uri"]].map(async ([kind, word, key]) => {
    if (!VIEWS.find((view) => view.id === kind).shown(app)) return [];
    const { items } = await app.items(kind).catch(() => ({ items: [] }));
    return items.map((item) => ({ title: item[key], kind: word, run: () => app.goto(kind, item[key]) }));
  }));
  const targets = app.targets.filter((one) => one !== app.target).map((one) => ({ title: one.server?.name ?? one.title, kind: "server", run: () => { location.hash = `#/${encodeURIComponent(one.id)}/tools`; } }));
  openPalette([...views, ...targets, { title: "Servers and protocol versions", kind: "command", run: chooseTarget }, { title: "Toggle theme", kind: "command", run: nextScheme }], found.then((all) => all.flat()));
}

function keys(event) {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    palette();
  } else if (event.key === "/" && !event.target.closest("input, textarea, select, [contenteditable]")) {
    const field = place.querySelector("input[type=search]");
    if (field) {
      event.preventDefault();
      field.focus();
    }
  }
}
