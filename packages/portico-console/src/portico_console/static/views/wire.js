// All messages of both hops, grouped by round trip: request, notifications, response.

import { ask, button, empty, fill, h, later, plain, save, sheet, size, span, visible } from "../dom.js";
import { makeTree } from "../tree.js";
import { viewTrips, within } from "../service.js";

const MOST_TRIPS = 400;

export function view(place, app, rest) {
  const trips = new Map();
  const list = h("div", { class: "trips" });
  const find = h("input", { type: "search", placeholder: "Filter by method, name or text", "aria-label": "Filter messages", class: "grow-1" });
  const hop = h("select", { "aria-label": "Connection" }, [["", "All connections"], ["client", "Clients"], ["target", "Console"], ["upstream", "Upstreams"]].map(([value, text]) => h("option", { value }, text)));
  const errors = h("input", { type: "checkbox", id: "only-errors" });
  const views = h("input", { type: "checkbox", id: "with-views" });
  const count = h("span", { class: "quiet", role: "status" });
  const note = h("p", { class: "quiet", hidden: true }, "Shows traffic of the worker that serves this console only.");
  let paused = false;
  const hold = button("Pause", () => {
    paused = !paused;
    hold.textContent = paused ? "Resume" : "Pause";
    if (!paused) draw();
  });
  fill(place, sheet("Traffic", [hold, exporter(app), button("Clear", async () => {
    if (!(await ask("Clear messages", "All recorded messages are deleted.", "Clear"))) return;
    await within(list, () => app.call("clear_wire"));
    trips.clear();
    draw();
  })], h("div", { class: "row" }, find, hop, h("label", {}, errors, " errors only"), h("label", { title: "Requests that the views of this page make to show their data" }, views, " requests of views"), count), note, list));

  const take = (messages) => {
    for (const message of messages) {
      let trip = trips.get(message.trip);
      if (!trip) trips.set(message.trip, (trip = { key: message.trip, messages: [], sought: "" }));
      trip.messages.push(message);
      trip.sought += `${message.method ?? ""} ${message.name ?? ""} ${message.peer} ${message.text.slice(0, 2000)} `.toLowerCase();
      trip.failed ||= message.error;
      trip.element = undefined;
    }
    while (trips.size > MOST_TRIPS) trips.delete(trips.keys().next().value);
    if (!paused) soon();
  };

  const draw = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = [...trips.values()].filter((trip) => (views.checked || !isOfView(trip)) && (!errors.checked || trip.failed) && (!hop.value || trip.messages[0].hop === hop.value) && words.every((word) => trip.sought.includes(word))).reverse();
    count.textContent = shown.length === trips.size ? `${trips.size} exchanges` : `${shown.length} of ${trips.size} exchanges`;
    if (!shown.length) return void fill(list, empty("No messages", trips.size ? "No messages match the filter." : "Messages appear here as they are sent. Run a tool or connect a client."));
    const open = new Set([...list.querySelectorAll("details.trip[open]")].map((one) => one.dataset.key));
    for (const trip of shown) trip.element ??= makeTrip(app, trip, open.has(trip.key));
    // Only new rows are inserted, so that visible ones do not move.
    list.replaceChildren(...shown.map((trip) => trip.element));
  };
  const soon = later(draw, 60);
  find.addEventListener("input", soon);
  hop.addEventListener("change", draw);
  errors.addEventListener("change", draw);
  views.addEventListener("change", draw);

  const seen = new Set();
  const fresh = (messages) => messages.filter((one) => !seen.has(one.id) && seen.add(one.id));
  within(list, async () => {
    const { messages, one_worker } = await app.call("wire", { limit: 500 });
    note.hidden = !one_worker;
    take(fresh(messages));
    draw();
    const all = [...trips.values()];
    const wanted = rest[0] && (all.find((trip) => trip.key === rest[0]) ?? all.findLast((trip) => trip.messages[0].name === rest[1]));
    if (wanted?.element) { wanted.element.open = true; wanted.element.scrollIntoView({ block: "center" }); wanted.element.querySelector("summary").focus(); }
  });
  const off = app.on("wire", ({ messages }) => take(fresh(messages)));
  return { leave: off, refresh() {}, go() {} };
}

// A call that a user started at the same time is among a view's requests, but rarely of the same tool.
const isOfView = ({ key, messages: [first] }) => viewTrips.has(key) && viewTrips.get(key) === first.name;

function makeTrip(app, trip, open) {
  const first = trip.messages[0];
  const last = trip.messages.at(-1);
  const took = trip.messages.find((one) => one.seconds !== null && one.seconds !== undefined)?.seconds;
  const status = trip.failed ? ["error", "bad"] : last.kind === "response" ? ["ok", "good"] : first.kind === "notification" ? ["notice", ""] : ["waiting", "warn"];
  const body = h("div", {});
  const element = h("details", { class: `trip ${trip.failed ? "failed" : ""}`, open, data: { key: trip.key } },
    h("summary", {}, h("span", { class: "quiet mono" }, clock(first.at)), h("span", { class: "quiet peer" }, first.peer === "self" ? "console" : plain(first.peer, 24)),
      h("span", { class: "name" }, h("strong", {}, plain(first.method ?? first.http?.method ?? first.kind, 60)), " ", plain(first.name ?? first.http?.path ?? spoken(first), 160)),
      h("span", { class: "quiet ms" }, took === undefined ? "" : span(took * 1000)), h("span", { class: `badge ${status[1]}` }, status[0])), body);
  const build = () => { if (element.open && !body.firstChild) fill(body, trip.messages.map((one) => makeMessage(app, one))); };
  element.addEventListener("toggle", build);
  build();
  return element;
}

/** Summarise a notification. */
function spoken({ kind, text }) {
  if (kind !== "notification") return "";
  try {
    const { data, message, uri } = JSON.parse(text).params ?? {};
    const said = data ?? message ?? uri ?? "";
    return typeof said === "string" ? said : JSON.stringify(said);
  } catch {
    return "";
  }
}

const clock = (at) => new Date(at * 1000).toISOString().slice(11, 19);

function makeMessage(app, message) {
  const body = h("div", {});
  const drawBody = (text) => {
    try {
      fill(body, text ? makeTree(JSON.parse(text), { label: "Message", open: 3 }) : undefined);
    } catch {
      fill(body, h("pre", {}, visible(text.slice(0, 20000))));
    }
  };
  if (message.cut) fill(body, button(`Show message (${size(message.size)})`, () => within(body, async () => drawBody((await app.call("wire_message", { id: message.id })).text)), { class: "small" }));
  else drawBody(message.text);
  const headers = message.http?.headers?.length ? h("details", { class: "headers" }, h("summary", {}, `${plain(message.http.method ?? "", 10)} ${plain(message.http.path ?? "", 100)} ${message.status ?? ""} · ${message.http.headers.length} headers`),
    message.http.headers.map(([name, value]) => h("div", {}, plain(name, 80), ": ", plain(value, 600)))) : undefined;
  return h("div", { class: "message" }, h("div", { class: "row" }, h("span", { class: "arrow", "aria-hidden": "true" }, message.way === "sent" ? "→" : "←"), h("strong", {}, message.way), h("span", { class: "quiet" }, `${message.kind} · ${size(message.size)} · ${clock(message.at)}`)), headers, body);
}

function exporter(app) {
  const select = h("select", { "aria-label": "Export messages as" }, h("option", { value: "" }, "Export…"), [["transcript", "Replay transcript"], ["jsonl", "JSON lines"], ["text", "Text"]].map(([value, text]) => h("option", { value }, text)));
  select.addEventListener("change", async () => {
    const form = select.value;
    select.value = "";
    const said = form && await within(document.createElement("div"), () => app.call("export_wire", { form }));
    if (said) save(said.name, said.text, said.type);
  });
  return select;
}
