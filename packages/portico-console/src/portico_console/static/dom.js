// Elements are created only here. Text is inserted as text, attributes come from an allow list, and a foreign URL becomes
// a link only through `link`, so server data cannot become markup, code or a request.

const ALLOWED = new Set("alt autocomplete checked controls disabled draggable download for hidden id inputmode list max min name open placeholder readonly rel required role rows scope selected spellcheck tabindex target title type value viewBox x y x1 x2 y1 y2 cx cy r width height autofocus".split(" "));
const SVG = "http://www.w3.org/2000/svg";
const DRAWN = new Set(["svg", "path", "line", "circle", "rect", "polyline", "text", "g", "polygon"]);

/** h("p", {class: "quiet", on: {click}}, "text", node, [nodes]) */
export function h(tag, options, ...children) {
  const element = DRAWN.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(options ?? {})) set(element, name, value);
  put(element, children);
  return element;
}

function set(element, name, value) {
  if (value === undefined || value === null || value === false) return;
  if (name === "class") element.setAttribute("class", value);
  else if (name === "on") for (const [kind, listener] of Object.entries(value)) element.addEventListener(kind, listener);
  else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
  else if (name === "data") Object.assign(element.dataset, value);
  else if (name === "value" && "value" in element) element.value = value;
  else if (name.startsWith("aria-") || ALLOWED.has(name)) element.setAttribute(name, value === true ? "" : String(value));
  else throw new TypeError(`no attribute ${name}`);
}

function put(element, children) {
  for (const child of children) {
    if (child === undefined || child === null || child === false) continue;
    if (Array.isArray(child)) put(element, child);
    else element.append(child instanceof Node ? child : String(child));
  }
}

export function fill(element, ...children) {
  element.replaceChildren();
  put(element, children);
  return element;
}

let counter = 0;
export const fresh = (stem) => `${stem}-${++counter}`;

export const button = (text, click, options = {}) =>
  h("button", { type: "button", ...options, on: { click, ...options.on } }, text);

/** An external link: http and https only, with a visible host and without a referrer. */
export function link(address, text) {
  const url = safe(address);
  if (!url) return h("span", { class: "mono breakable" }, text ?? address);
  const element = h("a", { class: "away", rel: "noopener noreferrer", target: "_blank", title: plain(url.href, 500) }, text ?? plain(url.href, 200));
  element.href = url.href;
  return text && text !== url.href ? h("span", {}, element, " ", h("span", { class: "quiet" }, `(${url.host})`)) : element;
}

function safe(address) {
  try {
    const url = new URL(String(address));
    return (url.protocol === "https:" || url.protocol === "http:") && !url.username && !url.password ? url : undefined;
  } catch {
    return undefined;
  }
}

// Bidirectional and invisible characters are shown as escapes.
const INVISIBLE = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\u{e0000}-\u{e007f}]/gu;
const named = (found) => `⟨U+${found.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;

/** Foreign text for one line: truncated, without invisible characters. */
export function plain(text, longest = 300) {
  const all = typeof text === "string" ? text : text === undefined || text === null ? "" : String(text);
  const shown = all.slice(0, longest).replace(INVISIBLE, named);
  return all.length > longest ? `${shown}…` : shown;
}

/** Foreign text of several lines, not truncated. */
export const visible = (text) => String(text).replace(INVISIBLE, named);

/** The version of a server, unless it is the one that Portico reports for a server without a version. */
export const ownVersion = (server) => (server?.version === "0.0.0" ? undefined : server?.version);

/** Names and values; empty values are omitted. */
export const facts = (pairs) => h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== undefined && value !== null && value !== "")
  .map(([name, value]) => [h("dt", {}, plain(name, 40).replaceAll("_", " ")), h("dd", {}, value instanceof Node ? value : plain(value, 600))]));

/** A group of toggle buttons: {element, press(index)}. */
export function segments(names, choose, label = "View mode") {
  const press = (at) => buttons.forEach((one, index) => one.setAttribute("aria-pressed", String(index === at)));
  const buttons = names.map((name, index) => button(name, () => choose(index)));
  press(0);
  return { element: h("div", { class: "segments", role: "group", "aria-label": label }, buttons), press };
}

/** A view with a heading and its controls. */
export const sheet = (title, tools, ...content) => h("div", { class: "page" }, h("div", { class: "row apart" }, h("h1", {}, title), h("div", { class: "row" }, tools)), ...content);

/** A list on the left, the selected item on the right. */
export function split(place, list, label) {
  const detail = h("section", { class: "detail", "aria-label": label });
  const element = h("div", { class: "split" }, list.element, detail);
  fill(place, element);
  place.classList.add("filled");
  return { detail, choose: (yes) => element.classList.toggle("chosen", Boolean(yes)), leave: () => place.classList.remove("filled") };
}

let speaker;
/** Announce a message to screen readers and show it briefly. */
/** Remove error notes: what they report has been corrected. */
export function clearErrors() {
  document.querySelectorAll("#said .note.bad").forEach((note) => note.remove());
}

export function say(text, kind = "info") {
  speaker ??= document.getElementById("said");
  const note = h("div", { class: `note ${kind}` }, plain(text, 400));
  speaker.append(note);
  setTimeout(() => note.remove(), kind === "bad" ? 9000 : 3500);
}

export async function copy(text, what = "Copied") {
  try {
    await navigator.clipboard.writeText(text);
    say(what);
  } catch {
    show("Copy manually", h("textarea", { rows: 12, class: "mono wide", readonly: true, "aria-label": "Text to copy", value: text }));
  }
}

export function save(name, text, type = "application/json") {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const element = h("a", { download: name });
  element.href = address;
  element.click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

/** Open a dialog with a heading and return it; it is removed when closed. */
export function show(title, ...content) {
  const id = fresh("dialog");
  const dialog = h("dialog", { "aria-labelledby": id, class: "dialog" },
    h("div", { class: "row apart" }, h("h2", { id }, title),
      button("✕", () => dialog.close(), { class: "plain", "aria-label": "Close" })),
    ...content);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

export function ask(title, text, yes = "Yes") {
  return new Promise((resolve) => {
    let answer = false;
    const dialog = show(title, h("p", {}, text), h("div", { class: "row end" },
      button("Cancel", () => dialog.close()),
      button(yes, () => { answer = true; dialog.close(); }, { class: "primary", autofocus: true })));
    dialog.addEventListener("close", () => resolve(answer));
  });
}

/** A server's description, truncated if long. */
export function lead(text, longest = 700) {
  // Join wrapped lines; lists and paragraphs stay.
  const all = plain(text, 20000).replace(/(\S)\n(?=[\p{L}`"(])/gu, "$1 ");
  const said = h("p", { class: "lead" }, all.length > longest ? `${all.slice(0, longest - 100)}… ` : all);
  if (all.length > longest) said.append(button("Show all", () => { said.textContent = all; }, { class: "small" }));
  return said;
}

export const empty = (title, text, ...more) => h("div", { class: "empty" }, h("h2", {}, title), h("p", {}, text), ...more);

/** Format a duration or an age with its two largest units. */
export function span(milliseconds) {
  if (milliseconds === undefined || milliseconds === null || Number.isNaN(milliseconds)) return "–";
  if (milliseconds < 1) return `${Math.round(milliseconds * 1000)} µs`;
  if (milliseconds < 1000) return `${milliseconds < 10 ? milliseconds.toFixed(1) : Math.round(milliseconds)} ms`;
  const seconds = milliseconds / 1000;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} days`;
}

export function size(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  if (bytes < 1e6) return `${(bytes / 1e3).toFixed(1)} kB`;
  return `${(bytes / 1e6).toFixed(1)} MB`;
}

export const number = (value) => (typeof value === "number" ? value.toLocaleString("en") : String(value ?? "–"));

/** Format a time relative to now, with the full time as title. */
export function when(value) {
  const moment = typeof value === "number" ? new Date(value < 1e11 ? value * 1000 : value) : new Date(value);
  if (Number.isNaN(moment.getTime())) return h("span", { class: "quiet" }, plain(value, 40) || "–");
  const ago = Date.now() - moment.getTime();
  const text = ago < -1000 ? `in ${span(-ago)}` : ago < 60000 ? "just now" : ago < 7 * 86400000 ? `${span(ago)} ago` : moment.toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric" });
  return h("time", { title: moment.toISOString() }, text);
}

/** Debounce a listener. */
export function later(listener, milliseconds) {
  let timer;
  return (...all) => {
    clearTimeout(timer);
    timer = setTimeout(() => listener(...all), milliseconds);
  };
}
