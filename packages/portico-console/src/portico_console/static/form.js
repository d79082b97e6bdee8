// A form generated from a JSON Schema. Each field can be read, and can show errors of itself or of its parts.
//   field = {element, read() → value or undefined, mark(path, text), clear(), focus()}
// Optional parts are created on demand, so recursive schemas terminate.

import { button, fill, fresh, h, plain, segments } from "./dom.js";
import { begin, check, kind, labelOf, pathText, put, resolve, same, typesOf, variants } from "./schema.js";

const MOST_OPTIONS = 300;
const LONG_TEXT = /^(text|content|body|code|message|description|prompt|note|markdown|html|sql|script)$/;

/** The complete form: fields, or JSON as a fallback. */
export function makeForm(schema, { value, label = "Arguments" } = {}) {
  const root = schema && typeof schema === "object" ? schema : {};
  const start = value ?? beginning(root);
  const place = h("div", { class: "fields" });
  const trouble = h("div", { class: "problem", role: "alert" });
  const raw = h("textarea", { class: "mono wide", rows: 12, spellcheck: "false", "aria-label": `${label} as JSON`, hidden: true });
  let top;
  let asJson = false;

  const build = (given) => {
    try {
      top = objectField(resolve(root, root), root, { name: "", required: true, value: given, depth: 0, bare: true });
    } catch {
      // Not a schema, or an unsupported one.
      const options = { name: "arguments", required: true, value: given, depth: 0, schema: { description: "This schema cannot be rendered as a form. Enter the arguments as JSON." } };
      top = jsonField(options.schema, options);
    }
    fill(place, top.element);
  };
  const modes = segments(["Form", "JSON"], (index) => choose(index === 1), "Input mode");

  function choose(json) {
    if (json === asJson) return;
    fill(trouble);
    if (json) raw.value = JSON.stringify(top.read() ?? {}, null, 2);
    else {
      const parsed = parse();
      if (parsed === undefined) return;
      build(parsed);
    }
    asJson = json;
    raw.hidden = !json;
    place.hidden = json;
    modes.press(Number(json));
    if (json) raw.focus();
  }

  function parse() {
    try {
      const parsed = JSON.parse(raw.value || "{}");
      if (kind(parsed) !== "object") throw new SyntaxError("expected an object");
      return parsed;
    } catch (why) {
      fill(trouble, `Invalid JSON object: ${plain(why.message, 200)}`);
      return undefined;
    }
  }

  build(start);
  return {
    element: h("div", { class: "form" }, h("div", { class: "row apart" }, h("h2", {}, label), modes.element), trouble, place, raw),
    read: () => (asJson ? parse() : top.read() ?? {}),
    set(given) {
      build(given);
      if (asJson) raw.value = JSON.stringify(given, null, 2);
    },
    focus: () => (asJson ? raw.focus() : place.querySelector("input, textarea, select, button")?.focus()),
    /** Show errors at the fields. */
    problems() {
      fill(trouble);
      top.clear();
      const now = this.read();
      if (now === undefined) return [{ path: [], text: "invalid JSON" }];
      const found = [...(asJson ? [] : top.unread()), ...check(root, now)];
      const unplaced = found.filter((one) => asJson || !top.mark(one.path, one.text));
      if (unplaced.length) fill(trouble, h("ul", {}, unplaced.map((one) => h("li", {}, plain(`${pathText(one.path) || "The value"} ${one.text}`)))));
      if (found.length && !asJson) place.querySelector("[aria-invalid=true]")?.focus();
      return found;
    },
  };
}

function beginning(root) {
  try {
    return begin(root, root) ?? {};
  } catch {
    return {};
  }
}

function makeField(schema, root, options) {
  const one = resolve(schema, root);
  const merged = { ...options, schema: one };
  if ("const" in one) return constField(one, merged);
  if (Array.isArray(one.enum)) return enumField(one, merged);
  const titled = (one.oneOf ?? one.anyOf)?.every?.((way) => way && typeof way === "object" && "const" in way);
  if (titled) return enumField({ ...one, enum: (one.oneOf ?? one.anyOf).map((way) => way.const), names: (one.oneOf ?? one.anyOf).map((way) => way.title) }, merged);
  const ways = variants(one);
  if (ways.length > 1) return variantField(one, ways, root, merged);
  const only = ways.length === 1 ? resolve(ways[0], root) : one;
  switch (typesOf(only)[0]) {
    case "object": return optional(only, root, merged, objectField);
    case "array": return optional(only, root, merged, arrayField);
    case "boolean": return booleanField(only, merged);
    case "integer":
    case "number": return numberField(only, merged);
    case "string": return textField(only, merged);
    case "null": return constField({ ...only, const: null }, merged);
    default: return jsonField(only, merged);
  }
}

// --- layout of a field: label, control, description, errors -----------------------------------------

function frame({ name, required, schema, label }, control, extra) {
  const id = fresh("field");
  const about = h("p", { class: "about", id: `${id}-about` }, plain(schema.description ?? "", 2000));
  const problem = h("p", { class: "problem", id: `${id}-problem` });
  control.id = id;
  control.setAttribute("aria-describedby", `${id}-about ${id}-problem`);
  if (required && !control.matches("output")) control.setAttribute("aria-required", "true");
  const shown = plain(label ?? schema.title ?? name, 120);
  const element = h("div", { class: "field" },
    h("div", { class: "row" },
      h("label", { for: id }, shown || "value"), required ? star() : undefined,
      h("span", { class: "kind" }, describe(schema)), extra),
    control, schema.description ? about : undefined, problem);
  return {
    element,
    mark(path, text) {
      problem.textContent = plain(path.length ? `${pathText(path)} ${text}` : capital(text), 400);
      control.setAttribute("aria-invalid", "true");
      return true;
    },
    clear() {
      problem.textContent = "";
      control.removeAttribute("aria-invalid");
    },
    unread: () => [],
    focus: () => control.focus(),
  };
}

const star = () => h("span", { class: "needed", title: "required", "aria-hidden": "true" }, "*");
const capital = (text) => text.slice(0, 1).toUpperCase() + text.slice(1);

function describe(schema) {
  const parts = [schema.format ?? typesOf(schema).filter((type) => type !== "object").join(" or ")];
  if (schema.minimum !== undefined || schema.maximum !== undefined) parts.push(`${schema.minimum ?? "…"} to ${schema.maximum ?? "…"}`);
  else if (schema.maxLength !== undefined) parts.push(`max. ${schema.maxLength} characters`);
  return plain(parts.filter(Boolean).join(", "), 80);
}

function textField(schema, options) {
  const given = typeof options.value === "string" ? options.value : undefined;
  const long = LONG_TEXT.test(options.name ?? "") || schema.contentMediaType || given?.includes("\n");
  const type = { __proto__: null, date: "date", email: "email", uri: "url", password: "password", color: "color" }[schema.format] ?? "text";
  const hint = schema.examples?.[0] ?? { __proto__: null, "date-time": "2026-07-28T09:30:00Z", time: "09:30:00", uri: "https://…" }[schema.format] ?? "";
  const control = long
    ? h("textarea", { rows: 3, class: "wide grow", placeholder: plain(hint, 100), value: given ?? "" })
    : h("input", { type: schema.writeOnly ? "password" : type, class: "wide", placeholder: plain(hint, 100), value: given ?? "", autocomplete: "off", spellcheck: "false" });
  const now = schema.format === "date-time" ? button("now", () => { control.value = new Date().toISOString(); }, { class: "small" }) : undefined;
  const field = frame(options, control, now);
  // A required text that was never edited is missing; one that was cleared is empty.
  let edited = given === "" || options.entry;
  control.addEventListener("input", () => { edited = true; });
  const emptyIsMeant = () => edited && (options.required || given === "");
  return { ...field, read: () => (control.value === "" && !emptyIsMeant() ? undefined : control.value === "" && schema.format ? undefined : control.value) };
}

function numberField(schema, options) {
  const control = h("input", { type: "text", inputmode: "decimal", class: "short", autocomplete: "off", value: options.value ?? "", placeholder: plain(schema.examples?.[0] ?? "", 40) });
  const field = frame(options, control);
  const read = () => {
    const text = control.value.trim().replaceAll("_", "");
    if (text === "") return undefined;
    return /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(text) ? Number(text) : text;
  };
  return { ...field, read };
}

function booleanField(schema, options) {
  if (options.required || typeof (options.value ?? schema.default) === "boolean") {
    const control = h("input", { type: "checkbox", checked: (options.value ?? schema.default) === true });
    return { ...frame(options, control), read: () => control.checked };
  }
  return enumField({ ...schema, enum: [true, false] }, options);
}

function enumField(schema, options) {
  const all = schema.enum.slice(0, MOST_OPTIONS);
  const names = schema.names ?? schema.enumNames ?? [];
  const text = (value, index) => plain(names[index] ?? (typeof value === "string" ? value : JSON.stringify(value)), 120);
  const chosen = options.value === undefined ? -1 : all.findIndex((value) => same(value, options.value));
  const control = h("select", {},
    options.required && chosen >= 0 ? undefined : h("option", { value: "" }, options.required ? "Select…" : "not set"),
    all.map((value, index) => h("option", { value: String(index), selected: index === chosen }, text(value, index))));
  return { ...frame(options, control), read: () => (control.value === "" ? undefined : all[Number(control.value)]) };
}

function constField(schema, options) {
  const control = h("output", { class: "mono" }, plain(JSON.stringify(schema.const)));
  const given = options.required || options.value !== undefined;
  return { ...frame(options, control), read: () => (given ? schema.const : undefined) };
}

function jsonField(schema, options) {
  const control = h("textarea", { class: "mono wide grow", rows: 2, spellcheck: "false", placeholder: "JSON or plain text",
    value: options.value === undefined ? "" : JSON.stringify(options.value, null, 2) });
  const read = () => {
    if (control.value.trim() === "") return undefined;
    try {
      return JSON.parse(control.value);
    } catch {
      return control.value;
    }
  };
  return { ...frame({ ...options, schema: { type: "any JSON", ...schema } }, control), read };
}

function variantField(schema, ways, root, options) {
  const nullAt = ways.findIndex((way) => typesOf(resolve(way, root))[0] === "null" || resolve(way, root).const === null);
  if (nullAt >= 0 && ways.length === 2) return nullableField(schema, ways[1 - nullAt], root, options);
  const place = h("div", { class: "nested" });
  const fitting = options.value === undefined ? -1 : ways.findIndex((way) => !check(way, options.value, root).length);
  let current;
  const control = h("select", { on: { change: () => build(undefined) } },
    options.required || fitting >= 0 ? undefined : h("option", { value: "" }, "not set"),
    ways.map((way, index) => h("option", { value: String(index), selected: index === fitting }, plain(labelOf(way, root), 80))));
  const field = frame({ ...options, schema: { title: schema.title, description: schema.description } }, control);
  field.element.append(place);
  function build(value) {
    if (control.value === "") {
      current = undefined;
      return fill(place);
    }
    const way = ways[Number(control.value)];
    current = makeField(way, root, { name: options.name, label: labelOf(way, root), required: true, value: value ?? begin(way, root), depth: options.depth + 1 });
    return fill(place, current.element);
  }
  build(options.value);
  return {
    ...field,
    read: () => current?.read(),
    unread: () => current?.unread() ?? [],
    mark: (path, text) => (current ? current.mark(path, text) : field.mark(path, text)),
    clear() {
      field.clear();
      current?.clear();
    },
  };
}

function nullableField(schema, way, root, options) {
  const { title, description } = schema;
  const whole = { ...resolve(way, root), ...(title ? { title } : {}), ...(description ? { description } : {}) };
  const inner = makeField(whole, root, { ...options, value: options.value ?? undefined, required: false });
  // Omitted values are null already if null is the default.
  if (schema.default === null && !options.required) return inner;
  const box = h("input", { type: "checkbox", checked: options.value === null });
  const element = h("div", { class: "nullable" }, inner.element, h("label", { class: "null" }, box, " null"));
  return {
    ...inner,
    element,
    read() {
      if (box.checked) return null;
      const value = inner.read();
      return value === undefined && options.required ? null : value;
    },
  };
}

/** An optional nested part with buttons to add and remove it. */
function optional(schema, root, options, make) {
  if (options.required || options.value !== undefined) {
    const field = make(schema, root, options);
    if (options.required || options.entry) return field;
    return removable(schema, root, options, make, field);
  }
  return removable(schema, root, options, make, undefined);
}

function removable(schema, root, options, make, first) {
  const name = plain(schema.title ?? options.name, 80);
  const place = h("div", { class: "part" });
  let current = first;
  const open = (value) => {
    current = make(schema, root, { ...options, value });
    draw();
    place.querySelector("input, textarea, select, button")?.focus();
  };
  const draw = () => current
    ? fill(place, current.element, button(`Remove ${name}`, () => { current = undefined; draw(); place.querySelector("button").focus(); }, { class: "small" }))
    : fill(place, button(`Add ${name}`, () => open(begin(schema, root)), { class: "small add" }), " ",
        h("span", { class: "about" }, plain(schema.description ?? "", 300)), lone);
  const lone = h("p", { class: "problem" });
  draw();
  return {
    element: place,
    read: () => current?.read(),
    unread: () => current?.unread() ?? [],
    mark(path, text) {
      if (current) return current.mark(path, text);
      lone.textContent = plain(`${name} ${text}`);
      return true;
    },
    clear() {
      lone.textContent = "";
      current?.clear();
    },
    focus: () => place.querySelector("input, textarea, select, button")?.focus(),
  };
}

// --- objects and lists ----------------------------------------------------------------------------------------------

function objectField(schema, root, options) {
  const given = kind(options.value) === "object" ? options.value : {};
  const fields = new Map();
  const body = h("div", { class: options.bare ? "object" : "object nested" });
  const needed = new Set(schema.required ?? []);
  const names = Object.keys(schema.properties ?? {}).sort((a, b) => needed.has(b) - needed.has(a));
  for (const name of names) {
    const field = makeField(schema.properties[name], root, { name, required: needed.has(name), value: Object.hasOwn(given, name) ? given[name] : defaultOf(schema.properties[name], root), depth: options.depth + 1 });
    fields.set(name, field);
    body.append(field.element);
  }
  const open = schema.additionalProperties ?? (names.length === 0 && !schema.patternProperties ? undefined : false);
  const more = open === false && !schema.patternProperties ? undefined : freeProperties(open, root, given, names, options);
  if (more) body.append(more.element);
  if (!names.length && !more) body.append(h("p", { class: "about" }, "No arguments."));
  const problem = h("p", { class: "problem" });
  const legend = options.bare ? undefined : h("legend", {}, plain(options.label ?? schema.title ?? options.name, 120), options.required && !options.entry ? star() : undefined);
  const element = options.bare ? h("div", {}, body, problem)
    : h("fieldset", {}, legend, schema.description ? h("p", { class: "about" }, plain(schema.description, 2000)) : undefined, body, problem);
  return {
    element,
    read() {
      const value = {};
      for (const [name, field] of fields) {
        const inner = field.read();
        if (inner !== undefined) put(value, name, inner);
      }
      for (const [name, inner] of more?.read() ?? []) put(value, name, inner);
      return value;
    },
    unread: () => [...fields].flatMap(([name, field]) => field.unread().map((one) => ({ ...one, path: [name, ...one.path] }))),
    mark(path, text) {
      const field = path.length ? fields.get(path[0]) : undefined;
      if (field) return field.mark(path.slice(1), text);
      problem.textContent = plain(`${pathText(path)} ${text}`);
      return !options.bare || path.length > 0;
    },
    clear() {
      problem.textContent = "";
      for (const field of fields.values()) field.clear();
    },
    focus: () => body.querySelector("input, textarea, select, button")?.focus(),
  };
}

const defaultOf = (schema, root) => resolve(schema, root).default;

/** Additional properties. */
function freeProperties(schema, root, given, names, options) {
  const rows = new Map();
  const list = h("div", { class: "free" });
  const add = (name, value) => {
    const key = h("input", { type: "text", class: "short", placeholder: "name", value: name, "aria-label": "Property name" });
    const field = makeField(schema === true ? {} : schema ?? {}, root, { name: "value", required: false, value, depth: options.depth + 1, entry: true });
    const row = h("div", { class: "entry" }, key, field.element, button("✕", () => { rows.delete(row); row.remove(); }, { class: "plain", "aria-label": "Remove property" }));
    rows.set(row, { key, field });
    list.append(row);
    return key;
  };
  for (const [name, value] of Object.entries(given)) if (!names.includes(name)) add(name, value);
  return {
    element: h("div", {}, list, button("Add property", () => add("", undefined).focus(), { class: "small add" })),
    read: () => [...rows.values()].map(({ key, field }) => [key.value, field.read()]).filter(([name, value]) => name && value !== undefined),
  };
}

function arrayField(schema, root, options) {
  const items = resolve(schema.items ?? {}, root);
  if (Array.isArray(items.enum) && items.enum.length <= 30 && !schema.prefixItems) return choicesField(schema, items, options);
  const entries = [];
  const list = h("ol", { class: "entries" });
  const first = schema.prefixItems ?? [];
  const redraw = () => fill(list, entries.map((entry, index) => {
    entry.number.textContent = String(index + 1);
    return entry.element;
  }));
  const add = (value) => {
    const way = entries.length < first.length ? first[entries.length] : schema.items ?? {};
    const name = `${plain(options.name, 60)} ${entries.length + 1}`;
    const field = makeField(way, root, { name, required: true, value: value === undefined ? begin(way, root) : value, depth: options.depth + 1, entry: true });
    const entry = { field, number: h("span", { class: "quiet number" }) };
    const move = (by) => {
      const at = entries.indexOf(entry);
      if (at + by < 0 || at + by >= entries.length) return;
      entries.splice(at, 1);
      entries.splice(at + by, 0, entry);
      redraw();
    };
    entry.element = h("li", { class: "entry" }, entry.number, field.element,
      button("↑", () => move(-1), { class: "plain", "aria-label": "Move up" }),
      button("✕", () => { entries.splice(entries.indexOf(entry), 1); redraw(); }, { class: "plain", "aria-label": "Remove item" }));
    entries.push(entry);
    redraw();
    return field;
  };
  for (const value of Array.isArray(options.value) ? options.value : []) add(value);
  while (entries.length < Math.min(schema.minItems ?? 0, 20) || (options.required && entries.length < first.length)) add(undefined);
  const problem = h("p", { class: "problem" });
  const element = h("fieldset", {},
    h("legend", {}, plain(options.label ?? schema.title ?? options.name, 120), options.required && !options.entry ? star() : undefined),
    schema.description ? h("p", { class: "about" }, plain(schema.description, 2000)) : undefined, list,
    button("Add item", () => add(undefined).focus(), { class: "small add" }), problem);
  return {
    element,
    read: () => entries.map((entry) => entry.field.read() ?? null),
    unread: () => entries.flatMap((entry, index) => entry.field.unread().map((one) => ({ ...one, path: [index, ...one.path] }))),
    mark(path, text) {
      if (path.length && entries[path[0]]) return entries[path[0]].field.mark(path.slice(1), text);
      problem.textContent = capital(plain(text));
      return true;
    },
    clear() {
      problem.textContent = "";
      for (const entry of entries) entry.field.clear();
    },
    focus: () => element.querySelector("input, textarea, select, button")?.focus(),
  };
}

/** A list of enumerated values: checkboxes. */
function choicesField(schema, items, options) {
  const chosen = Array.isArray(options.value) ? options.value : [];
  const boxes = items.enum.map((value) => [value, h("input", { type: "checkbox", checked: chosen.some((one) => same(one, value)) })]);
  const problem = h("p", { class: "problem" });
  const element = h("fieldset", {}, h("legend", {}, plain(options.label ?? schema.title ?? options.name, 120)),
    schema.description ? h("p", { class: "about" }, plain(schema.description, 2000)) : undefined,
    h("div", { class: "choices" }, boxes.map(([value, box]) => h("label", {}, box, " ", plain(typeof value === "string" ? value : JSON.stringify(value), 80)))), problem);
  return {
    element,
    read() {
      const all = boxes.filter(([, box]) => box.checked).map(([value]) => value);
      return all.length || options.required ? all : undefined;
    },
    unread: () => [],
    mark(_, text) {
      problem.textContent = capital(text);
      return true;
    },
    clear: () => { problem.textContent = ""; },
    focus: () => boxes[0]?.[1].focus(),
  };
}
