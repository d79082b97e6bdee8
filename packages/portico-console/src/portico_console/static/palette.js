// Command palette: views, tools, resources, prompts, saved calls, settings. Ctrl-K or ⌘-K.

import { fill, fresh, h, plain } from "./dom.js";

const MOST = 50;
let opened;

/** entries: [{title, kind, run}]; coming: further entries, added when they arrive. */
export function openPalette(entries, coming) {
  if (opened) return;
  const id = fresh("palette");
  const list = h("ul", { role: "listbox", id, "aria-label": "Results" });
  const input = h("input", { type: "text", role: "combobox", "aria-expanded": "true", "aria-controls": id, "aria-label": "Search or run a command", placeholder: "Search or run a command…", autocomplete: "off", spellcheck: "false" });
  const dialog = h("dialog", { class: "palette", "aria-label": "Command palette" }, input, list);
  const sought = (entry) => ({ ...entry, sought: `${entry.title} ${entry.kind}`.toLowerCase() });
  let known = entries.map(sought);
  let found = [];
  let at = 0;
  let hurried = false;
  const draw = () => {
    fill(list, found.map((entry, index) => h("li", { role: "option", id: `${id}-${index}`, "aria-selected": String(index === at), on: { click: () => run(entry), pointermove: () => { if (at !== index) { at = index; mark(); } } } },
      h("span", { class: "name" }, plain(entry.title, 120)), h("span", { class: "quiet" }, entry.kind))));
    mark();
  };
  const mark = () => {
    [...list.children].forEach((item, index) => item.setAttribute("aria-selected", String(index === at)));
    input.setAttribute("aria-activedescendant", found.length ? `${id}-${at}` : "");
    list.children[at]?.scrollIntoView({ block: "nearest" });
  };
  const seek = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const first = words[0] ?? "";
    found = known.filter((entry) => words.every((word) => entry.sought.includes(word)))
      .sort((a, b) => rank(a, first) - rank(b, first)).slice(0, MOST);
    at = 0;
    draw();
  };
  const rank = (entry, word) => (entry.sought.startsWith(word) ? 0 : entry.sought.includes(` ${word}`) || entry.sought.includes(`_${word}`) ? 1 : 2);
  const run = (entry) => {
    dialog.close();
    entry.run();
  };
  input.addEventListener("input", () => { hurried = false; seek(); });
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") at = Math.min(found.length - 1, at + 1);
    else if (event.key === "ArrowUp") at = Math.max(0, at - 1);
    else if (event.key === "Enter") { if (found[at]) run(found[at]); else hurried = true; event.preventDefault(); return; }
    else return;
    event.preventDefault();
    mark();
  });
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.addEventListener("close", () => {
    dialog.remove();
    opened = undefined;
  });
  document.body.append(dialog);
  opened = dialog;
  dialog.showModal();
  seek();
  input.focus();
  coming.then((more) => {
    const chosen = found[at];
    known = [...known, ...more.map(sought)];
    seek();
    at = Math.max(0, found.indexOf(chosen));
    mark();
    if (hurried && opened === dialog && found.length) run(found[0]);
  });
}
