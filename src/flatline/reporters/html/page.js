"use strict";
(() => {
const TOP = 65000, INFINITE = 65533, ZERO = 65534, UNKNOWN = 65535;
const root = document.documentElement;
const find = (what, where = document) => where.querySelector(what);
const all = (what, where = document) => [...where.querySelectorAll(what)];
let data = JSON.parse(find("#data").textContent);
let zoom = null, filter = "", picked = 0;
const drawn = new Set();  // everything on a canvas: {element, draw(), rescale()}

// ------------------------------------------------------------------ small things

function make(tag, attributes = {}, ...inside) {
  const svg = tag === "svg" || tag === "line";
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...inside);
  return element;
}

function number(value, digits = 4) {
  if (value == null || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(Math.max(0, digits - 2)).replace(/\.?0+e/, "e").replace("e+", "e");
  return String(+value.toPrecision(digits)).replace(/^(-?\d{4,})(\.\d+)?$/, (_, whole, rest) => grouped(whole) + (rest || ""));
}
const grouped = (value) => String(value).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
const step = (value) => grouped(Math.round(value));
const short = (value) => value >= 1e6 ? +(value / 1e6).toFixed(2) + "M" : value >= 1e4 ? +(value / 1e3).toFixed(1) + "k" : grouped(+value.toFixed(1));
const colour = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim();
const say = (text) => { find("#said").textContent = text; };
const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
const FONT = '11px system-ui, "Segoe UI", "Liberation Sans", Arial, sans-serif';

function limits() {
  let low = Infinity, high = -Infinity;
  for (const axis of data.axes) if (axis.length) { low = Math.min(low, axis[0]); high = Math.max(high, axis[axis.length - 1]); }
  for (const one of [...data.heats, ...data.bins]) { low = Math.min(low, one.steps[0]); high = Math.max(high, one.steps[one.steps.length - 1]); }
  if (!(low <= high)) return [0, 1];
  return low === high ? [low - 1, high + 1] : [low, high];
}
let full = limits();
const seen = () => zoom || full;

function setZoom(range, quiet) {
  if (range) {
    let [low, high] = [Math.max(full[0], range[0]), Math.min(full[1], range[1])];
    if (!(high - low > (full[1] - full[0]) * 1e-6)) return;
    range = low <= full[0] && high >= full[1] ? null : [low, high];
  }
  zoom = range;
  find("#reset").hidden = !zoom;
  for (const one of drawn) one.rescale && one.rescale();
  if (!quiet) say(zoom ? `Steps ${step(zoom[0])} to ${step(zoom[1])}` : "All steps");
}

function zoomKeys(event) {
  const [low, high] = seen(), span = high - low, middle = (low + high) / 2;
  const wanted = {
    "+": [middle - span / 4, middle + span / 4], "=": [middle - span / 4, middle + span / 4], "-": [middle - span, middle + span],
    ArrowLeft: [low - span / 4, high - span / 4], ArrowRight: [low + span / 4, high + span / 4], 0: null, Escape: null,
  };
  if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(wanted, event.key)) return;
  let range = wanted[event.key];
  if (range && event.key.startsWith("Arrow")) {
    const shift = range[0] < full[0] ? full[0] - range[0] : range[1] > full[1] ? full[1] - range[1] : 0;
    range = [range[0] + shift, range[1] + shift];
  }
  setZoom(range);
  event.preventDefault();
}

// Drawn when it comes near the window, and again whenever its width or the theme changes.
const near = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting && entry.target.owner && !entry.target.owner.ready) start(entry.target.owner);
}, { rootMargin: "600px" });
const widths = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const owner = target.owner;
    if (owner && owner.ready && Math.abs(owner.width - target.clientWidth) > 1 && target.clientWidth) { owner.width = target.clientWidth; owner.draw(); }
  }
});
function start(one) { one.ready = true; one.width = one.element.clientWidth; one.draw(); widths.observe(one.element); }
function add(one) { one.element.owner = one; drawn.add(one); near.observe(one.element); return one; }
function drop(inside) {
  for (const one of drawn) if (inside.contains(one.element)) { one.end && one.end(); near.unobserve(one.element); widths.unobserve(one.element); drawn.delete(one); }
}

// ------------------------------------------------------------------ curves

const stroke = (at) => colour("s" + (at % 6 + 1));
function swatch(at, dashed) {
  const line = make("line", { x1: 0, y1: 5, x2: 21, y2: 5, "stroke-width": 2.5, stroke: `var(--s${at % 6 + 1})` });
  if (dashed) line.setAttribute("stroke-dasharray", "5 3");
  return make("svg", { viewBox: "0 0 21 10", "aria-hidden": "true" }, line);
}

function columns(lines) {
  const tables = lines.map((line) => {
    const steps = data.axes[line.steps] || line.steps, band = line.lows.length > 0;
    return band ? [steps, line.values, line.lows, line.highs] : [steps, line.values];
  });
  return tables.length === 1 ? tables[0] : uPlot.join(tables);
}

function seriesOf(lines, hidden) {
  const series = [{}], bands = [];
  lines.forEach((line, at) => {
    const show = !hidden || !hidden.has(line.name), paint = stroke(at);
    const few = line.values.length < 40;
    series.push({ label: line.name, stroke: paint, width: 1.5, dash: line.dashed ? [6, 4] : undefined, spanGaps: false, show, points: { show: few, size: 5, fill: paint } });
    if (line.lows.length) {
      const edge = { stroke: "transparent", width: 0, points: { show: false }, show, label: "" };
      series.push({ ...edge }, { ...edge });
      bands.push({ series: [series.length - 1, series.length - 2], fill: paint + "2e" });
    }
  });
  return { series, bands };
}

const WHOLE = [1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13].flatMap((n) => [n, 2 * n, 5 * n]);
const tenth = (value) => value > 0 && Math.abs(Math.log10(value) % 1) < 1e-9;
function digits(splits, increment) {
  const largest = Math.max(...splits.map((v) => Math.abs(v || 0)));
  return largest > 0 && increment > 0 ? clamp(Math.floor(Math.log10(largest)) - Math.floor(Math.log10(increment) + 1e-9) + 1 + (tenth(increment) || tenth(increment / 2) || tenth(increment / 5) ? 0 : 1), 1, 8) : 3;
}
function ticksOf(low, high) {
  const rough = (high - low) / 4, power = 10 ** Math.floor(Math.log10(rough)), size = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const first = Math.ceil(low / size), found = [];
  for (let n = 0; n < 8 && (first + n) * size <= high; n++) found.push(+((first + n) * size).toPrecision(8));
  return found;
}
function logTicks(low, high) {
  const decades = Math.log10(high / low), found = [];
  if (decades < 0.6) return ticksOf(low, high);
  const every = Math.ceil(decades / 7), first = Math.floor(Math.log10(low));
  for (let power = first; power <= Math.log10(high); power++) for (const n of decades < 1.6 ? [1, 2, 5] : [1]) {
    const at = +(n * 10 ** power).toPrecision(2);
    if (at >= low && at <= high && (power - first) % every === 0) found.push(at);
  }
  return found;
}
function axesOf(log) {
  const common = { stroke: colour("soft"), font: FONT, grid: { stroke: colour("grid"), width: 1 }, ticks: { show: false } };
  return [
    { ...common, size: 28, gap: 6, space: 60, incrs: WHOLE, grid: { show: false }, values: (u, splits) => splits.map((v) => v == null ? null : short(v)) },
    { ...common, gap: 6, space: 34, ...(log ? { splits: (u, axis, low, high) => logTicks(low, high), filter: (u, splits) => splits } : {}), size: (u, values) => 16 + Math.max(20, ...(values || []).map((v) => (v ? String(v).length : 0) * 6.2)), values: (u, splits, axis, space, increment) => splits.map((v) => v == null ? null : number(v, log ? 3 : digits(splits, increment) + 1)) },
  ];
}

function yRange(log) {
  return (u, low, high) => {
    if (low == null || high == null) return log ? [0.1, 1] : [0, 1];
    if (log) return low === high ? [low / 2, high * 2] : [low / 1.2, high * 1.2];
    const room = low === high ? Math.abs(low) * 0.1 || 1 : (high - low) * 0.07;
    return [low >= 0 ? Math.max(0, low - room) : low - room, high + room];
  };
}

function marker(u, at, text, paint, taken) {
  const x = u.valToPos(at, "x", true), { left, top, width, height } = u.bbox, ratio = devicePixelRatio;
  if (!(x >= left - 1 && x <= left + width + 1)) return;
  const { ctx } = u;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = paint;
  ctx.lineWidth = 1.25 * ratio;
  ctx.setLineDash([3 * ratio, 3 * ratio]);
  ctx.beginPath(); ctx.moveTo(x, top); ctx.lineTo(x, top + height); ctx.stroke();
  ctx.font = FONT.replace("11px", `600 ${11 * ratio}px`);
  const wide = ctx.measureText(text).width + 8 * ratio, from = beside(clamp(x - wide / 2, left, left + width + 14 * ratio - wide), wide, taken);
  if (text && from != null && from - x < wide) {
    ctx.textAlign = "left"; ctx.textBaseline = "alphabetic";
    ctx.fillText(text, from + 4 * ratio, top - 5 * ratio);
    taken.push([from, from + wide]);
  }
  ctx.restore();
}

/** Where a label may stand: at its place, or right behind the one that stands there. */
function beside(from, wide, taken) {
  const other = taken.find(([a, b]) => from < b && from + wide > a);
  if (!other) return from;
  return taken.some(([a, b]) => a !== other[0] && other[1] < b && other[1] + wide > a) ? null : other[1];
}

function lost(u, lines) {
  const { ctx } = u, { left, top, width, height } = u.bbox, size = 4.5 * devicePixelRatio;
  ctx.save();
  ctx.fillStyle = colour("error");
  for (const line of lines) for (const at of line.not_finite) {
    const x = u.valToPos(at, "x", true), y = top + height;
    if (x < left - 1 || x > left + width + 1) continue;
    ctx.beginPath(); ctx.moveTo(x - size, y); ctx.lineTo(x + size, y); ctx.lineTo(x, y - 2 * size); ctx.fill();
  }
  ctx.restore();
}

function events(u) {
  const { ctx } = u, { left, top, width, height } = u.bbox, ratio = devicePixelRatio;
  ctx.save();
  ctx.strokeStyle = colour("accent"); ctx.lineWidth = 1.5 * ratio;
  for (const at of data.marks) {
    const x = u.valToPos(Math.max(at, full[0]), "x", true);
    if (x < left - 1 || x > left + width + 1) continue;
    ctx.beginPath(); ctx.moveTo(x, top + height); ctx.lineTo(x, top + height + 6 * ratio); ctx.stroke();
  }
  ctx.restore();
}

const told = () => all(".card").filter((card) => !card.closest(".hints")).map((card) => {
  const scene = data.scenes[card.id.replace("finding-", "") - 1];
  return scene && { at: scene.at, code: find(".code", card).textContent, paint: card.classList.contains("error") ? "error" : "warning" };
}).filter(Boolean);

class Curves {
  constructor(chart, wide) {
    this.hidden = new Set();
    this.log = chart.log;
    this.plot = make("div", { class: "plot", role: "img", tabindex: "0", onkeydown: zoomKeys });
    this.legend = make("div", { class: "legend" });
    this.toggle = make("button", { type: "button", "aria-pressed": String(this.log), onclick: () => this.setLog(!this.log) }, "Log scale");
    this.panel = make("figure", { class: "panel chart" + (wide ? " wide" : "") }, make("header", {}, make("h3", {}, chart.title), this.toggle), this.legend, this.plot);
    this.element = this.plot;
    this.height = wide ? 300 : 210;
    this.take(chart);
    add(this);
  }
  take(chart) {
    const names = chart.lines.map((line) => line.name).join("\n");
    this.chart = chart;
    this.plot.setAttribute("aria-label", chart.says);
    this.toggle.hidden = !chart.positive;
    if (!chart.positive) this.log = false;
    if (names !== this.names || Boolean(this.lostShown) !== chart.lines.some((line) => line.not_finite.length)) this.fillLegend();
    const same = names === this.names && this.u && this.shape === this.shapeOf();
    this.names = names;
    if (same) { this.u.setData(columns(chart.lines)); this.values(null); } else if (this.ready) this.draw();
  }
  shapeOf() { return this.chart.lines.map((line) => line.lows.length > 0).join(); }
  fillLegend() {
    this.cells = this.chart.lines.map(() => make("span", { class: "value" }));
    const buttons = this.chart.lines.map((line, at) => make("button", { type: "button", "aria-pressed": "true", onclick: (event) => this.turn(line.name, event.currentTarget) }, swatch(at, line.dashed), make("span", {}, line.name), this.cells[at]));
    this.lostShown = this.chart.lines.some((line) => line.not_finite.length);
    const note = this.lostShown ? [make("span", {}, make("b", { class: "lost" }, "▲"), " not finite")] : [];
    if (this.chart.id === "loss" && data.marks.length) note.push(make("a", { href: "#happened", class: "events" }, make("b", {}, "╷"), " what happened"));
    this.legend.replaceChildren(...buttons, ...note);
    this.values(null);
  }
  turn(name, button) {
    const hide = !this.hidden.has(name);
    hide ? this.hidden.add(name) : this.hidden.delete(name);
    button.setAttribute("aria-pressed", String(!hide));
    this.draw();
  }
  setLog(on) { this.log = on; this.toggle.setAttribute("aria-pressed", String(on)); this.draw(); }
  values(at) {
    this.chart.lines.forEach((line, n) => {
      const steps = data.axes[line.steps] || [];
      let index = steps.length - 1;
      if (at != null) { index = nearest(steps, at); }
      while (at == null && index > 0 && line.values[index] == null) index--;
      this.cells[n].textContent = index >= 0 ? number(line.values[index]) : "–";
    });
  }
  draw() {
    this.end();
    const { series, bands } = seriesOf(this.chart.lines, this.hidden);
    this.shape = this.shapeOf();
    this.u = new uPlot({
      width: Math.max(120, this.plot.clientWidth), height: this.height, series, bands, legend: { show: false }, axes: axesOf(this.log), padding: [18, 18, 0, 0],
      scales: { x: { time: false, range: seen }, y: { distr: this.log ? 3 : 1, range: yRange(this.log) } },
      cursor: { y: false, drag: { x: true, y: false, setScale: false }, sync: { key: "steps", setSeries: false, scales: ["x", null] }, points: { size: 6 },
        bind: { dblclick: () => () => { setZoom(null); } } },
      hooks: {
        setSelect: [(u) => { if (u.select.width > 4) setZoom([u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")]); u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false); }],
        setCursor: [(u) => this.values(u.cursor.left >= 0 ? u.posToVal(u.cursor.left, "x") : null)],
        draw: [(u) => { lost(u, this.chart.lines); if (this.chart.id === "loss") events(u); const taken = []; for (const one of told()) marker(u, one.at, one.code, colour(one.paint), taken); }],
      },
    }, columns(this.chart.lines), this.plot);
  }
  rescale() { if (this.u) this.u.setScale("x", { min: seen()[0], max: seen()[1] }); }
  end() { if (this.u) { this.u.destroy(); this.u = null; } }
}

function nearest(steps, at) {
  let low = 0, high = steps.length - 1;
  while (low < high) { const middle = (low + high) >> 1; steps[middle] < at ? low = middle + 1 : high = middle; }
  return low > 0 && at - steps[low - 1] < steps[low] - at ? low - 1 : low;
}

const charts = new Map();
function showCharts() {
  const home = find(".charts");
  for (const [id, old] of charts) if (!data.charts.some((chart) => chart.id === id)) { drop(old.panel); old.panel.remove(); charts.delete(id); }
  all("p", home).forEach((line) => line.remove());
  const main = data.charts.filter((chart) => MAIN.includes(chart.id)), rest = data.charts.filter((chart) => !MAIN.includes(chart.id));
  const odd = main.length % 2 === 0;
  const place = (chart, into, wide) => {
    const known = charts.get(chart.id);
    if (known) known.take(chart);
    else { const made = new Curves(chart, wide); charts.set(chart.id, made); into.append(made.panel); }
  };
  main.forEach((chart, at) => place(chart, home, chart.id === "loss" || (odd && at === main.length - 1)));
  const few = rest.length <= 6 ? home : (find(".more-charts") || moreCharts(home));
  rest.forEach((chart) => place(chart, few, false));
  const title = find(".more-title");
  if (title) title.textContent = `${rest.length} more, logged by the program`;
  for (const line of data.missing) home.append(make("p", { class: "missing" }, line));
}
const MAIN = ["loss", "lr", "gradient_norm", "loss_scale"];
function moreCharts(home) {
  const inside = make("div", { class: "more-charts" });
  home.append(make("details", {}, make("summary", { class: "more-title" }), inside));
  return inside;
}

// ------------------------------------------------------------------ the evidence of a finding

class Scene {
  constructor(figure, scene) {
    this.scene = scene; this.figure = figure;
    this.element = find(".plot", figure);
    add(this);
  }
  lines() {
    const { scene } = this;
    if (scene.chart) { const chart = data.charts.find((one) => one.id === scene.chart); return { title: chart.title, lines: chart.lines, log: chart.log && chart.positive }; }
    const heat = data.heats.find((one) => one.id === scene.grid), cells = decoded(heat);
    const row = heat.steps.map((_, at) => cells.value(at, scene.layer));
    const middle = heat.steps.map((_, at) => median(heat.names.map((_, n) => cells.value(at, n))));
    const line = { lows: [], highs: [], not_finite: [], steps: heat.steps };
    const values = [...row, ...middle].filter((value) => value != null);
    return { title: heat.title, log: heat.log && values.every((value) => value > 0), lines: [{ ...line, name: heat.names[scene.layer], values: row }, { ...line, name: "median of all layers", values: middle, dashed: true }] };
  }
  draw() {
    this.end();
    const { scene } = this, { title, lines, log } = this.lines(), { series, bands } = seriesOf(lines);
    const severity = this.figure.closest(".card").classList.contains("error") ? "error" : this.figure.closest(".card").classList.contains("warning") ? "warning" : "hint";
    find("figcaption", this.figure).replaceChildren(make("b", {}, title), ...(lines.length > 1 ? lines.map((line, at) => make("span", {}, swatch(at, line.dashed), line.name)) : []));
    const window_ = scene.window[0] < scene.window[1] ? scene.window : [scene.at - 1, scene.at + 1];
    this.u = new uPlot({
      width: Math.max(120, this.element.clientWidth), height: 190, series, bands, legend: { show: false }, axes: axesOf(log), padding: [18, 18, 0, 0],
      scales: { x: { time: false, range: () => window_ }, y: { distr: log ? 3 : 1, range: yRange(log) } },
      cursor: { show: false },
      hooks: {
        drawClear: [(u) => this.band(u, colour(severity))],
        draw: [(u) => { lost(u, lines); marker(u, scene.at, `step ${step(scene.at)}`, colour(severity), []); this.level(u); }],
      },
    }, columns(lines), this.element);
  }
  band(u, paint) {
    const { left, top, width, height } = u.bbox, { ctx } = u;
    const from = clamp(u.valToPos(this.scene.start, "x", true), left, left + width), to = clamp(u.valToPos(this.scene.at, "x", true), left, left + width);
    if (!(to - from > 1)) return;
    ctx.save(); ctx.globalAlpha = 0.1; ctx.fillStyle = paint; ctx.fillRect(from, top, to - from, height); ctx.restore();
  }
  level(u) {
    const { left, top, width, height } = u.bbox, { ctx } = u;
    const y = this.scene.level == null ? NaN : u.valToPos(this.scene.level, "y", true);
    if (!(y >= top && y <= top + height)) return;
    ctx.save(); ctx.strokeStyle = colour("soft"); ctx.setLineDash([2, 4]); ctx.beginPath(); ctx.moveTo(left, y); ctx.lineTo(left + width, y); ctx.stroke(); ctx.restore();
  }
  end() { if (this.u) { this.u.destroy(); this.u = null; } }
}
function median(values) {
  const known = values.filter((value) => value != null).sort((a, b) => a - b);
  return known.length ? known[known.length >> 1] : null;
}
function showScenes() {
  for (const figure of all(".scene")) {
    const scene = data.scenes[figure.dataset.scene];
    if (!figure.owner && scene) figure.owner = new Scene(figure, scene);
    else if (scene && figure.owner) { figure.owner.scene = scene; if (figure.owner.ready) figure.owner.draw(); }
  }
}

// ------------------------------------------------------------------ heat maps

const VIRIDIS = ["440154", "482475", "414487", "355f8d", "2a788e", "21918c", "22a884", "44bf70", "7ad151", "bddf26", "fde725"].map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));
function viridis(share) {
  const at = clamp(share, 0, 1) * (VIRIDIS.length - 1), low = Math.min(VIRIDIS.length - 2, Math.floor(at)), part = at - low;
  return VIRIDIS[low].map((value, n) => Math.round(value + (VIRIDIS[low + 1][n] - value) * part));
}
const packed = ([r, g, b]) => (255 << 24 | b << 16 | g << 8 | r) >>> 0;
function packedName(name) {
  const hex = colour(name).replace("#", ""), whole = hex.length === 3 ? [...hex].map((c) => c + c).join("") : hex;
  return packed([0, 2, 4].map((at) => parseInt(whole.slice(at, at + 2), 16)));
}
const RAMP = Uint32Array.from({ length: 256 }, (_, at) => packed(viridis(at / 255)));

function decoded(heat) {
  if (heat.decoded) return heat.decoded;
  const raw = atob(heat.cells), codes = new Uint16Array(raw.length / 2), wide = heat.names.length;
  for (let at = 0; at < codes.length; at++) codes[at] = raw.charCodeAt(2 * at) | raw.charCodeAt(2 * at + 1) << 8;
  const [low, high] = heat.log ? [Math.log(heat.low), Math.log(heat.high)] : [heat.low, heat.high];
  const real = (code) => { const value = low + (high - low) * code / TOP; return heat.log ? Math.exp(value) : value; };
  const value = (column, row) => { const code = codes[column * wide + row]; return code <= TOP ? real(code) : code === ZERO ? 0 : null; };
  Object.defineProperty(heat, "decoded", { value: { codes, value, real, low, high }, enumerable: false });
  return heat.decoded;
}

/** A canvas with steps along x, rows or values along y, names at the left; the plane paints itself. */
class Plane {
  constructor(panel) {
    this.plot = make("div", { class: "plot", role: "img", tabindex: "0" });
    this.canvas = make("canvas");
    this.over = make("div", { class: "over", hidden: true });
    this.pick = make("div", { class: "picked", hidden: true });
    this.readout = make("span", { class: "readout" });
    this.plot.append(this.canvas, this.over, this.pick);
    this.panel = panel;
    this.element = this.plot;
    this.cell = null;
    this.listen();
    add(this);
  }
  listen() {
    let from = null;
    const inside = (event) => { const box = this.plot.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
    this.plot.addEventListener("pointerdown", (event) => { if (event.pointerType === "mouse" && event.button === 0) from = inside(event)[0]; });
    this.plot.addEventListener("pointermove", (event) => {
      const [x, y] = inside(event);
      if (from != null) Object.assign(this.pick.style, { left: Math.min(from, x) + "px", width: Math.abs(x - from) + "px", top: 0, height: this.tall + "px" });
      this.pick.hidden = from == null || Math.abs(x - from) < 5;
      this.show(this.at(x, y), false);
    });
    const up = (event) => {
      const x = inside(event)[0];
      if (from != null && Math.abs(x - from) >= 5) setZoom([this.stepAt(Math.min(from, x)), this.stepAt(Math.max(from, x))]);
      from = null; this.pick.hidden = true;
    };
    this.plot.addEventListener("pointerup", up);
    this.plot.addEventListener("pointerleave", () => { from = null; this.pick.hidden = true; if (document.activeElement !== this.plot) this.show(null); });
    this.plot.addEventListener("dblclick", () => setZoom(null));
    this.plot.addEventListener("keydown", (event) => this.keys(event));
    this.plot.addEventListener("blur", () => this.show(null));
  }
  keys(event) {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!move || event.ctrlKey || event.metaKey || event.altKey) return zoomKeys(event);
    const [column, row] = this.cell || [this.steps.length - 1 - move[0], -move[1]];
    this.show([clamp(column + move[0], 0, this.steps.length - 1), clamp(row + move[1], 0, this.rows - 1)], true);
    event.preventDefault();
  }
  seen() {  // what was measured at the beginning only would else be lost at the left edge
    const end = this.until(this.steps.length - 1);
    return zoom || (end - full[0] < (full[1] - full[0]) / 2 ? [full[0], end] : full);
  }
  early() { return this.seen() !== full && !zoom ? make("span", {}, `measured up to step ${step(this.steps[this.steps.length - 1])} only`) : ""; }
  x(value) { const [low, high] = this.seen(); return this.left + (value - low) / (high - low) * this.wide; }
  stepAt(x) { const [low, high] = this.seen(); return low + (x - this.left) / this.wide * (high - low); }
  until(column) {  // a sample stands for the steps to the next one; the last one for no more than the one before it
    const { steps } = this, last = steps.length - 1;
    if (column < last) return steps[column + 1];
    return Math.min(full[1], steps[last] + Math.max(2 * (last ? steps[last] - steps[last - 1] : 1), (full[1] - full[0]) / 100));
  }
  column(value) { let at = 0; const { steps } = this; let low = 0, high = steps.length - 1; while (low <= high) { const middle = (low + high) >> 1; if (steps[middle] <= value) { at = middle; low = middle + 1; } else high = middle - 1; } return at; }
  at(x, y) {
    if (x < this.left || x > this.left + this.wide || y < 0 || y >= this.tall) return null;
    const step_ = this.stepAt(x);
    return step_ > this.until(this.steps.length - 1) ? null : [this.column(step_), Math.floor(y / this.tall * this.rows)];
  }
  show(cell, aloud) {
    this.cell = cell;
    this.over.hidden = !cell;
    if (!cell) { this.readout.textContent = ""; return; }
    const [column, row] = cell, text = this.describe(column, row);
    this.readout.textContent = text;
    if (aloud) say(text);
    const next = this.until(column);
    const from = clamp(this.x(this.steps[column]), this.left, this.left + this.wide), to = clamp(this.x(next), this.left, this.left + this.wide);
    const [top, tall] = this.span(column, row);
    Object.assign(this.over.style, { left: Math.min(from, this.left + this.wide - 5) - 1 + "px", width: Math.max(5, to - from) + 2 + "px", top: top - 1 + "px", height: Math.max(5, tall) + 2 + "px" });
  }
  span(column, row) { return [row * this.tall / this.rows, this.tall / this.rows]; }
  rescale() { if (this.ready) this.draw(); }
  frame(left, tall) {
    const ratio = Math.min(2, devicePixelRatio || 1), whole = Math.max(160, this.plot.clientWidth);
    this.left = left; this.tall = tall; this.wide = whole - left - 18;
    this.canvas.width = whole * ratio; this.canvas.height = (tall + 24) * ratio;
    Object.assign(this.canvas.style, { width: whole + "px", height: tall + 24 + "px" });
    const ctx = this.canvas.getContext("2d");
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.clearRect(0, 0, whole, tall + 24);
    ctx.font = FONT; ctx.fillStyle = colour("soft"); ctx.textBaseline = "middle";
    this.ratio = ratio;
    return ctx;
  }
  ticks(ctx) {
    const [low, high] = this.seen(), room = Math.max(3, Math.floor(this.wide / 80)), rough = (high - low) / room;
    const size = WHOLE.find((n) => n >= rough) || rough;
    ctx.textAlign = "center";
    for (let at = Math.ceil(low / size) * size; at <= high; at += size) if (this.x(at) < this.left + this.wide - 4) ctx.fillText(short(at), this.x(at), this.tall + 14);
  }
}

class HeatMap extends Plane {
  constructor(heat) {
    super(make("figure", { class: "panel heat" }));
    this.key = make("div", { class: "key" });
    this.note = make("p", { class: "note" });
    this.table = make("details", { ontoggle: () => this.fill() }, make("summary", {}, "As a table"), make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": heat.title }));
    this.panel.append(make("header", {}, make("h3", {}, heat.title)), this.note, this.plot, this.key, this.table);
    this.take(heat);
  }
  take(heat) {
    this.heat = heat;
    this.plot.setAttribute("aria-label", heat.says);
    this.note.textContent = heat.note + (heat.left_out ? `; ${grouped(heat.left_out)} more layers are left out` : "");
    this.note.hidden = !this.note.textContent;
    this.choose();
  }
  choose() {
    const wanted = filter.toLowerCase(), { names } = this.heat;
    const chosen = names.map((_, at) => at).filter((at) => names[at].toLowerCase().includes(wanted));
    this.chosen = chosen.length ? chosen : names.map((_, at) => at);
    this.steps = this.heat.steps; this.rows = this.chosen.length;
    if (this.ready) this.draw();
    if (this.table.open) this.fill();
  }
  draw() {
    const narrow = this.plot.clientWidth < 480, { rows } = this;
    const each = clamp(Math.floor(420 / rows), 1, 22), tall = rows > 420 ? 420 : Math.max(each * rows, 16);
    const labels = this.labels(tall), measure = this.canvas.getContext("2d");
    measure.setTransform(1, 0, 0, 1, 0, 0);
    measure.font = FONT;
    const longest = Math.max(0, ...labels.map(([, text]) => measure.measureText(text).width));
    const ctx = this.frame(Math.ceil(Math.min(narrow ? 104 : 240, longest + 12)), tall);
    ctx.textAlign = "right";
    for (const [y, text] of labels) ctx.fillText(fitted(ctx, text, this.left - 12), this.left - 8, y);
    this.ticks(ctx);
    this.paint(ctx, tall, each);
    this.showKey();
    this.show(this.cell);
  }
  labels(tall) {
    const names = this.chosen.map((at) => this.heat.names[at]), common = commonPrefix(names), each = tall / names.length;
    if (each >= 12) return names.map((name, at) => [(at + 0.5) * each, name.slice(common)]);
    const found = [];
    let before = null;
    names.forEach((name, at) => {
      const rest = name.slice(common), block = /^.*?\d+(?=\.|$)/.exec(rest), group = block ? block[0] : rest;
      const y = (at + 0.5) * each;
      if (group !== before && (!found.length || y - found[found.length - 1][0] >= 13)) found.push([Math.max(6, y), group]);
      before = group;
    });
    return found;
  }
  paint(ctx, tall, each) {
    const { heat, ratio } = this, { codes, real } = decoded(heat), count = heat.names.length;
    const wide = Math.round(this.wide * ratio), high = Math.round(tall * ratio), image = ctx.createImageData(wide, high), pixels = new Uint32Array(image.data.buffer);
    const [from, to] = heat.log ? [Math.log(heat.shade_low || heat.low), Math.log(heat.shade_high)] : [heat.shade_low, heat.shade_high];
    const special = { [ZERO]: packedName("zero"), [UNKNOWN]: packedName("empty"), [INFINITE]: packedName("infinite") }, gap = packedName("card");
    const paintOf = (code) => { if (code > TOP) return special[code]; const value = real(code); return RAMP[Math.round(clamp(((heat.log ? Math.log(value) : value) - from) / (to - from || 1), 0, 1) * 255)]; };
    const end = this.until(heat.steps.length - 1);
    const picked = Int32Array.from({ length: wide }, (_, x) => { const at = this.stepAt(this.left + (x + 0.5) / ratio); return at < heat.steps[0] ? 0 : at > end ? -1 : this.column(at); });
    const line = new Uint32Array(wide);
    let before = -1;
    for (let y = 0; y < high; y++) {
      const place = y / high * this.rows, row = Math.min(this.rows - 1, Math.floor(place));
      const between = each >= 6 && (y + 1) / high * this.rows - row >= 1 && row < this.rows - 1;
      if (row !== before) {
        let last = -2, paint = 0;
        for (let x = 0; x < wide; x++) { if (picked[x] !== last) { last = picked[x]; paint = last < 0 ? special[UNKNOWN] : paintOf(codes[last * count + this.chosen[row]]); } line[x] = paint; }
        before = row;
      }
      if (between) pixels.fill(gap, y * wide, (y + 1) * wide); else pixels.set(line, y * wide);
    }
    ctx.putImageData(image, Math.round(this.left * ratio), 0);
  }
  showKey() {
    const { heat } = this, { codes } = decoded(heat);
    const ramp = make("canvas", { width: 128, height: 1, "aria-hidden": "true" }), ctx = ramp.getContext("2d"), image = ctx.createImageData(128, 1);
    new Uint32Array(image.data.buffer).set(Uint32Array.from({ length: 128 }, (_, at) => RAMP[at * 2]));
    ctx.putImageData(image, 0, 0);
    const parts = [make("span", {}, number(heat.shade_low, 3), ramp, number(heat.shade_high, 3), heat.log ? make("span", {}, "log scale") : "")];
    if (codes.includes(ZERO)) parts.push(make("span", {}, make("i", { class: "zero" }), "exactly 0"));
    if (codes.includes(INFINITE)) parts.push(make("span", {}, make("i", { class: "infinite" }), "infinite"));
    if (codes.includes(UNKNOWN) || this.until(this.steps.length - 1) < this.seen()[1]) parts.push(make("span", {}, make("i", { class: "empty" }), "not measured"));
    this.key.replaceChildren(...parts, this.early(), this.readout);
  }
  describe(column, row) {
    const name = this.heat.names[this.chosen[row]], code = decoded(this.heat).codes[column * this.heat.names.length + this.chosen[row]];
    const value = code === UNKNOWN ? "not measured" : code === INFINITE ? "infinite" : code === ZERO ? "exactly 0" : number(decoded(this.heat).real(code), 3);
    return `${name} · step ${step(this.steps[column])} · ${value}`;
  }
  fill() {
    if (!this.table.open) return;
    const { value } = decoded(this.heat), head = ["Layer", "First", "Median", "Last", "Lowest", "Highest"];
    const body = this.chosen.map((at) => {
      const known = this.steps.map((_, column) => value(column, at)).filter((v) => v != null);
      const cells = known.length ? [known[0], median(known), known[known.length - 1], Math.min(...known), Math.max(...known)] : [null, null, null, null, null];
      return make("tr", {}, make("th", { scope: "row" }, this.heat.names[at]), ...cells.map((v) => make("td", { class: "n" }, number(v, 3))));
    });
    find(".scroll", this.table).replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, ...head.map((text, at) => make("th", { scope: "col", class: at ? "n" : "" }, text)))), make("tbody", {}, ...body)));
  }
}

function fitted(ctx, text, room) {
  if (ctx.measureText(text).width <= room) return text;
  let from = 1;
  while (from < text.length && ctx.measureText("…" + text.slice(from)).width > room) from++;
  return "…" + text.slice(from);
}
function commonPrefix(names) {
  if (names.length < 2) return 0;
  let length = 0;
  while (names[0][length] !== undefined && names.every((name) => name[length] === names[0][length])) length++;
  let cut = names[0].lastIndexOf(".", length - 1) + 1;
  while (cut && names.some((name) => /^\d/.test(name.slice(cut)))) cut = names[0].lastIndexOf(".", cut - 2) + 1;  // "h.3", not "3"
  return cut;
}

const heats = new Map();
function showHeats() {
  const home = find(".heats");
  find("#layers").hidden = false;
  if (!data.heats.length) { home.replaceChildren(make("p", { class: "missing" }, "Nothing was measured layer by layer.")); return; }
  const missing = find(".missing", home);
  if (missing) missing.remove();
  if (!find("#filter-layers") && data.heats.some((heat) => heat.names.length > 8)) home.append(layerFilter());
  const main = data.heats.filter((heat) => heat.main), first = main.length ? main : data.heats;
  for (const heat of data.heats) {
    const known = heats.get(heat.id);
    if (known) { known.take(heat); continue; }
    const made = new HeatMap(heat);
    heats.set(heat.id, made);
    (first.includes(heat) ? home : find(".more-heats", home) || moreHeats(home)).append(made.panel);
  }
  const more = find(".more-title-heats");
  if (more) { more.textContent = data.heats.filter((heat) => !first.includes(heat)).map((heat) => heat.title).join(", "); home.append(more.parentElement); }
}
function moreHeats(home) {
  const inside = make("div", { class: "heats more-heats" });
  home.append(make("details", {}, make("summary", { class: "more-title-heats" }), inside));
  return inside;
}
function layerFilter() {
  const input = make("input", { type: "search", id: "filter-layers", autocomplete: "off", placeholder: "part of a name, say attn", oninput: () => { filter = input.value; for (const heat of heats.values()) heat.choose(); } });
  return make("p", { class: "filter" }, make("label", { for: "filter-layers" }, "Only layers with"), input);
}

// ------------------------------------------------------------------ histograms over time

class BinsMap extends Plane {
  constructor() {
    super(make("figure", { class: "panel heat" }));
    this.chooser = make("select", { id: "bins-name", onchange: () => { picked = this.chooser.selectedIndex; this.take(); } });
    this.panel.append(make("p", { class: "filter" }, make("label", { for: "bins-name" }, "Histogram of"), this.chooser), this.plot, this.key = make("div", { class: "key" }));
  }
  take() {
    picked = clamp(picked, 0, data.bins.length - 1);
    const names = data.bins.map((one) => one.name);
    if (names.join("\n") !== this.names) { this.names = names.join("\n"); this.chooser.replaceChildren(...names.map((name) => make("option", {}, name))); this.chooser.selectedIndex = picked; }
    this.bins = data.bins[picked];
    this.steps = this.bins.steps;
    this.plot.setAttribute("aria-label", "Histograms over time. " + this.bins.says);
    this.rows = 1; this.cell = null;
    if (this.ready) this.draw();
  }
  range() {
    const edges = this.bins.edges.flatMap((each) => [each[0], each[each.length - 1]]).filter((v) => v != null);
    const [low, high] = [Math.min(...edges), Math.max(...edges)];
    return low < high ? [low, high] : [low - 1, high + 1];
  }
  y(value) { const [low, high] = this.limits; return this.tall * (high - value) / (high - low); }
  draw() {
    this.limits = this.range();
    this.rows = 1;
    const ctx = this.frame(56, 240), { steps, edges, counts } = this.bins;
    ctx.fillStyle = "#440154";
    ctx.fillStyle = colour("empty"); ctx.fillRect(this.left, 0, this.wide, this.tall);
    ctx.save(); ctx.beginPath(); ctx.rect(this.left, 0, this.wide, this.tall); ctx.clip();
    const most = (each) => Math.max(1, ...each);
    steps.forEach((at, column) => {
      const from = Math.floor(this.x(column ? at : Math.min(at, this.seen()[0]))), to = Math.ceil(this.x(this.until(column))), top = most(counts[column]);
      if (to < this.left || from > this.left + this.wide) return;
      counts[column].forEach((count, bin) => {
        if (!count) return;
        const [a, b] = [this.y(edges[column][bin + 1]), this.y(edges[column][bin])];
        ctx.fillStyle = `rgb(${viridis(Math.sqrt(count / top)).join(" ")})`;
        ctx.fillRect(from, Math.floor(a), Math.max(1, to - from), Math.max(1, Math.ceil(b) - Math.floor(a)));
      });
    });
    ctx.restore();
    ctx.textAlign = "right"; ctx.fillStyle = colour("soft");
    const [low, high] = this.limits;
    for (const value of ticksOf(low, high)) ctx.fillText(number(value, 5), this.left - 8, clamp(this.y(value), 6, this.tall - 6));
    this.ticks(ctx);
    this.key.replaceChildren(make("span", {}, "dark: few values; bright: many, of those at the same step"), this.early(), this.readout);
    this.show(this.cell);
  }
  at(x, y) {
    if (x < this.left || x > this.left + this.wide || y < 0 || y >= this.tall) return null;
    const column = this.column(this.stepAt(x)), [low, high] = this.limits, value = high - y / this.tall * (high - low), edges = this.bins.edges[column];
    const bin = edges.findIndex((edge, n) => n + 1 < edges.length && value >= edge && value <= edges[n + 1]);
    this.rows = edges.length - 1;
    return bin < 0 ? null : [column, edges.length - 2 - bin];
  }
  keys(event) { this.rows = this.bins.counts[this.cell ? this.cell[0] : 0].length; super.keys(event); }
  flip(column, row) { return clamp(this.bins.counts[column].length - 1 - row, 0, this.bins.counts[column].length - 1); }
  span(column, row) { const bin = this.flip(column, row), edges = this.bins.edges[column], top = this.y(edges[bin + 1]); return [top, this.y(edges[bin]) - top]; }
  describe(column, row) {
    const bin = this.flip(column, row), edges = this.bins.edges[column];
    return `step ${step(this.steps[column])} · ${number(edges[bin], 3)} to ${number(edges[bin + 1], 3)} · ${grouped(this.bins.counts[column][bin])} values`;
  }
}
let binsMap = null;
function showBins() {
  const home = find(".bins");
  if (!data.bins.length) { home.replaceChildren(make("p", { class: "missing" }, "No histogram was recorded.")); return; }
  if (!binsMap) { binsMap = new BinsMap(); home.replaceChildren(binsMap.panel); }
  binsMap.take();
}

// ------------------------------------------------------------------ tables

function sortable() {
  for (const table of all("table.sortable")) all("thead th", table).forEach((head, at) => {
    if (find("button", head)) return;
    const button = make("button", { type: "button", onclick: () => sort(table, head, at) }, head.textContent);
    head.replaceChildren(button);
  });
  const input = find("#filter-weights");
  if (input) input.addEventListener("input", () => { for (const row of all("#table-weights tbody tr")) row.hidden = !row.cells[0].textContent.toLowerCase().includes(input.value.toLowerCase()); });
}
function sort(table, head, at) {
  const up = head.getAttribute("aria-sort") !== "ascending";
  all("th", table.tHead).forEach((other) => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const key = (row) => { const text = row.cells[at].textContent, value = Number(text.replaceAll(",", "")); return text && !Number.isNaN(value) ? value : text; };
  const order = (a, b) => typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1;
  const rows = [...table.tBodies[0].rows].map((row) => [key(row), row]).sort(([a], [b]) => up ? order(a, b) : order(b, a));
  table.tBodies[0].replaceChildren(...rows.map(([, row]) => row));
}

// ------------------------------------------------------------------ theme, print, start

function redraw() { for (const one of drawn) if (one.ready) one.draw(); }
const remembered = () => { try { return localStorage.getItem("flatline-theme"); } catch { return null; } };
if (["light", "dark"].includes(remembered())) root.dataset.theme = remembered();
find("#theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("flatline-theme", root.dataset.theme); } catch { /* a page from a file may have no storage */ }
  redraw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
find("#reset").addEventListener("click", () => setZoom(null));

let before = null;
addEventListener("beforeprint", () => {
  before = root.dataset.theme ?? "";
  root.dataset.theme = "light";
  root.classList.add("printing");
  for (const one of drawn) if (one.element.clientWidth) { if (!one.ready) start(one); else { one.width = one.element.clientWidth; one.draw(); } }
});
addEventListener("afterprint", () => {
  if (before) root.dataset.theme = before; else delete root.dataset.theme;
  root.classList.remove("printing");
  redraw();
});

function show() { showCharts(); showHeats(); showBins(); showScenes(); sortable(); }
show();

// ------------------------------------------------------------------ live

function live() {
  const status = find("#status"), source = new EventSource("events");
  let busy = false, again = false, over = false;
  const state = (text, on) => { status.textContent = text; status.classList.toggle("on", on); };
  async function update() {
    if (busy) { again = true; return; }
    busy = true;
    try { apply(await (await fetch("news", { cache: "no-store" })).json()); } catch { /* the next event asks again */ }
    busy = false;
    if (again) { again = false; update(); } else if (over) { source.close(); state("finished", false); }
  }
  source.addEventListener("open", () => state("live", true));
  source.addEventListener("error", () => { if (!over) state("not connected", false); });
  source.addEventListener("changed", update);
  source.addEventListener("finished", () => { over = true; update(); });
}

function apply(news) {
  const known = full[1], follows = zoom && zoom[1] >= known;
  data = news.data;
  full = limits();
  if (follows) zoom = [zoom[0], full[1]];
  for (const [id, html] of Object.entries(news.sections)) {
    const section = find("#" + id);
    if (section.said === html) continue;
    section.said = html;
    const open = all("details[open]", section).map((one) => one.id).filter(Boolean);
    drop(section);
    section.innerHTML = html;
    for (const name of open) { const one = document.getElementById(name); if (one) one.open = true; }
  }
  find('.links a[href="#findings"]').hidden = !find("#findings .card");
  document.title = `${find("h1").textContent.trim()} · ${find(".run").textContent} · flatline`;
  show();
}

if (root.dataset.live === "yes") live();
else if (root.dataset.live === "over") find("#status").textContent = "finished";
})();
