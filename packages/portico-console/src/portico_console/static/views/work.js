// Work items: a board by state, and a tree with blockers. Move items by dragging or with the arrow keys.

import { ask, button, empty, facts, fill, h, plain, say, segments, sheet, show, when } from "../dom.js";
import { offers, use, within } from "../service.js";

const STATES = [["pending", "To do"], ["in_progress", "In progress"], ["completed", "Done"], ["failed", "Failed"]];

export function view(place, app) {
  const body = h("div", {});
  const query = h("input", { type: "search", placeholder: "Filter", "aria-label": "Filter work items" });
  let way = 0;
  const bar = segments(["Board", "Tree"], (index) => { way = index; load(); });
  fill(place, sheet("Work items", [query, bar.element, button("New item", () => create(app, load), { class: "primary" })], body));

  const load = (focus) => within(body, async () => {
    bar.press(way);
    const args = query.value.trim() ? { query: query.value.trim() } : {};
    if (way === 1) return fill(body, tree((await use(app, "tasks", "task_tree", { project: "*" })).tasks, (id) => openItem(app, id, load)));
    const { tasks } = await use(app, "tasks", "list_tasks", { ...args, project: "*", limit: 200 });
    fill(body, tasks.length || args.query ? board(app, tasks, load) : empty("No work items", "Work items created by you or an assistant appear here."));
    if (typeof focus === "string") body.querySelector(`[data-id="${CSS.escape(focus)}"]`)?.focus();
    return undefined;
  });
  query.addEventListener("input", () => load());
  load();
  return { refresh: () => load(), go() {} };
}

function board(app, tasks, load) {
  const move = async (id, status) => {
    const item = tasks.find((one) => one.id === id);
    if (!item || item.status === status) return;
    try {
      await use(app, "tasks", "update_task", { id, status, reason: "status changed in the console" });
      say(`${plain(item.description, 60)}: ${STATES.find(([key]) => key === status)[1]}`);
    } catch (why) {
      say(why.message, "bad");
    }
    load(id);
  };
  return h("div", { class: "board" }, STATES.map(([status, title], at) => {
    const mine = tasks.filter((one) => one.status === status);
    const column = h("section", { class: "column", "aria-label": title }, h("h2", {}, title, h("span", { class: "quiet" }, String(mine.length))), mine.length ? mine.map((one) => card(app, one, at, move, load)) : h("p", { class: "quiet" }, "No items"));
    column.addEventListener("dragover", (event) => { event.preventDefault(); column.classList.add("over"); });
    column.addEventListener("dragleave", () => column.classList.remove("over"));
    column.addEventListener("drop", (event) => { event.preventDefault(); column.classList.remove("over"); move(event.dataTransfer.getData("text/x-item"), status); });
    return column;
  }));
}

function card(app, one, at, move, load) {
  const element = h("button", { type: "button", class: "item", draggable: "true", data: { id: one.id }, "aria-keyshortcuts": "ArrowLeft ArrowRight", title: "Enter opens the item; left and right arrow keys move it" },
    h("span", { class: "name" }, plain(one.description, 200)),
    h("span", { class: "row" }, h("span", { class: `badge ${one.priority < 3 ? "warn" : ""}`, title: `Priority ${one.priority}` }, `P${one.priority}`), one.blocked ? h("span", { class: "badge warn" }, "blocked") : undefined, one.worker ? h("span", { class: "badge accent" }, plain(one.worker, 30)) : undefined, (one.labels ?? []).slice(0, 6).map((label) => h("span", { class: "badge" }, plain(label, 30))), one.due_at ? h("span", { class: "quiet" }, "due ", when(one.due_at)) : undefined));
  element.addEventListener("click", () => openItem(app, one.id, load));
  element.addEventListener("dragstart", (event) => { event.dataTransfer.setData("text/x-item", one.id); element.classList.add("dragging"); });
  element.addEventListener("dragend", () => element.classList.remove("dragging"));
  element.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || !STATES[at + by]) return;
    event.preventDefault();
    move(one.id, STATES[at + by][0]);
  });
  return element;
}

function tree(tasks, open) {
  const names = new Map(tasks.map((one) => [one.id, one.description]));
  const top = h("ul", { class: "branches top", "aria-label": "Work items" });
  const levels = [top];
  for (const one of tasks.slice(0, 2000)) {
    const inner = h("ul", { class: "branches" });
    const item = h("li", {}, h("div", { class: "row" }, h("span", { class: `badge ${{ __proto__: null, completed: "good", failed: "bad", in_progress: "accent" }[one.status] ?? ""}` }, STATES.find(([key]) => key === one.status)?.[1] ?? plain(one.status, 20)),
      button(plain(one.description, 200), () => open(one.id), { class: "plain" }), one.worker ? h("span", { class: "quiet" }, plain(one.worker, 40)) : undefined,
      one.blocked_by?.length ? h("span", { class: "badge warn" }, `waits for ${one.blocked_by.map((id) => plain(names.get(id) ?? id, 40)).join(", ")}`) : undefined), inner);
    (levels[one.depth ?? 0] ?? top).append(item);
    levels[(one.depth ?? 0) + 1] = inner;
  }
  return h("div", { class: "card" }, top);
}

async function openItem(app, id, changed) {
  const body = h("div", { class: "stack" });
  const dialog = show("Work item", body);
  dialog.addEventListener("close", () => changed(id));
  await within(body, async () => {
    const one = await use(app, "tasks", "get_task", { id });
    const text = h("textarea", { class: "wide grow", rows: 2, id: "item-text", value: one.description });
    const state = h("select", { id: "item-state" }, STATES.map(([key, title]) => h("option", { value: key, selected: key === one.status }, title)));
    const note = h("input", { type: "text", class: "wide", id: "item-note", placeholder: "Add a note" });
    const problem = h("div", {});
    const keep = () => within(problem, async () => {
      if (text.value !== one.description || state.value !== one.status) await use(app, "tasks", "update_task", { id, ...(text.value !== one.description ? { description: text.value } : {}), ...(state.value !== one.status ? { status: state.value } : {}), expected_version: one.version, reason: "edited in the console" });
      if (note.value) await use(app, "tasks", "add_note", { id, text: note.value });
      dialog.close();
      say("Saved");
    });
    fill(body, h("label", { for: "item-text" }, "Description"), text, h("label", { for: "item-state" }, "Status"), state,
      facts([...["id", "priority", "worker", "due_at", "created_by", "created_at", "started_at", "completed_at", "context", "result", "project"].map((key) => [key, one[key]]), ["blocked by", (one.blocked_by ?? []).join(", ")]]),
      (one.notes ?? []).slice(0, 50).map((line) => h("p", { class: "about" }, plain(line.text ?? line, 1000))), h("label", { for: "item-note" }, "Note"), note, problem,
      h("div", { class: "row" }, button("Save changes", keep, { class: "primary" }),
        offers(app, "tasks", "delete_task") ? button("Delete", async () => { if (await ask("Delete work item", "Child items are kept.", "Delete")) await within(problem, async () => { await use(app, "tasks", "delete_task", { id, reason: "deleted in the console" }); dialog.close(); }); }, { class: "danger" }) : undefined,
        offers(app, "tasks", "task_history") ? button("History", () => within(problem, async () => fill(problem, h("div", { class: "timeline" }, (await use(app, "tasks", "task_history", { id })).changes.map((change) => h("div", {}, h("strong", {}, plain(change.change, 40)), " ", when(change.at), change.who ? ` by ${plain(change.who, 60)}` : "", (change.fields ?? []).map((field) => h("p", { class: "about" }, plain(`${field.name}: ${field.before ?? "–"} → ${field.after ?? "–"}`, 300))))))))) : undefined));
  });
}

function create(app, changed) {
  const text = h("textarea", { rows: 2, class: "wide grow", id: "new-item" });
  const labels = h("input", { type: "text", class: "wide", id: "new-labels" });
  const problem = h("div", {});
  const dialog = show("New work item", h("label", { for: "new-item" }, "Description"), text, h("label", { for: "new-labels" }, "Labels (comma-separated)"), labels, problem,
    h("div", { class: "row end" }, button("Create item", () => within(problem, async () => {
      const all = labels.value.split(",").map((one) => one.trim()).filter(Boolean);
      await use(app, "tasks", "create_task", { description: text.value, ...(all.length ? { labels: all } : {}) });
      dialog.close();
      changed();
    }), { class: "primary" })));
}
