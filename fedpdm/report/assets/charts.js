"use strict";
// Draws the curves: SVG by hand, redrawn when the page changes its width. No library, no network.

const charts = JSON.parse(document.getElementById("data").textContent);
const HEIGHT = 230, LEFT = 58, RIGHT = 14, TOP = 12, BOTTOM = 32, PRINT_WIDTH = 480;

function element(name, attributes, parent) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent.append(made);
  return made;
}

function bytes(value) {
  const power = Math.min(3, Math.max(0, Math.floor(Math.log10(Math.max(value, 1)) / 3)));
  return `${trim(value / 1000 ** power)} ${["bytes", "kB", "MB", "GB"][power]}`;
}

function trim(value) {
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e7)) return value.toExponential(2).replace(/\.?0+e/, "e");
  return Math.abs(value) >= 1e4 ? Math.round(value).toLocaleString("en").replaceAll(",", " ") : String(Number(value.toPrecision(4)));
}

const WRITE = {
  fraction: (value) => value.toFixed(4),
  percent: (value) => `${(100 * value).toFixed(1)} %`,
  bytes,
  number: trim,
};
const WRITE_TICK = { ...WRITE, fraction: (value) => trim(value), percent: (value) => `${trim(100 * value)} %` };

// A limited number of round numbers (1, 2 or 5 times a power of ten) between low and high.
function ticks(low, high, most) {
  const rough = (high - low) / most || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  const result = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) result.push(i * step);
  return result;
}

function logarithmicTicks(low, high) {
  const result = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
    for (const factor of high / low > 200 ? [1] : [1, 2, 5])
      if (factor * 10 ** power >= low * 0.999 && factor * 10 ** power <= high * 1.001) result.push(factor * 10 ** power);
  return result;
}

// Values that span more than a factor of 30 are seen on a logarithmic scale only.
function vertical(kind, curves) {
  const values = curves.flatMap((curve) => curve.y);
  let low = Math.min(...values), high = Math.max(...values);
  if (kind === "number" && low > 0 && high / low > 30) {
    const marks = logarithmicTicks(low, high);
    return { low: Math.log(low), high: Math.log(high), map: Math.log, marks };
  }
  if (kind === "bytes" || kind === "percent" || (low > 0 && low < 0.4 * high)) low = Math.min(low, 0);
  if (high === low) high = low + Math.max(Math.abs(low) * 0.1, 1e-6);
  const marks = ticks(low, high, 5), step = marks.length > 1 ? marks[1] - marks[0] : high - low;
  high = Math.max(high, Math.ceil(high / step - 1e-9) * step);
  low = Math.min(low, Math.floor(low / step + 1e-9) * step);
  return { low, high, map: (value) => value, marks: ticks(low, high, 6) };
}

function draw(figure) {
  const { kind, curves } = charts[figure.dataset.chart], plot = figure.querySelector(".plot");
  const width = plot.clientWidth || PRINT_WIDTH;
  plot.querySelector("svg")?.remove();
  const image = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [key, value] of Object.entries({ viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": plot.dataset.words }))
    image.setAttribute(key, value);
  plot.prepend(image);
  const rounds = [...new Set(curves.flatMap((curve) => curve.x))].sort((a, b) => a - b);
  const first = rounds[0], last = Math.max(rounds.at(-1), first + 1), y = vertical(kind, curves);
  const atX = (round) => LEFT + ((round - first) / (last - first)) * (width - LEFT - RIGHT);
  const atY = (value) => HEIGHT - BOTTOM - ((y.map(value) - y.low) / (y.high - y.low)) * (HEIGHT - TOP - BOTTOM);
  for (const mark of y.marks) {
    element("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: atY(mark), y2: atY(mark) }, image);
    element("text", { class: "tick", x: LEFT - 8, y: atY(mark) + 4, "text-anchor": "end" }, image).textContent = WRITE_TICK[kind](mark);
  }
  for (const mark of ticks(first, last, width < 420 ? 4 : 7).filter(Number.isInteger))
    element("text", { class: "tick", x: atX(mark), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" }, image).textContent = mark;
  element("text", { class: "tick", x: LEFT - 14, y: HEIGHT - BOTTOM + 18, "text-anchor": "end" }, image).textContent = "round";
  for (const curve of curves) {
    const path = curve.x.map((round, i) => `${i ? "L" : "M"}${atX(round).toFixed(1)},${atY(curve.y[i]).toFixed(1)}`).join("");
    const style = `stroke: var(--series-${curve.run})`;
    element("path", { class: curve.dashed ? "curve dashed" : "curve", d: path, style }, image);
    if (curve.x.length <= 12)
      curve.x.forEach((round, i) => element("circle", { class: "point", cx: atX(round), cy: atY(curve.y[i]), r: 2.5, style: `fill: var(--series-${curve.run})` }, image));
  }
  const cursor = element("g", { class: "cursor", visibility: "hidden" }, image);
  figure.plotted = { rounds, atX, atY, cursor, width };
}

function nearest(sorted, wanted) {
  return sorted.reduce((best, value, i) => (Math.abs(value - wanted) < Math.abs(sorted[best] - wanted) ? i : best), 0);
}

// Shows the values at one round: a line, dots, a box, and words for a screen reader.
function pointAt(figure, index) {
  const { rounds, atX, atY, cursor, width } = figure.plotted, { kind, curves } = charts[figure.dataset.chart];
  const round = rounds[Math.max(0, Math.min(rounds.length - 1, index))], x = atX(round);
  figure.pointed = rounds.indexOf(round);
  cursor.replaceChildren();
  cursor.setAttribute("visibility", "visible");
  element("line", { class: "guide", x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM }, cursor);
  const plot = figure.querySelector(".plot");
  const box = plot.querySelector(".tip") ?? plot.appendChild(Object.assign(document.createElement("div"), { className: "tip" }));
  box.replaceChildren(Object.assign(document.createElement("b"), { textContent: `Round ${round}` }));
  const said = [];
  for (const curve of curves) {
    const i = curve.x.indexOf(round);
    if (i < 0) continue;
    element("circle", { class: "dot-here", cx: x, cy: atY(curve.y[i]), r: 4, style: `fill: var(--series-${curve.run})` }, cursor);
    const line = box.appendChild(document.createElement("span")), value = WRITE[kind](curve.y[i]);
    line.append(Object.assign(document.createElement("i"), { style: `background: var(--series-${curve.run})` }), `${curve.name} `, Object.assign(document.createElement("b"), { textContent: value }));
    said.push(`${curve.name} ${value}`);
  }
  box.hidden = false;
  const room = box.offsetWidth;
  box.style.left = `${Math.max(0, x + 12 + room > width ? x - 12 - room : x + 12)}px`;
  figure.querySelector("[aria-live]").textContent = `Round ${round}: ${said.join(", ")}`;
}

function pointNowhere(figure) {
  figure.plotted.cursor.setAttribute("visibility", "hidden");
  const box = figure.querySelector(".tip");
  if (box) box.hidden = true;
}

function bind(figure) {
  const plot = figure.querySelector(".plot");
  plot.addEventListener("pointermove", (event) => {
    const { rounds, atX } = figure.plotted, x = event.clientX - plot.getBoundingClientRect().left;
    pointAt(figure, nearest(rounds.map(atX), x));
  });
  plot.addEventListener("pointerleave", () => pointNowhere(figure));
  plot.addEventListener("blur", () => pointNowhere(figure));
  plot.addEventListener("keydown", (event) => {
    const here = figure.pointed ?? -1, end = figure.plotted.rounds.length - 1;
    const to = { ArrowRight: here + 1, ArrowLeft: here < 0 ? end : here - 1, Home: 0, End: end }[event.key];
    if (event.key === "Escape") pointNowhere(figure);
    if (to === undefined) return;
    event.preventDefault();
    pointAt(figure, to);
  });
  new ResizeObserver(() => draw(figure)).observe(plot);
}

for (const figure of document.querySelectorAll(".chart")) {
  draw(figure);
  bind(figure);
}
