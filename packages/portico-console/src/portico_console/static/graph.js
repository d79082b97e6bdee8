// What hangs together: memories, and the tags and threads that they share, pulled into place by a few hundred steps.

import { h, plain } from "./dom.js";

const MOST = 90;
const STEPS = 220;

export function makeGraph(memories, open) {
  const nodes = new Map();
  const edges = [];
  const node = (id, text, kind) => {
    if (!nodes.has(id)) nodes.set(id, { id, text, kind, links: 0, x: Math.cos(nodes.size * 2.4) * (20 + nodes.size * 4), y: Math.sin(nodes.size * 2.4) * (20 + nodes.size * 4), dx: 0, dy: 0 });
    return nodes.get(id);
  };
  for (const memory of memories.slice(0, MOST)) {
    const from = node(`m:${memory.id}`, memory.content, "memory");
    const around = [...(memory.tags ?? []).slice(0, 6).map((tag) => [`t:${tag}`, `#${tag}`]), ...(memory.thread ? [[`c:${memory.thread}`, memory.thread]] : [])];
    for (const [id, text] of around) {
      const to = node(id, text, "tag");
      to.links++;
      from.links++;
      edges.push([from, to]);
    }
  }
  const all = [...nodes.values()];
  settle(all, edges);
  return paint(all, edges, open);
}

function settle(all, edges) {
  for (let step = 0; step < STEPS; step++) {
    const heat = 1 - step / STEPS;
    for (let i = 0; i < all.length; i++) {
      for (let j = i + 1; j < all.length; j++) {
        const a = all[i];
        const b = all[j];
        const x = a.x - b.x || 0.1;
        const y = a.y - b.y || 0.1;
        const push = 1400 / Math.max(60, x * x + y * y);
        a.dx += x * push * 0.05; a.dy += y * push * 0.05;
        b.dx -= x * push * 0.05; b.dy -= y * push * 0.05;
      }
    }
    for (const [a, b] of edges) {
      const x = b.x - a.x;
      const y = b.y - a.y;
      const pull = (Math.hypot(x, y) - 70) * 0.01;
      const far = Math.hypot(x, y) || 1;
      a.dx += (x / far) * pull; a.dy += (y / far) * pull;
      b.dx -= (x / far) * pull; b.dy -= (y / far) * pull;
    }
    for (const one of all) {
      one.dx -= one.x * 0.004; one.dy -= one.y * 0.006;
      one.x += one.dx * 4 * heat; one.y += one.dy * 4 * heat;
      one.dx *= 0.6; one.dy *= 0.6;
    }
  }
}

function paint(all, edges, open) {
  const xs = all.map((one) => one.x);
  const ys = all.map((one) => one.y);
  const [left, top] = [Math.min(...xs) - 70, Math.min(...ys) - 40];
  const [width, height] = [Math.max(...xs) - left + 150, Math.max(...ys) - top + 40];
  const svg = h("svg", { class: "graph", viewBox: `${left} ${top} ${Math.max(width, 300)} ${Math.max(height, 200)}`, role: "group", "aria-label": `Graph of ${all.length} memories, tags and threads` },
    edges.map(([a, b]) => h("line", { x1: a.x.toFixed(1), y1: a.y.toFixed(1), x2: b.x.toFixed(1), y2: b.y.toFixed(1) })),
    all.map((one) => {
      const memory = one.kind === "memory";
      const circle = h("circle", { cx: one.x.toFixed(1), cy: one.y.toFixed(1), r: memory ? 6 : 5 + Math.min(9, one.links), ...(memory ? { tabindex: "0", role: "button", "aria-label": plain(one.text, 120) } : {}) });
      circle.style.fill = memory ? "var(--violet)" : "var(--accent)";
      if (memory) {
        circle.addEventListener("click", () => open(one.id.slice(2)));
        circle.addEventListener("keydown", (event) => event.key === "Enter" && open(one.id.slice(2)));
      }
      return h("g", {}, circle, h("text", { x: (one.x + 11).toFixed(1), y: (one.y + 4).toFixed(1) }, plain(one.text, memory ? 26 : 40)));
    }));
  return svg;
}
