// An app of a server in a frame, and the messages between them (MCP Apps, 2026-01-26). The frame has an opaque origin and
// can reach only the hosts that it declares and the user allows. Its messages are untrusted: only the window of our own
// proxy is accepted, every request must be one of those below, and requests that reach outside the frame need consent,
// given next to the frame and not on top of it.

import { button, fill, h, link, plain, say } from "./dom.js";

const VERSION = "2026-01-26";
const PAGE_TYPE = "text/html;profile=mcp-app";
const LONGEST_PAGE = 8e6;
const LONGEST_HOSTS = 4000;
const TALLEST = 800;
const MOST_WAITING = 16;
const MOST_LINES = 200;
const MOST_LINKS = 20;
const MOST_STRAY = 100;
// Time for an app to end, and delay before a consent button works: a click meant for the app must not hit a button that
// has just appeared.
const PATIENCE = 500;
const MODES = ["inline", "fullscreen"];
const STYLES = {
  "--color-background-primary": "--panel", "--color-background-secondary": "--ground", "--color-background-tertiary": "--sunken",
  "--color-text-primary": "--text", "--color-text-secondary": "--quiet", "--color-text-info": "--accent", "--color-text-danger": "--bad", "--color-text-success": "--good", "--color-text-warning": "--warn",
  "--color-border-primary": "--line-strong", "--color-border-secondary": "--line", "--color-ring-primary": "--accent", "--font-sans": "--sans", "--font-mono": "--mono", "--border-radius-md": "--round",
};
const dark = matchMedia("(prefers-color-scheme: dark)");

class Denied extends Error {
  constructor(text, code = -32000, data = undefined) {
    super(text);
    Object.assign(this, { code, data });
  }
}
const wrong = (text) => new Denied(text, -32602);
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** where: members that select the server and the user; tools(): names of the tools that this app may call,
 * by the names that it may know them by. */
export function makeApp(app, { where, uri, tool, args, tools }) {
  const lines = h("div", { class: "loglines", role: "log", "aria-label": "App log", tabindex: "0", hidden: true });
  const bar = h("div", { class: "stack" });
  const box = h("div", { class: "app-place" });
  const modeButton = button("Full screen", () => setMode(mode === "inline" ? "fullscreen" : "inline"), { class: "small", hidden: true });
  const endButton = button("Close", () => end(), { class: "small", hidden: true });
  const element = h("section", { class: "app", "aria-label": `App: ${plain(tool.name, 80)}` },
    h("div", { class: "row apart" }, h("div", { class: "row" }, h("span", { class: "badge accent" }, "app"), h("code", { class: "breakable" }, plain(uri, 200))), h("div", { class: "row" }, modeButton, endButton)), bar, box, lines);
  const permits = new Map();
  const waiting = new Map();
  let asking = Promise.resolve();
  let refuse = () => {};
  let page, outcome, frame, able, met, ready, mode, sent, stray, ended;

  // --- the page, and the frame that shows it ---

  async function load() {
    const said = await app.call("read_resource", { ...where, uri });
    const found = said.result?.contents?.find((one) => one?.uri === uri) ?? said.result?.contents?.[0];
    if (!found) throw new Error(said.error?.message ?? "App resource not found.");
    if (found.mimeType !== PAGE_TYPE) throw new Error(`Unexpected content type ${plain(found.mimeType ?? "(none)", 60)}; expected ${PAGE_TYPE}.`);
    const html = typeof found.text === "string" ? found.text : decoded(found.blob);
    if (html.length > LONGEST_PAGE) throw new Error("The app exceeds the size limit.");
    return { html, wishes: wishes(found) ?? wishes((await app.items("resources").catch(() => undefined))?.items.find((one) => one.uri === uri)) ?? {} };
  }

  async function begin() {
    try {
      page ??= await load();
    } catch (why) {
      return void fill(bar, h("p", { role: "alert" }, "Failed to load the app: ", plain(why.message, 600)));
    }
    const { csp, permissions } = page.wishes;
    // Show all of them: permissions that are not visible are not granted.
    const hosts = [...new Set(["connectDomains", "resourceDomains", "frameDomains", "baseUriDomains"].flatMap((name) => (Array.isArray(csp?.[name]) ? csp[name] : [])))].join(" ");
    if (hosts.length > LONGEST_HOSTS) return void fill(bar, h("p", { role: "alert" }, "Failed to load the app: it requests too many hosts."));
    if (hosts && !await permit("hosts", "Load app", "This app requests network access to ", h("strong", { class: "breakable" }, plain(hosts, LONGEST_HOSTS)), ".")) return void stopped("App not loaded.");
    if (!element.isConnected) return void stopped("App closed.");
    [able, met, ready, mode, sent, stray, ended] = [{}, false, false, "inline", {}, 0, false];
    frame = h("iframe", { title: `App: ${plain(tool.name, 80)}` });
    frame.setAttribute("sandbox", "allow-scripts allow-forms");
    if (permissions?.clipboardWrite) frame.allow = "clipboard-write";
    frame.src = `/console/frame?${new URLSearchParams({ csp: JSON.stringify(csp ?? {}) })}`;
    box.classList.toggle("bordered", page.wishes.prefersBorder !== false);
    fill(box, frame);
    endButton.hidden = false;
    window.addEventListener("message", hear);
    window.addEventListener("resize", changed);
    dark.addEventListener("change", changed);
    looking.observe(document.documentElement, { attributeFilter: ["data-scheme"] });
  }

  /** Remove the app and cancel its pending requests. */
  function stop() {
    ended = true;
    ready = false;
    window.removeEventListener("message", hear);
    window.removeEventListener("resize", changed);
    dark.removeEventListener("change", changed);
    looking.disconnect();
    for (const one of waiting.values()) one.abort();
    waiting.clear();
    refuse();
    setMode("inline");
    frame.remove();
    endButton.hidden = modeButton.hidden = true;
  }

  function stopped(text) {
    if (frame && !ended) stop();
    fill(bar, h("div", { class: "row" }, h("p", { class: "quiet" }, plain(text, 200)), button("Reload app", () => { permits.clear(); fill(bar); begin(); }, { class: "small" })));
  }

  /** Notify the app, which then has a moment to save its state. */
  async function end() {
    if (!frame || ended) return;
    if (ready) await new Promise((done) => {
      goodbye = done;
      post({ id: "teardown", method: "ui/resource-teardown", params: {} });
      setTimeout(done, PATIENCE);
    });
    if (!ended) stopped("App closed.");
  }
  let goodbye = () => {};

  // --- messages to the app ---

  const post = (message) => frame.contentWindow?.postMessage({ jsonrpc: "2.0", ...message }, "*");
  const tell = (name, params) => post({ method: `ui/notifications/${name}`, params });

  function context() {
    const style = getComputedStyle(document.documentElement);
    const width = Math.round(frame.clientWidth);
    return {
      theme: document.documentElement.dataset.scheme ?? (dark.matches ? "dark" : "light"),
      styles: { variables: Object.fromEntries(Object.entries(STYLES).map(([name, ours]) => [name, style.getPropertyValue(ours).trim()])) },
      displayMode: mode, availableDisplayModes: MODES,
      containerDimensions: mode === "inline" ? { width, maxHeight: TALLEST } : { width, height: Math.round(frame.clientHeight) },
      locale: navigator.language, timeZone: Intl.DateTimeFormat().resolvedOptions().timeZone, userAgent: "portico", platform: "web",
      deviceCapabilities: { touch: navigator.maxTouchPoints > 0, hover: matchMedia("(hover: hover)").matches }, toolInfo: { tool },
    };
  }

  function changed() {
    if (!ready) return;
    const now = context();
    const fresh = Object.fromEntries(Object.entries(now).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(sent[name])));
    sent = now;
    if (Object.keys(fresh).length) tell("host-context-changed", fresh);
  }
  const looking = new MutationObserver(changed);

  function tellOutcome() {
    if (!ready || !outcome) return;
    if (outcome.result) tell("tool-result", plainResult(outcome.result));
    else tell("tool-cancelled", { reason: outcome.reason });
  }

  function setMode(next) {
    mode = next;
    element.classList.toggle("whole", next === "fullscreen");
    modeButton.textContent = next === "inline" ? "Full screen" : "Exit full screen";
    changed();
  }

  // --- messages from the app ---

  function hear({ source, data }) {
    if (source !== frame.contentWindow) {
      // It can post to this window directly; such messages are ignored, and a flood of them ends the app.
      if (source !== null && source === frame.contentWindow?.[0] && ++stray > MOST_STRAY) stopped("App stopped: message rate limit exceeded.");
    } else if (isObject(data) && data.jsonrpc === "2.0") take(data);
  }

  function take({ id, method, params }) {
    if (method === "ui/notifications/sandbox-proxy-ready") deliver(params);
    else if (method === "ui/notifications/sandbox-stopped") stopped(`App stopped: ${params.reason}.`);
    else if (method === undefined) { if (id === "teardown") goodbye(); }
    else if (id === undefined) NOTICES.get(method)?.(isObject(params) ? params : {});
    else if (typeof id === "number" || typeof id === "string") answer(id, method, isObject(params) ? params : {});
  }

  /** Give the page to the frame. Where the browser does not enforce Connection-Allowlist, WebRTC and blocked navigations
   * still reach any host, and nothing in the page can prevent that: then the user decides. */
  async function deliver({ contained }) {
    const view = frame;
    if (!contained && !await permit("network", "Load app", "This browser cannot keep an app from contacting other hosts, because it does not support ", h("code", {}, "Connection-Allowlist"), ". The app can send them what it is shown.")) return void (view === frame && stopped("App not loaded."));
    if (view === frame && !ended) post({ method: "ui/notifications/sandbox-resource-ready", params: { html: page.html, csp: page.wishes.csp, permissions: page.wishes.permissions } });
  }

  async function answer(id, method, params) {
    const view = frame;
    const work = new AbortController();
    const send = (message) => view === frame && !ended && post({ id, ...message });
    if (waiting.size >= MOST_WAITING || waiting.has(id)) return void send({ error: { code: -32000, message: "too many pending requests" } });
    waiting.set(id, work);
    try {
      const asked = REQUESTS.get(method);
      if (!asked) throw new Denied("method not found", -32601);
      send({ result: await asked(params, work.signal) });
    } catch (why) {
      send({ error: { code: why instanceof Denied ? why.code : -32000, message: plain(why.message, 600), data: why.data } });
    } finally {
      if (waiting.get(id) === work) waiting.delete(id);
    }
  }

  const NOTICES = new Map(Object.entries({
    "ui/notifications/initialized"() {
      if (!met || ready) return;
      ready = true;
      tell("tool-input", { arguments: args });
      tellOutcome();
      changed();
    },
    "ui/notifications/size-changed"({ height }) {
      if (Number.isFinite(height) && mode === "inline") frame.style.height = `${Math.max(20, Math.min(TALLEST, Math.ceil(height)))}px`;
    },
    "ui/notifications/request-teardown": () => end(),
    "notifications/message": ({ level, data }) => note(plain(level ?? "info", 20), data),
    "notifications/cancelled": ({ requestId }) => waiting.get(requestId)?.abort(),
  }));

  const REQUESTS = new Map(Object.entries({
    ping: () => ({}),
    "ui/initialize"({ appCapabilities, appInfo }) {
      able = isObject(appCapabilities) ? appCapabilities : {};
      modeButton.hidden = !offers("fullscreen");
      note("hello", isObject(appInfo) ? `${plain(appInfo.name, 80)} ${plain(appInfo.version, 40)}` : "");
      [sent, met, ready] = [context(), true, false];
      return {
        protocolVersion: VERSION, hostInfo: { name: "portico-console", version: plain(app.about.portico ?? "0", 40) }, hostContext: sent,
        hostCapabilities: { openLinks: {}, serverTools: {}, serverResources: {}, logging: {}, message: { text: {} }, updateModelContext: { text: {}, structuredContent: {} }, sandbox: { csp: page.wishes.csp, permissions: page.wishes.permissions?.clipboardWrite ? { clipboardWrite: {} } : {} } },
      };
    },
    "ui/request-display-mode"({ mode: wanted }) {
      if (MODES.includes(wanted) && offers(wanted)) setMode(wanted);
      return { mode };
    },
    "ui/message"({ role, content }) {
      if (role !== "user" || !content) throw wrong("a message has the role user, and content");
      note("message", content);
      return {};
    },
    "ui/update-model-context"({ content, structuredContent }) {
      note("context", { content, structuredContent });
      return {};
    },
    async "ui/open-link"({ url }) {
      const shown = link(url);
      if (!shown.href) throw wrong("invalid link: expected an http or https URL");
      if (permits.size > MOST_LINKS + tools().size || !await permit(`link ${shown.href}`, "Open link", "The app requests to open ", h("strong", { class: "breakable" }, plain(shown.href, 2000)), ".", () => shown.click())) throw new Denied("the user declined to open the link");
      permits.delete(`link ${shown.href}`);
      return {};
    },
    async "tools/call"({ name: wanted, arguments: given = {} }, signal) {
      if (!isObject(given)) throw wrong("arguments must be an object");
      const name = tools().get(wanted);
      if (name === undefined) throw wrong("unknown tool, or tool not visible to apps");
      if (!await permit(`tool ${name}`, "Allow", "The app requests to call ", h("strong", {}, plain(name, 120)), " with ", h("code", { class: "breakable" }, plain(JSON.stringify(given), 600)), ". This allows all further calls to this tool.")) throw new Denied("the user denied the call");
      note("calls", `${name} ${JSON.stringify(given)}`);
      return plainResult(result(await app.call("call_tool", { ...where, name, arguments: given }, { signal })));
    },
    async "resources/read"({ uri: wanted }, signal) {
      if (typeof wanted !== "string") throw wrong("uri must be a string");
      if (!await permit("read", "Allow", "The app requests to read ", h("strong", { class: "breakable" }, plain(wanted, 300)), " and other resources of this server.")) throw new Denied("the user denied the read");
      note("reads", wanted);
      return result(await app.call("read_resource", { ...where, uri: wanted }, { signal }));
    },
  }));

  const offers = (wanted) => !Array.isArray(able.availableDisplayModes) ? wanted === "inline" : able.availableDisplayModes.includes(wanted);

  function result(said) {
    if (said.error) throw new Denied(said.error.message ?? "it failed", said.error.code ?? -32000, said.error.data);
    return said.result;
  }

  function note(kind, what) {
    lines.hidden = false;
    lines.append(h("div", {}, plain(`${kind}  ${typeof what === "string" ? what : JSON.stringify(what)}`, 2000)));
    if (lines.children.length > MOST_LINES) lines.firstElementChild.remove();
    lines.scrollTop = lines.scrollHeight;
  }

  // --- consent: one request at a time, each once ---

  function permit(key, yes, ...what) {
    if (!permits.has(key)) {
      const act = typeof what.at(-1) === "function" ? what.pop() : () => {};
      permits.set(key, asking = asking.then(() => !ended && question(yes, what, act)));
    }
    return permits.get(key);
  }

  const question = (yes, what, act) => new Promise((done) => {
    const close = (answered) => {
      refuse = () => {};
      fill(bar);
      done(answered);
    };
    refuse = () => close(false);
    const buttons = [button(yes, () => { act(); close(true); }, { class: "primary small", disabled: true }), button("Deny", refuse, { class: "small", disabled: true })];
    setTimeout(() => buttons.forEach((one) => { one.disabled = false; }), PATIENCE);
    fill(bar, h("div", { class: "row apart asked", role: "group", "aria-label": "App permission request" }, h("p", { class: "breakable" }, what), h("div", { class: "row" }, buttons)));
    say("An app requests permission");
  });

  begin();
  return {
    element, end,
    /** The call has ended with a result or an error, or was cancelled. */
    over(said) {
      outcome = said?.result ? { result: said.result } : { reason: plain(said?.error?.message ?? "cancelled", 600) };
      if (frame && !ended) tellOutcome();
    },
  };
}

/** Convert a result for apps, whose protocol version requires structured content to be an object. */
const plainResult = ({ structuredContent: data, ...rest }) => (data === undefined ? rest : { ...rest, structuredContent: isObject(data) ? data : { result: data } });

const wishes = (one) => (isObject(one?._meta?.ui) ? one._meta.ui : undefined);

const decoded = (blob) => new TextDecoder().decode(Uint8Array.from(atob(blob), (letter) => letter.charCodeAt(0)));
