// Rendering of results: text, tree, table, image, audio, link. Images and audio come from the result itself in a few known
// types; URLs of a server are never fetched.

import { button, copy, fill, h, link, plain, save, segments, size, visible } from "./dom.js";
import { kind } from "./schema.js";
import { makeTree } from "./tree.js";

const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "image/bmp"]);
const SOUNDS = new Set(["audio/wav", "audio/x-wav", "audio/mpeg", "audio/mp3", "audio/ogg", "audio/webm", "audio/mp4", "audio/aac", "audio/flac"]);
const FIRST_TEXT = 40000;
const MORE_TEXT = 200000;
const ROWS = 100;

/** Render a tools/call result. `open(uri)` is called for links to resources of the same server. */
export function showResult(result, { open } = {}) {
  const structured = result.structuredContent;
  const blocks = Array.isArray(result.content) ? result.content : [];
  const ways = [];
  const media = blocks.filter((block) => block?.type !== "text");
  if (media.length) ways.push([media.length === blocks.length ? "Content" : "All content", () => showBlocks(blocks, open)]);
  const data = structured !== undefined ? structured : parsed(blocks);
  const rows = data === undefined ? undefined : findRows(data);
  if (rows) ways.push(["Table", () => makeTable(rows)]);
  if (data !== undefined) ways.push(["Tree", () => makeTree(data, { label: "Result" })]);
  if (blocks.some((block) => block?.type === "text") && !media.length) ways.push(["Text", () => showBlocks(blocks, open)]);
  ways.push(["Raw", () => makeTree(result, { label: "Full result" })]);
  return chooser(ways, result);
}

/** Alternative renderings as tabs, created when selected. */
export function chooser(ways, whole) {
  const view = h("div", { class: "view" });
  const made = new Map();
  const bar = segments(ways.map(([name]) => name), (index) => choose(index));
  const choose = (index) => {
    if (!made.has(index)) made.set(index, ways[index][1]());
    fill(view, made.get(index));
    bar.press(index);
  };
  choose(0);
  const tools = whole === undefined ? undefined : h("div", { class: "row" },
    button("Copy", () => copy(JSON.stringify(whole, null, 2), "Result copied"), { class: "small" }),
    button("Save", () => save("result.json", JSON.stringify(whole, null, 2)), { class: "small" }));
  return h("div", { class: "stack" }, h("div", { class: "row apart" }, bar.element, tools), view);
}

function parsed(blocks) {
  if (blocks.length !== 1 || blocks[0]?.type !== "text" || typeof blocks[0].text !== "string") return undefined;
  const text = blocks[0].text.trimStart();
  if (text[0] !== "{" && text[0] !== "[") return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

export function showBlocks(blocks, open) {
  return h("div", { class: "stack" }, blocks.slice(0, 200).map((block) => showBlock(block, open)),
    blocks.length > 200 ? h("p", { class: "quiet" }, `${blocks.length - 200} more in Raw`) : undefined);
}

export function showBlock(block, open) {
  switch (block?.type) {
    case "text": return showText(String(block.text ?? ""));
    case "image": return showPicture(block.data, block.mimeType);
    case "audio": return showSound(block.data, block.mimeType);
    case "resource": return showContents(block.resource ?? {});
    case "resource_link": return showLink(block, open);
    default: return makeTree(block, { label: "Content" });
  }
}

/** Text, truncated if long. */
export function showText(text) {
  const block = h("pre", { class: "block", tabindex: "0" });
  let shown = 0;
  const more = button("", () => add(MORE_TEXT), { class: "small" });
  const add = (length) => {
    // A separate element per chunk, so that existing text is not laid out again.
    block.append(h("span", {}, visible(text.slice(shown, shown + length))));
    shown += length;
    more.textContent = `Show more (${size(text.length - shown)} remaining)`;
    more.hidden = shown >= text.length;
  };
  add(FIRST_TEXT);
  return h("div", { class: "stack" }, block, more);
}

const bytesFit = (data) => typeof data === "string" && data.length < 30e6 && /^[A-Za-z0-9+/\s]*={0,2}\s*$/.test(data);

function showPicture(data, type) {
  if (!PICTURES.has(type) || !bytesFit(data)) return unseen("picture", type, data);
  const picture = h("img", { alt: `Image from the server (${type})` });
  picture.addEventListener("error", () => picture.replaceWith(unseen("image (decoding failed)", type, data)));
  picture.src = `data:${type};base64,${data.replace(/\s/g, "")}`;
  return h("figure", {}, picture);
}

function showSound(data, type) {
  if (!SOUNDS.has(type) || !bytesFit(data)) return unseen("sound", type, data);
  const sound = h("audio", { controls: true, "aria-label": "Audio from the server" });
  sound.src = `data:${type};base64,${data.replace(/\s/g, "")}`;
  return sound;
}

const unseen = (what, type, data) => h("p", { class: "quiet" }, `Preview not available for ${what}: `, h("code", {}, plain(type ?? "unknown type", 80)), `, ${size(String(data ?? "").length)}`);

/** The contents of resources/read, or an embedded resource. */
export function showContents(resource) {
  const head = h("div", { class: "row" }, h("code", { class: "breakable" }, plain(resource.uri, 500)), h("span", { class: "badge" }, plain(resource.mimeType ?? "unknown type", 60)));
  let body;
  if (typeof resource.text === "string") {
    const data = parsed([{ type: "text", text: resource.text }]);
    body = data === undefined ? showText(resource.text) : chooser([["Tree", () => makeTree(data)], ["Text", () => showText(resource.text)], ...(findRows(data) ? [["Table", () => makeTable(findRows(data))]] : [])]);
  } else if (resource.mimeType?.startsWith("image/")) body = showPicture(resource.blob, resource.mimeType);
  else if (resource.mimeType?.startsWith("audio/")) body = showSound(resource.blob, resource.mimeType);
  else body = unseen("blob", resource.mimeType, resource.blob);
  return h("div", { class: "stack" }, head, body);
}

function showLink(block, open) {
  const title = plain(block.title ?? block.name ?? block.uri, 200);
  const inside = open ? button(`Read ${title}`, () => open(String(block.uri)), { class: "small" }) : undefined;
  return h("div", { class: "card" }, h("div", { class: "row" }, h("strong", {}, title), block.mimeType ? h("span", { class: "badge" }, plain(block.mimeType, 60)) : undefined, inside),
    link(block.uri), block.description ? h("p", { class: "about" }, plain(block.description, 1000)) : undefined);
}

/** Return the value, or its member, that is a list of objects. */
export function findRows(data) {
  const fits = (value) => Array.isArray(value) && value.length > 0 && value.slice(0, 50).every((row) => kind(row) === "object");
  if (fits(data)) return data;
  if (kind(data) !== "object") return undefined;
  const lists = Object.values(data).filter(fits);
  return lists.length ? lists.reduce((best, one) => (one.length > best.length ? one : best)) : undefined;
}

/** A table that sorts by its columns: [key, title, how to show a value, class of the cells]; by default, all keys of the rows.
    `label` is for screen readers. */
export function makeTable(rows, { columns, caption, label = caption ?? "Table", choose } = {}) {
  const keys = columns ?? [...new Set(rows.slice(0, 50).flatMap((row) => Object.keys(row)))].slice(0, 24).map((key) => [key, key]);
  let sorted = rows;
  let by;
  let down = false;
  const body = h("tbody");
  const more = button("", () => add(), { class: "small" });
  let drawn = 0;
  const add = () => {
    const until = Math.min(drawn + ROWS, sorted.length);
    for (; drawn < until; drawn++) body.append(line(sorted[drawn]));
    more.hidden = drawn >= sorted.length;
    more.textContent = `Show ${Math.min(ROWS, sorted.length - drawn)} of ${(sorted.length - drawn).toLocaleString("en")} remaining`;
  };
  // Timestamps are numbers, too, but are shown as dates.
  const figures = new Set(keys.map(([key]) => key).filter((key) => !/^(time|when|at|.*_at)$/.test(key) && rows.some((row) => typeof row[key] === "number")));
  const style = new Map(keys.map(([key, , , named]) => [key, named ?? (figures.has(key) ? "figure" : undefined)]));
  const line = (row) => h("tr", choose ? { tabindex: "0", on: { click: () => choose(row), keydown: (event) => event.key === "Enter" && choose(row) } } : {},
    keys.map(([key, , show]) => h("td", { class: style.get(key) }, show ? show(row[key], row) : cell(row[key]))));
  const sort = (key) => {
    down = by === key ? !down : false;
    by = key;
    sorted = [...rows].sort((a, b) => compare(a[key], b[key]) * (down ? -1 : 1));
    heads.forEach(([one, head]) => head.setAttribute("aria-sort", one === key ? (down ? "descending" : "ascending") : "none"));
    fill(body);
    drawn = 0;
    add();
  };
  const heads = keys.map(([key, title]) => [key, h("th", { scope: "col", "aria-sort": "none", class: style.get(key) }, button(plain(title, 60), () => sort(key)))]);
  add();
  return h("div", { class: "sheet", tabindex: "0", role: "region", "aria-label": label }, h("table", {}, caption ? h("caption", {}, caption) : undefined, h("thead", {}, h("tr", {}, heads.map(([, head]) => head))), body), more);
}

const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a ?? "").localeCompare(String(b ?? "")));

function cell(value) {
  if (value === undefined) return "";
  if (value === null) return h("span", { class: "quiet" }, "null");
  if (typeof value === "object") return h("code", {}, plain(JSON.stringify(value), 160));
  return plain(value, 240);
}
