// Built-in services are used as by any client: through their tools at the target.

import { fill, h, plain } from "./dom.js";
import { Refusal } from "./mcp.js";
import { withoutPerson } from "./questions.js";

export const offers = (app, service, word) => app.target.services?.[service]?.[word] !== undefined;

/** Message ids of requests sent by views, with their tool; Traffic hides them by default. */
export const viewTrips = new Map(readTrips());
const MOST_VIEW_TRIPS = 1000;

export async function use(app, service, word, args = {}) {
  const name = app.target.services?.[service]?.[word];
  if (!name) throw new Refusal(`This server does not provide ${word}.`);
  const said = await app.call("call_tool", { target: app.target.id, name, arguments: args }, { notice: byItself });
  for (const trip of said.trips ?? []) viewTrips.set(trip, name);
  while (viewTrips.size > MOST_VIEW_TRIPS) viewTrips.delete(viewTrips.keys().next().value);
  // For the page after a reload: the server still has the messages.
  sessionStorage.setItem("view-trips", JSON.stringify([...viewTrips]));
  if (said.error) throw new Refusal(said.error.message);
  if (said.result?.isError) throw new Refusal(said.result.content?.[0]?.text ?? "The call failed.");
  const data = said.result?.structuredContent;
  if (data !== undefined) return data;
  throw new Refusal("The tool returned no structured content. Call it from the Tools view to see the raw result.");
}

function readTrips() {
  try {
    const stored = JSON.parse(sessionStorage.getItem("view-trips") ?? "[]");
    return Array.isArray(stored) ? stored.filter((one) => Array.isArray(one) && one.length === 2) : [];
  } catch {
    return [];
  }
}

// A view polls, so a request for roots must not open a dialog.
const byItself = (method, { logger, data }) => {
  if (method === "notifications/message" && logger === "run") withoutPerson.add(data.run);
};

/** Run work and show its error in an element. */
export async function within(place, work) {
  try {
    return await work();
  } catch (why) {
    if (why.name !== "AbortError") fill(place, h("p", { role: "alert", class: "problem" }, plain(why.message, 2000)));
    return undefined;
  }
}
