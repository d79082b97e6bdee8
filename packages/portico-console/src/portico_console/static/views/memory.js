// Memories: search with explained scores, timeline, tags and threads; editing, deletion, and a graph.

import { ask, button, empty, facts, fill, h, later, plain, say, segments, sheet, show, when } from "../dom.js";
import { makeGraph } from "../graph.js";
import { offers, use, within } from "../service.js";

const PAGE = 50;
const ALL_PROJECTS = "project:*";

export function view(place, app, rest) {
  const query = h("input", { type: "search", class: "wide", placeholder: "Search memories", "aria-label": "Search memories" });
  const filter = h("input", { type: "text", class: "wide mono", placeholder: "ns:decisions  tag:database  thread:set-up  since:7d  project:*", value: ALL_PROJECTS, id: "memory-filter", autocomplete: "off", spellcheck: "false" });
  const found = h("div", { class: "stack" });
  const aside = h("div", { class: "stack" });
  const ways = ["List", "Timeline", "Graph"];
  let way = rest[0] === "graph" ? 2 : rest[0] === "timeline" ? 1 : 0;
  let memories = [];
  let cursor;
  const bar = segments(ways, (index) => { way = index; draw(); });
  fill(place, sheet("Memories", [bar.element, offers(app, "memory", "capture") ? button("New memory", () => capture(app, refresh), { class: "primary" }) : undefined],
    h("div", { class: "stack" }, query, h("label", { for: "memory-filter" }, "Filter"), filter, aside), found));

  async function search(more) {
    await within(found, async () => {
      const args = { limit: PAGE, detail: "everything" };
      if (query.value.trim()) args.query = query.value.trim();
      if (filter.value.trim()) args.filter = filter.value.trim();
      if (more === true && cursor) args.cursor = cursor;
      const said = await use(app, "memory", "recall", args);
      memories = more === true ? [...memories, ...said.memories] : said.memories;
      cursor = said.nextCursor;
      draw(said);
    });
  }

  function refresh() {
    search();
    if (offers(app, "memory", "status")) within(aside, async () => fill(aside, summary(await use(app, "memory", "status"), narrow)));
  }

  const narrow = (key, value) => {
    const text = `${key}:${/\s/.test(value) ? JSON.stringify(value) : value}`;
    const parts = filter.value.split(/\s+/).filter(Boolean);
    if (!parts.includes(text)) parts.push(text);
    filter.value = parts.join(" ");
    search();
  };

  function draw(said) {
    bar.press(way);
    if (!memories.length) return void fill(found, query.value.trim() || !["", ALL_PROJECTS].includes(filter.value.trim()) ? empty("No results", "Try fewer words or a different filter.") : empty("No memories yet", "Select New memory, or let an assistant store one with memory_capture."));
    const note = said?.note ? h("p", { class: "quiet" }, plain(said.note, 400)) : undefined;
    if (way === 2) return void fill(found, makeGraph(memories, (id) => open(id)), entities(app, (name) => { query.value = name; way = 0; search(); }));
    if (way === 1) return void fill(found, note, timeline());
    fill(found, note, h("div", { class: "card" }, memories.map(row)), cursor ? button("Load more", () => search(true)) : undefined);
  }

  function timeline() {
    const days = Map.groupBy([...memories].sort((a, b) => (a.at < b.at ? 1 : -1)), (one) => String(one.at).slice(0, 10));
    return h("div", { class: "stack" }, [...days].map(([day, ones]) => h("section", { class: "stack" }, h("h2", {}, plain(day, 20)), h("div", { class: "timeline" }, ones.map(row)))), cursor ? button("Load more", () => search(true)) : undefined);
  }

  const severalProjects = () => new Set(memories.map((one) => one.project)).size > 1;
  const words = () => query.value.toLowerCase().split(/\W+/).filter((word) => word.length > 2);
  const row = (one) => h("article", { class: "memory" },
    h("div", { class: "row apart" }, h("div", { class: "row" },
      button(plain(one.namespace, 40), () => narrow("ns", one.namespace), { class: "badge accent" }),
      (one.tags ?? []).slice(0, 20).map((tag) => button(`#${plain(tag, 40)}`, () => narrow("tag", tag), { class: "badge" })),
      one.thread ? button(`thread ${plain(one.thread, 40)}`, () => narrow("thread", one.thread), { class: "badge" }) : undefined,
      one.status && one.status !== "active" ? h("span", { class: "badge warn" }, plain(one.status, 20)) : undefined,
      severalProjects() && one.project ? h("span", { class: "quiet", title: "Project" }, plain(one.project, 60)) : undefined),
    h("div", { class: "row quiet" }, why(one, words()), when(one.at))),
    button(marked(plain(one.content, 2000), words()), () => open(one.id), { class: "text plain" }));

  const open = (id) => openMemory(app, id, refresh);
  const soon = later(search, 250);
  query.addEventListener("input", soon);
  filter.addEventListener("input", soon);
  refresh();
  return { refresh, go(next) { if (next[0] && !ways.map((one) => one.toLowerCase()).includes(next[0])) open(next[0]); } };
}

/** The score with its explanation: kind of match and matched words. */
function why(one, words) {
  if (one.score === undefined || one.score === null) return undefined;
  const inner = h("span");
  inner.style.width = `${Math.max(3, Math.min(100, one.score * 100))}%`;
  const whole = [one.content, one.tags, one.thread, one.namespace].join(" ").toLowerCase();
  const there = words.filter((word) => whole.includes(word));
  const text = `${one.match === "weak" ? "weak" : "strong"}${there.length ? `: ${there.join(", ")}` : words.length ? ": semantic match" : ""}`;
  return h("span", { class: "row", title: `Score ${one.score}` }, h("span", { class: "meter", "aria-hidden": "true" }, inner), h("span", {}, one.score.toFixed(2)), h("span", {}, plain(text, 80)));
}

function marked(text, words) {
  if (!words.length) return text;
  const pattern = new RegExp(`(${words.slice(0, 10).map((word) => word.replace(/[^\p{L}\p{N}]/gu, "")).filter(Boolean).join("|") || "$^"})`, "giu");
  return text.split(pattern).map((part, index) => (index % 2 ? h("mark", {}, part) : part));
}

function summary(status, narrow) {
  const tags = Object.entries(status.tags ?? {}).sort(([, a], [, b]) => b - a).slice(0, 24);
  return h("div", { class: "row" }, h("span", { class: "quiet" }, `${status.total} ${status.total === 1 ? "memory" : "memories"}`), tags.map(([tag, many]) => button(`#${plain(tag, 30)} ${many}`, () => narrow("tag", tag), { class: "badge" })));
}

async function openMemory(app, id, changed) {
  const body = h("div", { class: "stack" });
  const dialog = show("Memory", body);
  await within(body, async () => {
    const one = await use(app, "memory", "get", { memory_id: id });
    const text = h("textarea", { class: "wide grow", rows: 5, id: "memory-text", value: one.content });
    const tags = h("input", { type: "text", class: "wide", id: "memory-tags", value: (one.tags ?? []).join(", ") });
    const past = h("div", { class: "stack" });
    const done = (what) => { say(what); dialog.close(); changed(); };
    const keep = () => within(past, async () => {
      await use(app, "memory", "update", { memory_id: id, content: text.value, tags: tags.value.split(",").map((tag) => tag.trim()).filter(Boolean), expected_version: one.version, reason: "edited in the console" });
      done("Saved");
    });
    const drop = async () => {
      if (await ask("Delete this memory", "Deleted memories can be restored for a limited time.", "Delete")) await within(past, async () => { await use(app, "memory", "delete", { memory_id: id, reason: "deleted in the console" }); done("Deleted"); });
    };
    fill(body, h("label", { for: "memory-text" }, "Content"), text, h("label", { for: "memory-tags" }, "Tags (comma-separated)"), tags,
      facts(["namespace", "domain", "thread", "author", "source", "project", "branch", "status", "version", "at", "urn"].map((key) => [key, one[key]])),
      h("div", { class: "row" }, offers(app, "memory", "update") ? button("Save changes", keep, { class: "primary" }) : undefined, offers(app, "memory", "delete") ? button("Delete", drop, { class: "danger" }) : undefined,
        offers(app, "memory", "history") ? button("History", () => within(past, async () => fill(past, history(await use(app, "memory", "history", { memory_id: id }))))) : undefined), past);
  });
}

const history = (said) => h("div", { class: "timeline" }, said.changes.map((one) => h("div", {}, h("strong", {}, plain(one.change, 40)), " ", when(one.at), one.who ? ` by ${plain(one.who, 60)}` : "", one.reason ? h("p", { class: "about" }, plain(one.reason, 400)) : undefined,
  one.content ? h("p", { class: "text" }, h("span", { class: "quiet" }, "previous: "), plain(one.content, 1000)) : undefined)));

async function capture(app, changed) {
  const { namespaces = [] } = await use(app, "memory", "namespaces").catch(() => ({}));
  const text = h("textarea", { rows: 4, class: "wide grow", id: "new-memory" });
  const kind = h("select", { id: "new-kind", class: "wide" }, namespaces.filter((one) => one.writable !== false).map((one) => h("option", { value: one.name }, plain(`${one.name}: ${one.about}`, 80))));
  const tags = h("input", { type: "text", class: "wide", id: "new-tags" });
  const problem = h("div", {});
  const dialog = show("New memory", h("label", { for: "new-memory" }, "Content"), text, h("label", { for: "new-kind" }, "Namespace"), kind, h("label", { for: "new-tags" }, "Tags (comma-separated)"), tags, problem,
    h("div", { class: "row end" }, button("Save memory", () => within(problem, async () => {
      await use(app, "memory", "capture", { content: text.value, namespace: kind.value, tags: tags.value.split(",").map((tag) => tag.trim()).filter(Boolean) });
      dialog.close();
      say("Memory saved");
      changed();
    }), { class: "primary" })));
}

/** The entities of the memories, if the server stores them. */
function entities(app, choose) {
  const box = h("div", { class: "row" });
  if (offers(app, "memory", "graph")) within(box, async () => {
    const { nodes = [] } = await use(app, "memory", "graph", { operation: "entities", limit: 60 });
    fill(box, nodes.length ? h("span", { class: "quiet" }, "Entities") : undefined, nodes.map((node) => button(`${plain(node.name, 50)} ${node.mentions ?? ""}`, () => choose(node.name), { class: "badge" })));
  });
  return box;
}
