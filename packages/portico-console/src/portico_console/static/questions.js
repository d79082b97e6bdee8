// Server-to-client requests during a call: forms, URLs, sampling and roots. The user answers all of them here, in any
// view.

import { button, h, link, plain, say } from "./dom.js";
import { makeForm } from "./form.js";
import { showBlock } from "./results.js";

const ROOTS = "portico-console-roots";
const PATIENCE = 120;

/** Calls started by a view, for which roots are not requested from the user. */
export const withoutPerson = new Set();

export function watchQuestions(app, place) {
  const shown = new Map();
  // Roots are requested in every call. The user enters them once.
  const byItself = async (question) => {
    if (question.kind !== "roots") return false;
    await new Promise((resolve) => setTimeout(resolve, PATIENCE));
    const kept = sessionStorage.getItem(`${ROOTS} ${question.target}`);
    if (!kept && !withoutPerson.has(question.run)) return false;
    await app.call("answer", { question: question.id, action: "accept", content: { roots: JSON.parse(kept ?? "[]") } }).catch(() => {});
    return true;
  };
  const take = ({ questions }) => {
    const open = new Set(questions.map((one) => one.id));
    for (const [id, card] of shown) if (!open.has(id)) { card.remove(); shown.delete(id); }
    for (const question of questions) {
      if (shown.has(question.id)) continue;
      const card = makeCard(app, question, () => { card.remove(); shown.delete(question.id); });
      shown.set(question.id, card);
      present(question, card);
    }
  };
  const present = async (question, card) => {
    if (await byItself(question) || shown.get(question.id) !== card) return;
    place.append(card);
    say("New request from the server");
    if (!document.activeElement || document.activeElement === document.body || document.activeElement.closest("button")) card.querySelector("input, textarea, select, button")?.focus();
  };
  app.on("questions", take);
  app.call("list_questions").then(take).catch(() => {});
}

function makeCard(app, question, gone) {
  const kinds = { elicitation: "Elicitation request", sampling: "Sampling request", roots: "Roots request" };
  const answer = async (action, content) => {
    try {
      await app.call("answer", { question: question.id, action, ...(content === undefined ? {} : { content }) });
      gone();
    } catch (why) {
      say(why.message, "bad");
    }
  };
  const body = { elicitation: elicitation, sampling: sampling, roots: roots }[question.kind] ?? elicitation;
  return h("section", { class: "card question", style: { margin: "14px 24px 0" }, "aria-label": kinds[question.kind] ?? "Server request" },
    h("h2", {}, kinds[question.kind] ?? "Elicitation request", question.name ? [" from ", h("code", {}, plain(question.name, 120))] : undefined), body(question, answer));
}

const choices = (accept, text, answer) => h("div", { class: "row" }, button(text, accept, { class: "primary" }),
  button("Decline", () => answer("decline")), button("Cancel", () => answer("cancel"), { class: "plain" }));

function elicitation(question, answer) {
  const message = h("p", { class: "breakable" }, plain(question.message, 4000));
  if (question.mode === "url") return h("div", { class: "stack" }, message, h("p", {}, "Open this URL: ", link(question.url)), choices(() => answer("accept"), "Done", answer));
  const form = makeForm(question.schema ?? {}, { label: "Submit" });
  return h("div", { class: "stack" }, message, form.element, choices(() => {
    if (!form.problems().length) answer("accept", form.read());
  }, "Submit", answer));
}

function sampling(question, answer) {
  const params = question.params ?? {};
  const text = h("textarea", { rows: 4, class: "wide grow", "aria-label": "Model response" });
  const said = (Array.isArray(params.messages) ? params.messages : []).slice(0, 50).map((one) => h("div", { class: "stack" }, h("span", { class: "badge" }, plain(one.role, 20)), (Array.isArray(one.content) ? one.content : [one.content]).map((block) => showBlock(block))));
  return h("div", { class: "stack" }, params.systemPrompt ? h("p", { class: "about" }, plain(params.systemPrompt, 4000)) : undefined, said,
    h("label", {}, "Model response", text), choices(() => answer("accept", { text: text.value }), "Submit", answer));
}

function roots(question, answer) {
  const field = h("textarea", { rows: 3, class: "mono wide", placeholder: "file:///home/me/project", "aria-label": "Roots, one file:// URI per line" });
  return h("div", { class: "stack" }, h("p", {}, "Enter one file:// URI per line, or leave empty for no roots. Reused for this server until you close the tab."), field, choices(() => {
    const all = field.value.split("\n").map((line) => line.trim()).filter(Boolean);
    const given = all.map((uri) => ({ uri, name: uri.split("/").filter(Boolean).pop() ?? uri }));
    sessionStorage.setItem(`${ROOTS} ${question.target}`, JSON.stringify(given));
    answer("accept", { roots: given });
  }, "Submit", answer));
}
