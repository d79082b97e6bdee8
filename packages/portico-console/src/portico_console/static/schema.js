// JSON Schema for a form: references, validation, initial values. The server validates in the end; this shows errors
// earlier, at the field. Unsupported keywords are left to the server.

const DEEPEST = 64;
const MOST_PROBLEMS = 50;

/** Resolve a schema: references followed, allOf merged. */
export function resolve(schema, root) {
  let found = schema;
  for (let steps = 0; found && typeof found === "object" && typeof found.$ref === "string"; steps++) {
    if (steps > DEEPEST) return {};
    const { $ref, ...beside } = found;
    const target = lookUp($ref, root);
    if (target === undefined) return { ...beside };
    found = typeof target === "object" ? { ...target, ...beside } : target;
  }
  if (found === true || found === undefined || found === null) return {};
  if (found === false) return { not: {} };
  return Array.isArray(found.allOf) ? merge(found, root) : found;
}

function lookUp(reference, root) {
  if (reference === "#") return root;
  if (!reference.startsWith("#/")) {
    const anchor = reference.slice(1);
    return Object.values(root?.$defs ?? {}).find((one) => one?.$anchor === anchor);
  }
  let place = root;
  for (const part of reference.slice(2).split("/")) {
    const key = decode(part).replaceAll("~1", "/").replaceAll("~0", "~");
    if (place === null || typeof place !== "object" || !Object.hasOwn(place, key)) return undefined;
    place = place[key];
  }
  return place;
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function merge(schema, root, depth = 0) {
  if (depth > 8) return schema;
  const { allOf, ...whole } = schema;
  for (const one of allOf) {
    const part = resolve(one, root);
    for (const [key, value] of Object.entries(part)) {
      if (key === "properties") whole.properties = { ...whole.properties, ...value };
      else if (key === "required") whole.required = [...new Set([...(whole.required ?? []), ...value])];
      else if (!(key in whole)) whole[key] = value;
    }
  }
  return whole;
}

export function kind(value) {
  if (value === null) return "null";
  if (Array.isArray(value)) return "array";
  if (typeof value === "number") return Number.isInteger(value) ? "integer" : "number";
  return typeof value;
}

export const typesOf = (schema) => (Array.isArray(schema.type) ? schema.type : schema.type ? [schema.type] : implied(schema));

function implied(schema) {
  if (schema.properties || schema.required || schema.additionalProperties !== undefined) return ["object"];
  if (schema.items || schema.prefixItems) return ["array"];
  return [];
}

/** The alternatives of a schema: of oneOf or anyOf, or one per type. Empty if there is only one. */
export function variants(schema) {
  const given = schema.oneOf ?? schema.anyOf;
  if (Array.isArray(given) && given.length) {
    const rest = Object.fromEntries(["properties", "required", "type", "additionalProperties"].filter((key) => key in schema).map((key) => [key, schema[key]]));
    return given.map((one) => (rest.properties ? { allOf: [one, rest] } : one));
  }
  const types = typesOf(schema);
  return types.length > 1 ? types.map((type) => ({ ...schema, type })) : [];
}

export function labelOf(schema, root) {
  const one = resolve(schema, root);
  if (one.title) return one.title;
  if ("const" in one) return JSON.stringify(one.const);
  const marker = Object.entries(one.properties ?? {}).find(([, value]) => value && typeof value === "object" && "const" in value);
  if (marker) return `${marker[0]}: ${marker[1].const}`;
  if (schema?.$ref) return String(schema.$ref).split("/").pop();
  const types = typesOf(one);
  if (types[0] === "array") return `list of ${one.items ? labelOf(one.items, root) : "anything"}`;
  if (one.enum) return "enum";
  return types.join(" or ") || "anything";
}

/** The initial value: the default, the only possible value, or the empty value of the type. */
export function begin(schema, root, depth = 0) {
  const one = resolve(schema, root);
  if (one.default !== undefined) return structuredClone(one.default);
  if ("const" in one) return one.const;
  if (depth > 6) return undefined;
  const ways = variants(one);
  if (ways.length) return begin(ways[0], root, depth + 1);
  switch (typesOf(one)[0]) {
    case "object": {
      const value = {};
      for (const name of one.required ?? []) {
        const inner = begin(one.properties?.[name] ?? {}, root, depth + 1);
        if (inner !== undefined) put(value, name, inner);
      }
      for (const [name, inner] of Object.entries(one.properties ?? {})) {
        if (!Object.hasOwn(value, name) && inner?.default !== undefined) put(value, name, structuredClone(inner.default));
      }
      return value;
    }
    case "array":
      return [];
    case "null":
      return null;
    default:
      return undefined;
  }
}

/** Set a key safely: foreign keys may be `__proto__`. */
export function put(object, key, value) {
  Object.defineProperty(object, key, { value, writable: true, enumerable: true, configurable: true });
}

/** Validate a value: [{path, text}], empty if it is valid. */
export function check(schema, value, root = schema) {
  const problems = [];
  try {
    examine(schema, value, root, [], problems, 0);
  } catch {
    // Not a schema: leave validation to the server.
  }
  return problems.slice(0, MOST_PROBLEMS);
}

function examine(schema, value, root, path, problems, depth) {
  if (depth > DEEPEST || problems.length >= MOST_PROBLEMS || schema === true || schema === undefined) return;
  const say = (text, where = path) => problems.push({ path: where, text });
  if (schema === false) return void say("no value is allowed here");
  const one = resolve(schema, root);
  const types = Array.isArray(one.type) ? one.type : one.type ? [one.type] : [];
  const its = kind(value);
  if (types.length && !types.some((type) => type === its || (type === "number" && its === "integer"))) {
    return void say(`must be ${types.map(article).join(" or ")}, got ${article(its)}`);
  }
  if (one.enum && !one.enum.some((allowed) => same(allowed, value))) say(`must be one of ${one.enum.slice(0, 12).map((v) => JSON.stringify(v)).join(", ")}`);
  if ("const" in one && !same(one.const, value)) say(`must be ${JSON.stringify(one.const)}`);
  if (its === "string") examineText(one, value, say);
  else if (its === "integer" || its === "number") examineNumber(one, value, say);
  else if (its === "array") examineArray(one, value, root, path, problems, depth, say);
  else if (its === "object") examineObject(one, value, root, path, problems, depth, say);
  examineWays(one, value, root, path, problems, depth, say);
}

const article = (type) => ({ __proto__: null, object: "an object", array: "an array", integer: "an integer", number: "a number", string: "a string", boolean: "a boolean", null: "null" })[type] ?? String(type);

function examineText(one, value, say) {
  const length = [...value].length;
  if (length < one.minLength) say(one.minLength === 1 ? "must not be empty" : `must have at least ${one.minLength} characters`);
  if (length > one.maxLength) say(`must have at most ${one.maxLength} characters, got ${length}`);
  if (one.pattern && matches(one.pattern, value) === false) say(`must match ${one.pattern}`);
  if (one.format && FORMATS[one.format] && !FORMATS[one.format](value)) say(`must be ${FORMAT_NAMES[one.format]}`);
}

// A pattern comes from the server, and backtracking could block the page. Such patterns are left to the server.
const RISKY = /\([^)]*[+*}|][^)]*\)[+*{?]/;
function matches(pattern, value) {
  if (pattern.length > 200 || value.length > 200 || RISKY.test(pattern) || (pattern.match(/[+*{]/g) ?? []).length > 4) return undefined;
  try {
    return new RegExp(pattern, "u").test(value);
  } catch {
    return undefined;
  }
}

const date = (text) => /^\d{4}-\d\d-\d\d$/.test(text) && !Number.isNaN(Date.parse(`${text}T00:00:00Z`));
// A format is a foreign string such as "constructor": lookup tables have no prototype.
const FORMATS = {
  __proto__: null,
  date,
  "date-time": (text) => /^\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)$/.test(text) && date(text.slice(0, 10)),
  time: (text) => /^\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)?$/.test(text),
  email: (text) => /^[^\s@]+@[^\s@]+$/.test(text),
  uri: (text) => /^[A-Za-z][A-Za-z0-9+.-]*:\S*$/.test(text),
  uuid: (text) => /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(text),
  ipv4: (text) => text.split(".").length === 4 && text.split(".").every((part) => /^\d{1,3}$/.test(part) && Number(part) < 256),
};
const FORMAT_NAMES = {
  __proto__: null,
  date: "a date such as 2026-07-28", "date-time": "a timestamp such as 2026-07-28T09:30:00Z", time: "a time such as 09:30:00", email: "an e-mail address",
  uri: "a URI such as https://example.org", uuid: "a UUID", ipv4: "an IPv4 address",
};

function examineNumber(one, value, say) {
  if (value < one.minimum) say(`must be at least ${one.minimum}`);
  if (value > one.maximum) say(`must be at most ${one.maximum}`);
  if (value <= one.exclusiveMinimum) say(`must be greater than ${one.exclusiveMinimum}`);
  if (value >= one.exclusiveMaximum) say(`must be less than ${one.exclusiveMaximum}`);
  if (one.multipleOf > 0) {
    const parts = value / one.multipleOf;
    if (Math.abs(parts - Math.round(parts)) > 1e-9 * Math.max(1, Math.abs(parts))) say(`must be a multiple of ${one.multipleOf}`);
  }
}

function examineArray(one, value, root, path, problems, depth, say) {
  if (value.length < one.minItems) say(`must have at least ${one.minItems} ${one.minItems === 1 ? "item" : "items"}`);
  if (value.length > one.maxItems) say(`must have at most ${one.maxItems} items`);
  if (one.uniqueItems && value.length < 5000 && new Set(value.map((item) => canonical(item))).size < value.length) say("items must be unique");
  const first = one.prefixItems ?? [];
  value.forEach((item, index) => {
    const schema = index < first.length ? first[index] : one.items;
    if (schema !== undefined) examine(schema, item, root, [...path, index], problems, depth + 1);
  });
}

function examineObject(one, value, root, path, problems, depth, say) {
  for (const name of one.required ?? []) if (!Object.hasOwn(value, name)) say("is required", [...path, name]);
  const names = Object.keys(value);
  if (names.length < one.minProperties) say(`must have at least ${one.minProperties} properties`);
  if (names.length > one.maxProperties) say(`must have at most ${one.maxProperties} properties`);
  for (const name of names) {
    if (Object.hasOwn(one.properties ?? {}, name)) examine(one.properties[name], value[name], root, [...path, name], problems, depth + 1);
    else if (one.additionalProperties === false && !one.patternProperties) say("is not a known argument", [...path, name]);
    else if (one.additionalProperties && typeof one.additionalProperties === "object") examine(one.additionalProperties, value[name], root, [...path, name], problems, depth + 1);
  }
  for (const [name, needed] of Object.entries(one.dependentRequired ?? {})) {
    if (Object.hasOwn(value, name)) for (const other of needed) if (!Object.hasOwn(value, other)) say(`is required when ${name} is set`, [...path, other]);
  }
}

function examineWays(one, value, root, path, problems, depth, say) {
  const tried = (schema) => {
    const found = [];
    examine(schema, value, root, path, found, depth + 1);
    return found;
  };
  for (const part of one.allOf ?? []) problems.push(...tried(part));
  for (const key of ["anyOf", "oneOf"]) {
    const ways = one[key];
    if (!Array.isArray(ways) || !ways.length) continue;
    const outcomes = ways.map(tried);
    const fitting = outcomes.filter((found) => !found.length).length;
    if (!fitting) {
      // The alternative that fails deepest is most likely the intended one.
      const likely = outcomes.reduce((best, found) => (depthOf(found) > depthOf(best) || found.length < best.length && depthOf(found) === depthOf(best) ? found : best));
      problems.push(...likely);
    } else if (key === "oneOf" && fitting > 1) say("matches more than one schema of oneOf");
  }
  if (one.not && !tried(one.not).length) say("is not an allowed value");
  if (one.if !== undefined) {
    const branch = tried(one.if).length ? one.else : one.then;
    if (branch !== undefined) problems.push(...tried(branch));
  }
}

const depthOf = (found) => Math.max(0, ...found.map((problem) => problem.path.length));
const canonical = (value) => JSON.stringify(value, (_, inner) => (kind(inner) === "object" ? Object.fromEntries(Object.entries(inner).sort(([a], [b]) => (a < b ? -1 : 1))) : inner));
export const same = (a, b) => a === b || (typeof a === "object" && typeof b === "object" && canonical(a) === canonical(b));

export const pathText = (path) => path.map((part, index) => (typeof part === "number" ? `[${part}]` : index ? `.${part}` : part)).join("");
