// A virtual list: only visible rows are rendered. One tab stop; arrows, Home, End and Page keys move the selection.

import { fill, fresh, h, number, plain } from "./dom.js";

const ABOVE = 6;

/** rows: [{title, text, badge, value}]; choose(value) is called for the selected one. */
export function makeList({ label, choose, rowHeight = 52, filter = true }) {
  const id = fresh("list");
  let all = [];
  let shown = [];
  let at = -1;
  const canvas = h("div", { class: "canvas", role: "presentation" });
  const box = h("div", { class: "rows", role: "listbox", id, tabindex: "0", "aria-label": label }, canvas);
  const search = h("input", { type: "search", class: "wide", placeholder: `Filter ${label.toLowerCase()}`, "aria-label": `Filter ${label.toLowerCase()}`, "aria-controls": id, autocomplete: "off", spellcheck: "false" });
  const count = h("p", { class: "count quiet", role: "status" });

  function draw() {
    const height = box.clientHeight || 600;
    const first = Math.max(0, Math.floor(box.scrollTop / rowHeight) - ABOVE);
    const last = Math.min(shown.length, Math.ceil((box.scrollTop + height) / rowHeight) + ABOVE);
    canvas.style.height = `${shown.length * rowHeight}px`;
    const rows = [];
    for (let index = first; index < last; index++) rows.push(row(shown[index], index));
    fill(canvas, rows);
    if (at >= first && at < last) box.setAttribute("aria-activedescendant", `${id}-${at}`);
    else box.removeAttribute("aria-activedescendant");
  }

  const row = (one, index) => h("div", {
    class: "option", role: "option", id: `${id}-${index}`, "aria-selected": String(index === at), "aria-posinset": index + 1, "aria-setsize": shown.length,
    style: { transform: `translateY(${index * rowHeight}px)`, height: `${rowHeight}px` }, on: { click: () => pick(index) },
  }, h("div", { class: "option-title" }, h("span", { class: "name" }, plain(one.title, 120)), one.badge ? h("span", { class: `badge ${one.badgeKind ?? ""}` }, plain(one.badge, 40)) : undefined),
  one.text === undefined ? undefined : h("div", { class: "option-text" }, plain(firstLine(one.text), 160)));

  function move(to) {
    if (!shown.length) return;
    at = Math.max(0, Math.min(shown.length - 1, to));
    const top = at * rowHeight;
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top + rowHeight > box.scrollTop + box.clientHeight) box.scrollTop = top + rowHeight - box.clientHeight;
    draw();
  }

  function pick(index) {
    move(index);
    if (shown[at]) choose(shown[at].value, shown[at]);
  }

  function apply() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const chosen = shown[at]?.value;
    shown = words.length ? all.filter((one) => words.every((word) => one.sought.includes(word))) : all;
    at = shown.findIndex((one) => one.value === chosen);
    const noun = all.length === 1 ? label.toLowerCase().replace(/s$/, "") : label.toLowerCase();
    count.textContent = shown.length === all.length ? `${number(all.length)} ${noun}` : `${number(shown.length)} of ${number(all.length)} ${noun}`;
    box.scrollTop = 0;
    draw();
  }

  const page = () => Math.max(1, Math.floor(box.clientHeight / rowHeight) - 1);
  box.addEventListener("keydown", (event) => {
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: shown.length - 1, PageDown: at + page(), PageUp: at - page() }[event.key];
    if (to !== undefined) move(to);
    else if ((event.key === "Enter" || event.key === " ") && at >= 0) pick(at);
    else return;
    event.preventDefault();
  });
  search.addEventListener("input", apply);
  search.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") box.focus(), move(Math.max(at, 0));
    else if (event.key === "Enter" && shown.length) pick(Math.max(at, 0));
    else return;
    event.preventDefault();
  });
  box.addEventListener("scroll", draw, { passive: true });
  const watching = new ResizeObserver(draw);
  watching.observe(box);

  return {
    element: h("div", { class: "list" }, filter ? h("div", { class: "list-head" }, search, count) : undefined, box),
    set(rows) {
      all = rows.map((one) => ({ ...one, sought: `${one.title} ${String(one.text ?? "").slice(0, 2000)}`.toLowerCase() }));
      apply();
    },
    select(value) {
      const index = shown.findIndex((one) => one.value === value);
      if (index >= 0) move(index);
    },
    focus: () => (filter ? search : box).focus(),
    search,
  };
}

const firstLine = (text) => {
  const whole = String(text ?? "").slice(0, 400).trim();
  const end = whole.indexOf("\n");
  return end < 0 ? whole : whole.slice(0, end);
};
