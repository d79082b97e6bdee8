// Which views there are, in their order, and when each is shown: what is not configured is not there. The file of a
// view has its name, and is loaded when somebody goes there.

const can = (app, name) => app.target?.capabilities?.[name] !== undefined && app.target.capabilities[name] !== null;
const serves = (app, name) => Object.keys(app.target?.services?.[name] ?? {}).length > 0;

export const VIEWS = [
  { id: "tools", title: "Tools", group: "Try", shown: (app) => can(app, "tools") || !app.target?.capabilities },
  { id: "resources", title: "Resources", group: "Try", shown: (app) => can(app, "resources") },
  { id: "prompts", title: "Prompts", group: "Try", shown: (app) => can(app, "prompts") },
  { id: "saved", title: "Saved calls", group: "Try", shown: (app) => app.has("saved"), apart: true },
  { id: "wire", title: "Messages", group: "Look", shown: (app) => app.has("wire"), apart: true },
  { id: "login", title: "Login, step by step", group: "Look", shown: (app) => app.has("oauth"), apart: true },
  { id: "memory", title: "Memories", group: "Kept", shown: (app) => serves(app, "memory") },
  { id: "work", title: "Work items", group: "Kept", shown: (app) => serves(app, "tasks") },
  { id: "jobs", title: "Running tasks", group: "Kept", shown: (app) => app.has("jobs"), apart: true },
  { id: "contracts", title: "Contracts", group: "Kept", shown: (app) => can(app, "tools") },
  { id: "overview", title: "Calls and times", group: "Happening", shown: (app) => app.has("metrics"), apart: true },
  { id: "peers", title: "Clients and workers", group: "Happening", shown: (app) => app.has("sessions") || app.has("workers"), apart: true },
  { id: "upstreams", title: "Upstreams", group: "Happening", shown: (app) => app.has("upstreams"), apart: true },
  { id: "audit", title: "Audit", group: "Happening", shown: (app) => app.has("audit"), apart: true },
  { id: "access", title: "Who may", group: "Happening", shown: (app) => app.has("policy"), apart: true },
];
