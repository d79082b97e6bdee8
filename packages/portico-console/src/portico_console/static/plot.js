// Line chart on a canvas, with a text alternative for screen readers.

import { fill, h } from "./dom.js";

/** series: [{name, colour: a CSS variable, key}]; set(points) with points [{at, …}] oldest first. */
export function makePlot({ title, series, format = String, seconds = 120 }) {
  const canvas = h("canvas", { role: "img", "aria-label": title });
  const legend = h("div", { class: "legend" });
  let points = [];
  const draw = () => paint(canvas, points, series, format, seconds);
  new ResizeObserver(draw).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  return {
    element: h("div", { class: "plot card" }, h("div", { class: "row apart" }, h("h2", {}, title), legend), canvas),
    set(given) {
      points = given;
      const last = points.at(-1) ?? {};
      fill(legend, series.map((one) => {
        const mark = h("i");
        mark.style.background = `var(${one.colour})`;
        return h("span", {}, mark, `${one.name} `, h("strong", {}, last[one.key] === undefined || last[one.key] === null ? "–" : format(last[one.key])));
      }));
      canvas.setAttribute("aria-label", `${title}: ${series.map((one) => `${one.name} ${last[one.key] === undefined || last[one.key] === null ? "no data" : format(last[one.key])}`).join(", ")}`);
      draw();
    },
  };
}

function paint(canvas, points, series, format, seconds) {
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (!width || !height) return;
  const scale = devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const style = getComputedStyle(canvas);
  const colour = (name) => style.getPropertyValue(name) && resolved(canvas, name);
  const end = points.at(-1)?.at ?? Date.now() / 1000;
  const values = points.filter((point) => point.at > end - seconds).flatMap((point) => series.map((one) => point[one.key] ?? 0));
  const top = nice(Math.max(...values, 0));
  const left = 52;
  const x = (at) => left + ((at - (end - seconds)) / seconds) * (width - left - 6);
  const y = (value) => height - 16 - (value / top) * (height - 26);
  pen.font = "11px system-ui, sans-serif";
  pen.fillStyle = colour("--quiet");
  pen.strokeStyle = colour("--line");
  pen.lineWidth = 1;
  for (const part of [0, 0.5, 1]) {
    pen.beginPath();
    pen.moveTo(left, Math.round(y(top * part)) + 0.5);
    pen.lineTo(width - 6, Math.round(y(top * part)) + 0.5);
    pen.stroke();
    pen.textAlign = "right";
    pen.fillText(format(top * part), left - 6, y(top * part) + 4);
  }
  pen.textAlign = "left";
  pen.fillText(`${seconds} s ago`, left, height - 2);
  pen.textAlign = "right";
  pen.fillText("now", width - 6, height - 2);
  pen.lineWidth = 1.8;
  pen.lineJoin = "round";
  pen.save();
  pen.beginPath();
  pen.rect(left, 0, width - left, height);
  pen.clip();
  for (const one of series) {
    pen.strokeStyle = colour(one.colour);
    pen.beginPath();
    let down = false;
    const dots = [];
    for (const point of points) {
      if (point[one.key] === undefined || point[one.key] === null) { down = false; continue; }
      if (down) pen.lineTo(x(point.at), y(point[one.key]));
      else {
        pen.moveTo(x(point.at), y(point[one.key]));
        // A dot, because a line needs two points: a single interval has no neighbours.
        dots.push([x(point.at), y(point[one.key])]);
      }
      down = true;
    }
    pen.stroke();
    pen.fillStyle = colour(one.colour);
    for (const [across, up] of dots) pen.fillRect(across - 1.5, up - 1.5, 3, 3);
  }
  pen.restore();
}

// A canvas does not support light-dark(); the computed style of an element does.
function resolved(canvas, name) {
  canvas.style.color = `var(${name})`;
  const found = getComputedStyle(canvas).color;
  canvas.style.color = "";
  return found;
}

function nice(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  for (const step of [1, 2, 2.5, 5, 10]) if (value <= step * power) return step * power;
  return 10 * power;
}
