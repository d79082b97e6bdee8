// Saved calls.

import { ask, button, empty, fill, h, plain, say, sheet, when } from "../dom.js";
import { within } from "../service.js";

const PLACES = { __proto__: null, "tools/call": "tools", "resources/read": "resources", "prompts/get": "prompts" };

export function view(place, app) {
  const list = h("div", { class: "stack" });
  fill(place, sheet("Saved calls", undefined, list));
  const load = () => within(list, async () => {
    const { saved } = await app.call("list_saved");
    fill(list, saved.length ? saved.map(row) : empty("No saved calls", "Use Save next to Run to keep a call here."));
  });
  const row = (one) => h("div", { class: "card" }, h("div", { class: "row apart" },
    h("div", {}, h("h2", {}, plain(one.title, 120)), h("p", { class: "quiet" }, h("code", { class: "breakable" }, plain(one.name, 200)), " · ", when(one.at))),
    h("div", { class: "row" }, button("Open", () => {
      app.given = one.arguments;
      const known = app.targets.some((target) => target.id === one.target) ? one.target : app.target.id;
      location.hash = `#/${encodeURIComponent(known)}/${PLACES[one.method] ?? "tools"}/${encodeURIComponent(one.name)}/saved`;
    }, { class: "primary" }), button("Delete", async () => {
      if (!(await ask("Delete saved call", `Delete “${plain(one.title, 100)}”?`, "Delete"))) return;
      await within(list, () => app.call("delete_saved", { id: one.id }));
      say("Deleted");
      load();
    }, { class: "danger" }))),
  h("pre", { class: "breakable" }, plain(JSON.stringify(one.arguments), 400)));
  load();
  return { refresh: load };
}
