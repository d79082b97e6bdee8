// One call of a tool, resource or prompt: progress, cancellation and result.

import { button, clearErrors, copy, fill, h, plain, say, show, span } from "./dom.js";

const MOST_LINES = 500;
const FORMS = [["curl", "curl"], ["portico", "portico call"], ["pytest", "pytest test"], ["python", "Python"], ["json", "JSON"]];

/** request: {tool: of the console, args, name}; draw(result) renders a successful result; over(said) is called at the end. */
export function makeRun(app, request, draw, { again, reuse, over } = {}) {
  const stop = new AbortController();
  const bar = h("progress", { max: 1, "aria-label": "Progress" });
  const doing = h("span", { class: "quiet" });
  const lines = h("div", { class: "loglines", role: "log", "aria-label": "Log", tabindex: "0", hidden: true });
  const state = h("span", { class: "badge accent" }, "running");
  const cancel = button("Cancel", () => stop.abort(), { class: "small" });
  const tools = h("div", { class: "row" }, cancel);
  const outcome = h("div", {});
  const began = performance.now();
  const head = h("div", { class: "row apart" }, h("div", { class: "row" }, state, doing), tools);
  const element = h("section", { class: "card result", "aria-label": "Run", "aria-busy": "true" }, head, bar, lines, outcome);

  function hear(method, params) {
    if (method === "notifications/progress") {
      if (typeof params.total === "number" && params.total > 0) {
        bar.max = params.total;
        bar.value = params.progress;
      }
      doing.textContent = plain([params.message, params.total ? `${params.progress} of ${params.total}` : params.progress].filter((one) => one !== undefined && one !== "").join(" · "), 300);
    } else if (method === "notifications/message" && params.logger === "log") addLine(params.data ?? {});
  }

  function addLine(line) {
    const text = typeof line.data === "string" ? line.data : JSON.stringify(line.data);
    lines.hidden = false;
    lines.append(h("div", { class: plain(line.level, 20).replace(/\W/g, "") }, plain(`${line.level ?? "info"}  ${text}`, 2000)));
    if (lines.children.length > MOST_LINES) lines.firstElementChild.remove();
    lines.scrollTop = lines.scrollHeight;
  }

  async function go() {
    try {
      const result = await app.call(request.tool, request.args, { signal: stop.signal, notice: hear });
      finish(result);
    } catch (why) {
      end(why.name === "AbortError" ? ["cancelled", "warn"] : ["failed", "bad"]);
      element.classList.add("failed");
      fill(outcome, h("p", { role: "alert" }, why.name === "AbortError" ? "Cancelled." : plain(why.message, 4000)));
    }
  }

  function finish(said) {
    end(said.ok ? ["done", "good"] : ["failed", "bad"], said);
    if (!said.ok) element.classList.add("failed");
    if (said.error) fill(outcome, h("p", { role: "alert", class: "breakable" }, h("strong", {}, `Error ${plain(said.error.code, 12)}: `), plain(said.error.message, 4000)), said.error.data === undefined || said.error.data === null ? undefined : h("pre", { class: "block" }, plain(JSON.stringify(said.error.data, null, 2), 20000)));
    else fill(outcome, draw(said.result ?? {}));
  }

  function end([text, colour], said) {
    element.setAttribute("aria-busy", "false");
    bar.remove();
    state.className = `badge ${colour}`;
    state.textContent = text;
    const took = said?.seconds === undefined ? performance.now() - began : said.seconds * 1000;
    doing.textContent = [span(took), said?.rounds > 1 ? `${said.rounds} rounds` : undefined].filter(Boolean).join(" · ");
    fill(tools, again ? button("Run again", again, { class: "small" }) : undefined, reuse ? button("Edit", reuse, { class: "small" }) : undefined,
      app.has("wire") ? button("Messages", () => app.goto("wire", String(said?.trips?.[0] ?? "last"), request.name), { class: "small" }) : undefined);
    clearErrors();
    say(`${request.name}: ${text}`);
    over?.(said);
  }

  go();
  return { element };
}

/** A menu with the formats to copy a call in; the server generates the texts. */
export function copyMenu(app, request) {
  const select = h("select", { "aria-label": "Copy call as" }, h("option", { value: "" }, "Copy as…"), FORMS.map(([value, text]) => h("option", { value }, text)));
  select.addEventListener("change", async () => {
    const form = select.value;
    select.value = "";
    const args = request();
    if (!form || args === undefined) return;
    try {
      const { text } = await app.call("copy_as", { ...args, form });
      await copy(text, "Call copied");
    } catch (why) {
      say(why.message, "bad");
    }
  });
  return select;
}

export function saveButton(app, request) {
  return button("Save", () => {
    const call = request();
    if (call === undefined) return;
    const title = h("input", { type: "text", class: "wide", id: "saved-title", value: call.name });
    const keep = async (event) => {
      event.preventDefault();
      try {
        await app.call("save_call", { call: { ...call, title: title.value || call.name } });
        dialog.close();
        say("Saved");
      } catch (why) {
        say(why.message, "bad");
      }
    };
    const dialog = show("Save call", h("form", { class: "stack", on: { submit: keep } }, h("label", { for: "saved-title" }, "Name"), title, h("div", { class: "row end" }, h("button", { type: "submit", class: "primary" }, "Save"))));
    title.select();
  });
}

/** Recent runs by name, newest first, which stay open while others are shown. `leave` ends the running ones. */
export function makeRuns() {
  const place = h("div", { class: "stack", "aria-live": "off" });
  const runs = [];
  const drop = async (run) => {
    await run.leave?.();
    run.element.remove();
  };
  return {
    element: place,
    leave: () => Promise.all(runs.map((run) => run.leave?.())),
    add(run) {
      place.prepend(run.element);
      run.element.scrollIntoView({ block: "nearest" });
      runs.unshift(run);
      runs.splice(10).forEach(drop);
    },
  };
}
