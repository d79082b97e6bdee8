// Entry point: authentication, then the shell.

import { button, fill, h, plain, say } from "./dom.js";
import { call, signIn } from "./mcp.js";
import { startShell } from "./shell.js";

applyScheme();
start();

async function start() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  const query = new URLSearchParams(location.search);
  if (token || query.has("state")) {
    // First of all: the token must not be visible, stored in the history, or copied with the URL.
    history.replaceState(null, "", location.pathname);
    try {
      await signIn(token ?? await (await import("./oauth.js")).comeBack(query));
    } catch (why) {
      // The key of an earlier visit may still be valid.
      say(why.message, "bad");
    }
  }
  try {
    await startShell(await call("about"), door);
  } catch (why) {
    if (why.status === 401) door(why);
    else broken(why);
  }
}

/** The page for users without a key. */
function door(why) {
  document.getElementById("side").replaceChildren(h("div", { class: "brand" }, "Portico"));
  const field = h("input", { type: "password", id: "token", class: "wide", autocomplete: "current-password" });
  const problem = h("p", { class: "problem", role: "alert" });
  const login = h("div", {});
  if (why.data?.scope) offerLogin(login, why.data.scope, problem).catch(() => {});
  const enter = async (event) => {
    event.preventDefault();
    try {
      await signIn(field.value.trim());
      await startShell(await call("about"), door);
    } catch (refused) {
      fill(problem, plain(refused.message));
      field.focus();
    }
  };
  fill(document.getElementById("main"), h("div", { class: "door" }, h("h1", {}, "Sign in"),
    h("p", { class: "quiet" }, plain(why.how ?? "Open the link that portico printed at startup, or enter the token.", 600)),
    h("form", { class: "stack", on: { submit: enter } }, h("label", { for: "token" }, "Token"), field, problem, h("div", {}, h("button", { type: "submit", class: "primary" }, "Sign in"))), login));
  field.focus();
}

/** The login button, if the server has a login. */
async function offerLogin(place, scope, problem) {
  const { findLogin, goThere } = await import("./oauth.js");
  const found = await findLogin();
  if (found) fill(place, button("Log in", () => goThere(found, scope).catch((refused) => fill(problem, plain(refused.message)))));
}

function broken(why) {
  fill(document.getElementById("main"), h("div", { class: "door" }, h("h1", {}, "The console failed to load"), h("p", { role: "alert" }, plain(why.message, 600)),
    h("div", {}, button("Retry", () => location.reload(), { class: "primary" }))));
}

function applyScheme() {
  const kept = localStorage.getItem("portico-console-scheme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.scheme = kept;
}
