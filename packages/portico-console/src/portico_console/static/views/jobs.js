// Protocol tasks: progress, steps, cancellation and retry.

import { button, empty, facts, fill, h, plain, say, sheet, show, when } from "../dom.js";
import { makeTree } from "../tree.js";
import { within } from "../service.js";

const COLOURS = { __proto__: null, completed: "good", failed: "bad", cancelled: "warn", running: "accent", waiting: "warn" };

export function view(place, app) {
  const body = h("div", { class: "stack" });
  const status = h("select", { "aria-label": "Status" }, ["", "queued", "running", "waiting", "completed", "failed", "cancelled"].map((one) => h("option", { value: one }, one || "all")));
  fill(place, sheet("Tasks", status, body));
  const load = () => within(body, async () => {
    const { jobs } = await app.call("jobs", { limit: 200, ...(status.value ? { status: status.value } : {}) });
    fill(body, jobs.length ? jobs.map((job) => row(app, job, load)) : empty("No tasks", "Tools called as tasks are listed here while they run and until their TTL expires."));
  });
  status.addEventListener("change", load);
  const again = setInterval(() => document.hidden || body.contains(document.activeElement) || load(), 1500);
  load();
  return { leave: () => clearInterval(again), refresh: load, go() {} };
}

function row(app, job, load) {
  const { progress, total, message } = job;
  const bar = h("progress", { max: total ?? 1, "aria-label": "Progress" });
  if (typeof progress === "number" && total) bar.value = progress;
  const act = (tool, said) => async () => {
    try {
      const { changed } = await app.call(tool, { id: job.id });
      say(changed ? said : "The task had already finished");
      load();
    } catch (why) {
      say(why.message, "bad");
    }
  };
  const running = !["completed", "failed", "cancelled"].includes(job.status);
  return h("article", { class: "card" }, h("div", { class: "row apart" },
    h("div", { class: "row" }, h("h2", { class: "name" }, plain(job.tool, 120)), h("span", { class: `badge ${COLOURS[job.status] ?? ""}` }, plain(job.status, 30)), h("span", { class: "quiet" }, when(job.created_at))),
    h("div", { class: "row" }, button("Open", () => open(app, job.id), { class: "small" }), running ? button("Cancel", act("cancel_job", "Cancelled"), { class: "small danger" }) : undefined, job.status === "failed" || job.status === "cancelled" ? button("Retry", act("retry_job", "Task requeued"), { class: "small" }) : undefined)),
  job.preview ? h("p", { class: "breakable" }, h("code", {}, plain(job.preview, 200))) : undefined,
  running ? bar : undefined, message ? h("p", { class: "quiet" }, plain(message, 400)) : undefined);
}

async function open(app, id) {
  const body = h("div", { class: "stack" });
  show("Task", body);
  await within(body, async () => {
    const { steps, result, arguments: args, ...rest } = await app.call("job", { id });
    fill(body, facts(Object.entries(rest).filter(([, value]) => typeof value !== "object").map(([key, value]) => [key, key.endsWith("_at") ? when(value) : value])),
      args ? [h("h3", {}, "Arguments"), makeTree(args, { label: "Arguments" })] : undefined,
      Object.keys(steps ?? {}).length ? [h("h3", {}, "Steps"), makeTree(steps, { label: "Steps" })] : undefined,
      result ? [h("h3", {}, "Result"), makeTree(result, { label: "Result" })] : undefined);
  });
}
