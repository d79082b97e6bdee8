// Which views there are, in their order, and when each is shown: what is not configured is not there.

import { accessView } from "./views/access.js";
import { auditView } from "./views/audit.js";
import { contractsView } from "./views/contracts.js";
import { jobsView } from "./views/jobs.js";
import { loginView } from "./views/login.js";
import { memoryView } from "./views/memory.js";
import { overviewView } from "./views/overview.js";
import { peersView } from "./views/peers.js";
import { promptsView } from "./views/prompts.js";
import { resourcesView } from "./views/resources.js";
import { savedView } from "./views/saved.js";
import { toolsView } from "./views/tools.js";
import { upstreamsView } from "./views/upstreams.js";
import { wireView } from "./views/wire.js";
import { workView } from "./views/work.js";

const can = (app, name) => app.target?.capabilities?.[name] !== undefined && app.target.capabilities[name] !== null;
const serves = (app, name) => Object.keys(app.target?.services?.[name] ?? {}).length > 0;

export const VIEWS = [
  { id: "tools", title: "Tools", group: "Try", shown: (app) => can(app, "tools") || !app.target?.capabilities, mount: toolsView },
  { id: "resources", title: "Resources", group: "Try", shown: (app) => can(app, "resources"), mount: resourcesView },
  { id: "prompts", title: "Prompts", group: "Try", shown: (app) => can(app, "prompts"), mount: promptsView },
  { id: "saved", title: "Saved calls", group: "Try", shown: (app) => app.has("saved"), mount: savedView, apart: true },
  { id: "wire", title: "Messages", group: "Look", shown: (app) => app.has("wire"), mount: wireView, apart: true },
  { id: "login", title: "Login, step by step", group: "Look", shown: (app) => app.has("oauth"), mount: loginView, apart: true },
  { id: "memory", title: "Memories", group: "Kept", shown: (app) => serves(app, "memory"), mount: memoryView },
  { id: "work", title: "Work items", group: "Kept", shown: (app) => serves(app, "tasks"), mount: workView },
  { id: "jobs", title: "Running tasks", group: "Kept", shown: (app) => app.has("jobs"), mount: jobsView, apart: true },
  { id: "contracts", title: "Contracts", group: "Kept", shown: (app) => can(app, "tools"), mount: contractsView },
  { id: "overview", title: "Calls and times", group: "Happening", shown: (app) => app.has("metrics"), mount: overviewView, apart: true },
  { id: "peers", title: "Clients and workers", group: "Happening", shown: (app) => app.has("sessions") || app.has("workers"), mount: peersView, apart: true },
  { id: "upstreams", title: "Upstreams", group: "Happening", shown: (app) => app.has("upstreams"), mount: upstreamsView, apart: true },
  { id: "audit", title: "Audit", group: "Happening", shown: (app) => app.has("audit"), mount: auditView, apart: true },
  { id: "access", title: "Who may", group: "Happening", shown: (app) => app.has("policy"), mount: accessView, apart: true },
];
