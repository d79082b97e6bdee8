// JSON as a tree. Branches are rendered when opened, long ones in chunks, so only the visible part of 5 MB costs time.
// Tree keys: arrows, Home, End, Enter; one tab stop.

import { button, copy, h, plain, size, visible } from "./dom.js";
import { kind } from "./schema.js";

const PIECE = 100;
const LONG = 240;
// Values up to this size are fully expanded.
const SMALL = 60;
const DEEPEST = 12;

export function makeTree(value, { label = "JSON", open = 2 } = {}) {
  const tree = h("ul", { class: "tree mono", role: "tree", "aria-label": label, tabindex: "-1" });
  tree.append(node(undefined, value, isSmall(value, { left: SMALL }) ? DEEPEST : open));
  const first = tree.firstElementChild;
  if (first) first.tabIndex = 0;
  tree.addEventListener("keydown", (event) => steer(event, tree));
  tree.addEventListener("click", (event) => {
    const item = event.target.closest("[role=treeitem]");
    if (!item || event.target.closest("button") || String(getSelection())) return;
    focus(tree, item);
    toggle(item);
  });
  return tree;
}

function isSmall(value, room) {
  if (value === null || typeof value !== "object") return --room.left >= 0;
  for (const key in value) if (!isSmall(value[key], room)) return false;
  return room.left >= 0;
}

function node(key, value, open) {
  const type = kind(value);
  const branch = type === "object" || type === "array";
  const entries = branch ? (type === "array" ? value.length : Object.keys(value).length) : 0;
  const line = h("div", { class: "line" },
    h("span", { class: "mark", "aria-hidden": "true" }, entries ? "▸" : ""),
    key === undefined ? undefined : h("span", { class: "key" }, plain(String(key), 120), ": "),
    branch ? h("span", { class: "quiet" }, entries ? summary(type, entries) : type === "array" ? "[]" : "{}") : leaf(value, type));
  const item = h("li", { role: "treeitem", tabindex: "-1", "aria-expanded": entries ? "false" : undefined }, line);
  item.value_ = value;
  if (entries && open > 0 && entries <= 200) expand(item, open - 1);
  return item;
}

const summary = (type, entries) => (type === "array" ? `[${entries.toLocaleString("en")}]` : `{${entries.toLocaleString("en")}}`);

function leaf(value, type) {
  if (type !== "string") return h("span", { class: type }, String(value));
  if (value.length <= LONG) return h("span", { class: "string" }, JSON.stringify(visible(value)));
  const text = h("span", { class: "string" }, JSON.stringify(visible(value.slice(0, LONG))).slice(0, -1), "…\"");
  const more = button(`show all ${size(value.length)}`, () => {
    text.textContent = visible(value.slice(0, 100000));
    more.textContent = "copy";
    more.onclick = () => copy(value);
  }, { class: "small", tabindex: "-1" });
  return h("span", {}, text, " ", more);
}

function expand(item, open = 0) {
  const value = item.value_;
  const names = Array.isArray(value) ? undefined : Object.keys(value);
  const total = names ? names.length : value.length;
  const group = h("ul", { role: "group" });
  let drawn = 0;
  const more = () => {
    const until = Math.min(drawn + PIECE, total);
    for (; drawn < until; drawn++) {
      const key = names ? names[drawn] : drawn;
      group.append(node(key, value[key], open));
    }
  };
  more();
  item.append(group);
  if (drawn < total) {
    const next = button("", () => {
      more();
      say();
      group.lastElementChild.scrollIntoView({ block: "nearest" });
    }, { class: "small more" });
    const say = () => {
      if (drawn >= total) next.remove();
      else next.textContent = `Show ${Math.min(PIECE, total - drawn)} more of ${(total - drawn).toLocaleString("en")}`;
    };
    say();
    // A tree may contain only tree items, so the button is inside one.
    item.append(h("div", { class: "line" }, next));
  }
  item.setAttribute("aria-expanded", "true");
  item.querySelector(".mark").textContent = "▾";
}

function toggle(item) {
  if (item.getAttribute("aria-expanded") === "true") {
    while (item.children.length > 1) item.lastElementChild.remove();
    item.setAttribute("aria-expanded", "false");
    item.querySelector(".mark").textContent = "▸";
  } else if (item.getAttribute("aria-expanded") === "false") expand(item);
}

function focus(tree, item) {
  const before = tree.querySelector("[role=treeitem][tabindex='0']");
  if (before) before.tabIndex = -1;
  item.tabIndex = 0;
  item.focus({ preventScroll: false });
}

function steer(event, tree) {
  const item = event.target.closest("[role=treeitem]");
  if (!item || event.target.closest("button")) return;
  const opened = item.getAttribute("aria-expanded");
  const parent = item.parentElement.closest("[role=treeitem]");
  const inner = item.querySelector("[role=treeitem]");
  const to = {
    ArrowDown: () => inner ?? after(item),
    ArrowUp: () => before(item) ?? parent,
    ArrowRight: () => (opened === "false" ? (toggle(item), item) : inner),
    ArrowLeft: () => (opened === "true" ? (toggle(item), item) : parent),
    Home: () => tree.firstElementChild,
    Enter: () => (toggle(item), item),
    " ": () => (toggle(item), item),
  }[event.key];
  if (!to) return;
  event.preventDefault();
  const next = to();
  if (next) focus(tree, next);
}

function after(item) {
  for (let place = item; place; place = place.parentElement.closest("[role=treeitem]")) {
    if (place.nextElementSibling?.getAttribute("role") === "treeitem") return place.nextElementSibling;
  }
  return undefined;
}

function before(item) {
  let place = item.previousElementSibling;
  while (place?.getAttribute("aria-expanded") === "true") {
    const group = place.querySelector(":scope > [role=group]");
    place = group.lastElementChild;
  }
  return place ?? undefined;
}
