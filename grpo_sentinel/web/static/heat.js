// Ranks against their median: signals x ranks now, or ranks x steps of one signal. Colour by robust deviation.

import { byId, colour, make, number, reading, whenChanged } from "./base.js";
import { get, live } from "./net.js";

const state = { map: null, at: null, boxes: null };
const LEAST_RANKS = 3, FAINT = 1.5, FULL = 6; // deviations at which the colour begins and is full: below, ranks are alike
const canvas = () => byId("heat");
export const heatBy = () => document.querySelector('input[name="heat-by"]:checked').value;

// Rows and columns as drawn: by signal a row is a signal and a column a rank, by step a row is a rank.
function turned(heat) {
  const turn = heat.by === "signal";
  const rows = turn ? heat.columns : heat.ranks, columns = turn ? heat.ranks : heat.columns;
  const cell = (grid) => (row, column) => (turn ? grid[column][row] : grid[row][column]);
  const deviation = cell(heat.deviations), value = cell(heat.values);
  return { by: heat.by, rows, columns, deviation, value, signalOf: (row) => (turn ? rows[row] : state.signal), rankOf: (row, column) => (turn ? columns[column] : rows[row]) };
}

// One or two ranks have no odd one among them: they are shown against their own past, unless somebody chose otherwise.
export function chooseHeat(ranks) {
  byId("heat-choice").hidden = ranks === 1;
  if (!state.chosen && ranks) document.querySelector(`input[name="heat-by"][value="${ranks < LEAST_RANKS ? "step" : "signal"}"]`).checked = true;
}

export async function refreshHeat(signal, span, mode) {
  const news = live.news;
  if (!news || !news.run_id || document.hidden) return;
  const by = heatBy(), asked = { run: news.run_id, by };
  if (by === "step") Object.assign(asked, { signal, mode, columns: Math.max(20, Math.min(160, Math.floor(canvas().parentElement.clientWidth / 7))), ...span });
  try {
    const heat = await get("heat", asked);
    if (by !== heatBy()) return;
    state.signal = signal;
    state.map = turned(heat);
    byId("heat-note").textContent = [by === "step" ? signal : "", heat.note].filter(Boolean).join(": ");
    whenChanged("heat", [heat, document.documentElement.dataset.theme], () => { draw(); say(heat); });
  } catch (error) {
    byId("heat-note").textContent = error.message;
  }
}

export function draw() {
  const map = state.map, element = canvas(), width = element.clientWidth || element.parentElement.clientWidth - 34;
  const rows = map ? map.rows.length : 0, columns = map ? map.columns.length : 0;
  const context = element.getContext("2d"), ratio = devicePixelRatio || 1;
  const labels = rows && map.by === "signal" ? Math.min(230, width * 0.46) : 56;
  const row = Math.max(3, Math.min(18, 420 / Math.max(1, rows))), top = rows ? 18 : 0;
  const height = rows && columns ? Math.ceil(top + rows * row + 2) : 0;
  element.hidden = !height;
  element.style.height = `${height}px`;
  element.width = width * ratio;
  element.height = height * ratio;
  Object.assign(element.dataset, { rows, columns, by: map ? map.by : "" });
  if (!height) return;
  const cell = (width - labels) / columns;
  state.boxes = { labels, row, top, cell };
  const shades = { low: rgb("heat-low"), mid: rgb("heat-mid"), high: rgb("heat-high"), broken: colour("heat-broken"), text: colour("quiet"), focus: colour("text") };
  context.scale(ratio, ratio);
  context.clearRect(0, 0, width, height);
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = shades.text;
  context.textBaseline = "middle";
  drawLabels(context, map, { labels, row, top, cell, width });
  const gap = cell > 5 && row > 5 ? 1 : 0;
  for (let r = 0; r < rows; r += 1) {
    for (let c = 0; c < columns; c += 1) {
      const value = map.value(r, c);
      if (value === null) continue;
      context.fillStyle = typeof value !== "number" ? shades.broken : shade(map.deviation(r, c), shades);
      context.fillRect(labels + c * cell, top + r * row, Math.max(1, cell - gap), row - gap);
    }
  }
  if (state.at) {
    context.strokeStyle = shades.focus;
    context.lineWidth = 2;
    context.strokeRect(labels + state.at[1] * cell - 1, top + state.at[0] * row - 1, Math.max(4, cell + 1), Math.max(4, row + 1));
  }
}

function drawLabels(context, map, { labels, row, top, cell, width }) {
  const every = Math.ceil(12 / row);
  context.textAlign = "right";
  map.rows.forEach((name, index) => {
    if (index % every === 0) context.fillText(short(context, map.by === "signal" ? name : `rank ${name}`, labels - 8), labels - 6, top + (index + 0.5) * row);
  });
  context.textAlign = "center";
  const size = map.by === "signal" ? 26 : 60, step = Math.max(1, Math.ceil(size / cell));
  for (let index = 0; index < map.columns.length; index += step) {
    const x = Math.min(width - size / 2, labels + (index + 0.5) * cell);
    context.fillText(String(map.columns[index]), x, 8);
  }
}

function short(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  const [layer, rest] = [text.slice(0, text.indexOf(".")), text.slice(text.indexOf(".") + 1)];
  if (rest.includes("[")) { // what tells such names apart stands at the end
    let tail = rest;
    while (tail.length > 4 && context.measureText(`…${tail}`).width > room) tail = tail.slice(1);
    return `…${tail}`;
  }
  let out = `${layer.slice(0, 4)}.${rest}`;
  while (out.length > 4 && context.measureText(`${out}…`).width > room) out = out.slice(0, -1);
  return out === text ? out : `${out}…`;
}

const rgb = (name) => colour(name).match(/[\d.]+/g).slice(0, 3).map(Number);

function shade(deviation, shades) {
  const size = Math.abs(deviation || 0), side = deviation < 0 ? shades.low : shades.high;
  const share = Math.max(0, Math.min(1, (size - FAINT) / (FULL - FAINT)));
  return `rgb(${shades.mid.map((from, index) => Math.round(from + (side[index] - from) * share)).join(",")})`;
}

function say(heat) {
  let best = null;
  const nowhere = []; // what is finite on no rank
  heat.deviations.forEach((row, r) => row.forEach((value, c) => {
    const broken = heat.values[r][c] !== null && typeof heat.values[r][c] !== "number";
    const size = broken && value ? 1000 : Math.abs(value ?? 0); // where nobody has a finite value, nobody is the odd one
    const name = heat.by === "signal" ? heat.columns[c] : `${state.signal} around step ${heat.columns[c]}`;
    if (broken && !value && !nowhere.includes(name)) nowhere.push(name);
    if (heat.values[r][c] !== null && (!best || size > best.size)) best = { size, r, c };
  }));
  let text = heat.note || "No values yet.";
  if (best) {
    const rank = heat.ranks[best.r], value = heat.values[best.r][best.c], column = heat.columns[best.c];
    const signal = heat.by === "signal" ? column : state.signal, where = heat.by === "step" ? ` around step ${column}` : "";
    const few = heat.ranks.length < LEAST_RANKS, on = heat.ranks.length > 1 ? ` on rank ${rank}` : ""; // few: no rank is odd, a step may be
    const none = few ? `Nothing stands out: ${signal} is furthest from ${heat.reference}${where}${on}, by` : `No rank stands out: the furthest is rank ${rank} in ${signal}${where},`;
    if (best.size < FULL) text = `${none} ${number(best.size)} robust deviations${few ? "" : ` from ${heat.reference}`}.`;
    else text = `${few ? `${signal} stands out${where}${on}: it` : `Rank ${rank} stands out: ${signal}`} is ${typeof value === "number" ? `${reading(signal, value)}, ${best.size >= 99 ? "far" : `${number(best.size)} robust deviations`} ${heat.deviations[best.r][best.c] < 0 ? "below" : "above"} ${heat.reference}` : value}${few ? "" : where}.`;
    canvas().dataset.furthest = rank;
    if (best.size < FULL && nowhere.length) text = `Not finite${heat.ranks.length > 1 ? " on any rank" : ""}: ${nowhere.slice(0, 3).join(", ")}${nowhere.length > 3 ? ` and ${nowhere.length - 3} more` : ""}.`;
  }
  byId("heat-says").textContent = text;
  canvas().setAttribute("aria-label", `Heat map, ${canvas().dataset.rows} rows and ${canvas().dataset.columns} columns. ${text}`);
}

function describe() {
  const [r, c] = state.at, map = state.map, value = map.value(r, c), apart = map.deviation(r, c), signal = map.signalOf(r);
  const where = map.by === "step" ? `, step ${map.columns[c]}` : "";
  const far = apart === null || value === null ? "" : Math.abs(apart) >= 99 ? ", far from the others" : `, ${number(Math.abs(apart))} robust deviations ${apart < 0 ? "below" : "above"}`;
  byId("heat-cell").textContent = `rank ${map.rankOf(r, c)}, ${signal}${where}: ${value === null ? "no value" : reading(signal, value)}${far}`;
}

function moveTo(row, column) {
  const map = state.map;
  if (!map || !map.rows.length || !map.columns.length) return;
  state.at = [Math.max(0, Math.min(map.rows.length - 1, row)), Math.max(0, Math.min(map.columns.length - 1, column))];
  draw();
  describe();
}

function choose() {
  if (!state.at || !state.map) return;
  const [r, c] = state.at, map = state.map;
  document.dispatchEvent(new CustomEvent("show-signal", { detail: { signal: map.signalOf(r), rank: map.rankOf(r, c), step: map.by === "step" ? map.columns[c] : undefined } }));
}

export function startHeat(refresh) {
  const element = canvas();
  element.addEventListener("pointermove", (event) => {
    if (!state.boxes || !state.map) return;
    const box = element.getBoundingClientRect(), { labels, top, row, cell } = state.boxes;
    const r = Math.floor((event.clientY - box.top - top) / row), c = Math.floor((event.clientX - box.left - labels) / cell);
    if (r >= 0 && c >= 0 && r < state.map.rows.length && c < state.map.columns.length) moveTo(r, c);
  });
  element.addEventListener("click", choose);
  element.addEventListener("blur", () => { state.at = null; draw(); });
  element.addEventListener("keydown", (event) => {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (move) { const at = state.at || [0, 0]; moveTo(at[0] + (state.at ? move[0] : 0), at[1] + (state.at ? move[1] : 0)); event.preventDefault(); }
    if (event.key === "Enter") choose();
  });
  for (const radio of document.querySelectorAll('input[name="heat-by"]')) radio.addEventListener("change", () => { state.chosen = true; state.at = null; state.map = null; draw(); refresh(); });
  new ResizeObserver(() => { if (state.map && Math.abs(element.width / (devicePixelRatio || 1) - element.clientWidth) > 1) draw(); }).observe(element.parentElement);
}
