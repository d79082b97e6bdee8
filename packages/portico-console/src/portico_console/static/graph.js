// Graph of memories with their common tags and threads, by a force layout of a few hundred steps.

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

const MIN_HEIGHT_PX = 480;
const FONT_PX = 12;

function paint(all, edges, open) {
  const xs = all.map((one) => one.x);
  const ys = all.map((one) => one.y);
  const [left, top] = [Math.min(...xs) - 70, Math.min(...ys) - 40];
  const [width, height] = [Math.max(300, Math.max(...xs) - left + 150), Math.max(200, Math.max(...ys) - top + 40)];
  // The drawing is scaled to the page, so sizes in pixels are multiplied by this.
  const unit = Math.max(1, width / (document.getElementById("main")?.clientWidth || 1000), height / MIN_HEIGHT_PX);
  for (const one of all) one.r = (one.kind === "memory" ? 6 : 5 + Math.min(9, one.links)) * unit;
  const labels = placeLabels(all, unit);
  return h("svg", { class: "graph", viewBox: `${left} ${top} ${width} ${height}`, role: "group", "aria-label": `Graph of ${all.length} memories, tags and threads` },
    edges.map(([a, b]) => h("line", { x1: a.x.toFixed(1), y1: a.y.toFixed(1), x2: b.x.toFixed(1), y2: b.y.toFixed(1) })),
    all.map((one) => {
      const memory = one.kind === "memory";
      const circle = h("circle", { cx: one.x.toFixed(1), cy: one.y.toFixed(1), r: one.r.toFixed(1), ...(memory ? { tabindex: "0", role: "button", "aria-label": plain(one.text, 120) } : {}) });
      circle.style.fill = memory ? "var(--violet)" : "var(--accent)";
      if (memory) {
        circle.addEventListener("click", () => open(one.id.slice(2)));
        circle.addEventListener("keydown", (event) => event.key === "Enter" && open(one.id.slice(2)));
      }
      const label = labels.get(one);
      const text = h("text", { x: label.x.toFixed(1), y: label.y.toFixed(1), ...(label.free ? {} : { class: "crowded" }) }, label.text);
      text.style.fontSize = `${(FONT_PX * unit).toFixed(1)}px`;
      return h("g", {}, circle, text);
    }));
}

/** A place for each label beside, below or above its circle. One that fits nowhere is shown while its circle has the
 * pointer or the focus. */
function placeLabels(all, unit) {
  const size = FONT_PX * unit;
  const taken = all.map((one) => [one.x - one.r, one.y - one.r, one.x + one.r, one.y + one.r]);
  const labels = new Map();
  for (const one of [...all].sort((a, b) => b.links - a.links)) {
    const text = plain(one.text, one.kind === "memory" ? 26 : 40);
    const wide = text.length * size * 0.56;
    const gap = one.r + 4 * unit;
    const places = [[one.x + gap, one.y + size * 0.35], [one.x - gap - wide, one.y + size * 0.35], [one.x - wide / 2, one.y + gap + size * 0.8], [one.x - wide / 2, one.y - gap - size * 0.2]];
    const box = ([x, y]) => [x, y - size, x + wide, y + size * 0.3];
    const found = places.find((place) => !taken.some((other) => overlap(box(place), other)));
    if (found) taken.push(box(found));
    labels.set(one, { text, x: (found ?? places[0])[0], y: (found ?? places[0])[1], free: Boolean(found) });
  }
  return labels;
}

const overlap = (a, b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];
