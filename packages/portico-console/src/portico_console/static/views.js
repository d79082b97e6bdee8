// The views in their order, and the condition of each: views of features that are not configured are hidden. A view's file
// has its name and is loaded on first use.

const can = (app, name) => app.target?.capabilities?.[name] !== undefined && app.target.capabilities[name] !== null;
const serves = (app, name) => Object.keys(app.target?.services?.[name] ?? {}).length > 0;

export const VIEWS = [
  { id: "tools", title: "Tools", group: "Inspect", shown: (app) => can(app, "tools") || !app.target?.capabilities },
  { id: "resources", title: "Resources", group: "Inspect", shown: (app) => can(app, "resources") },
  { id: "prompts", title: "Prompts", group: "Inspect", shown: (app) => can(app, "prompts") },
  { id: "saved", title: "Saved calls", group: "Inspect", shown: (app) => app.has("saved"), apart: true },
  { id: "wire", title: "Traffic", group: "Debug", shown: (app) => app.has("wire"), apart: true },
  { id: "login", title: "OAuth debugger", group: "Debug", shown: (app) => app.has("oauth"), apart: true },
  { id: "memory", title: "Memory", group: "Data", shown: (app) => serves(app, "memory") },
  { id: "work", title: "Work items", group: "Data", shown: (app) => serves(app, "tasks") },
  { id: "contracts", title: "Contracts", group: "Data", shown: (app) => can(app, "tools") },
  { id: "jobs", title: "Tasks", group: "Activity", shown: (app) => app.has("jobs"), apart: true },
  { id: "overview", title: "Metrics", group: "Activity", shown: (app) => app.has("metrics"), apart: true },
  { id: "peers", title: "Sessions", group: "Activity", shown: (app) => app.has("sessions") || app.has("workers"), apart: true },
  { id: "upstreams", title: "Upstreams", group: "Activity", shown: (app) => app.has("upstreams"), apart: true },
  { id: "usage", title: "Usage", group: "Activity", shown: (app) => app.has("usage"), apart: true },
  { id: "audit", title: "Audit", group: "Activity", shown: (app) => app.has("audit"), apart: true },
  { id: "access", title: "Access policy", group: "Activity", shown: (app) => app.has("policy"), apart: true },
];
