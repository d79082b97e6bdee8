// Connected clients and worker processes.

import { fill, h, number, plain, span } from "../dom.js";
import { makeTable } from "../results.js";
import { within } from "../service.js";

export function view(place, app) {
  const sessions = h("div", { class: "card" });
  const workers = h("div", { class: "card" });
  fill(place, h("div", { class: "page" }, h("h1", {}, "Sessions"), app.has("sessions") ? sessions : undefined, app.has("workers") ? workers : undefined));
  const drawSessions = (said) => fill(sessions, h("h2", {}, `Sessions: ${number(said.total ?? said.sessions.length)}`), h("p", { class: "about" }, "Only clients of protocol versions with a handshake have sessions; 2026-07-28 clients are stateless and not listed."),
    said.sessions.length ? makeTable(said.sessions, { columns: [["client", "Client", (value) => plain(value ? `${value.name} ${value.version ?? ""}` : "–", 80)], ["principal", "Principal", (value) => plain(value ?? "–", 60)], ["revision", "Protocol version"], ["address", "Address"], ["endpoint", "Endpoint"], ["idle", "Idle", (value) => span((value ?? 0) * 1000)], ["listens", "Subscribed", (value) => (value ? "yes" : "no")]] }) : h("p", { class: "quiet" }, "No active sessions."));
  const loadWorkers = () => within(workers, async () => {
    const said = await app.call("workers");
    fill(workers, h("h2", {}, `Workers: ${said.workers.length}`), makeTable(said.workers));
  });
  if (app.has("sessions")) within(sessions, async () => drawSessions(await app.call("sessions")));
  if (app.has("workers")) loadWorkers();
  const off = app.has("sessions") ? app.on("sessions", (said) => { drawSessions(said); if (app.has("workers")) loadWorkers(); }) : undefined;
  return { leave: off, refresh() {}, go() {} };
}
