// Elements, numbers and colours. Everything that comes from outside enters through textContent, never as markup.

export const byId = (id) => document.getElementById(id);

export function make(tag, text, className, ...children) {
  const element = document.createElement(tag);
  if (text !== undefined && text !== null) element.textContent = text;
  if (className) element.className = className;
  element.append(...children);
  return element;
}

export const NONFINITE = new Set(["NaN", "Infinity", "-Infinity"]);

export function number(value) {
  if (value === undefined || value === null) return "–";
  if (NONFINITE.has(value)) return value;
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e6 || size < 1e-3)) return value.toExponential(2);
  if (Number.isInteger(value)) return String(value);
  const text = value.toPrecision(4);
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

const scaled = (value, step, units) => {
  let index = 0;
  while (Math.abs(value) >= step && index < units.length - 1) { value /= step; index += 1; }
  return `${number(Math.round(value * 10) / 10)} ${units[index]}`;
};

// A value in the unit that its name ends with; base units become readable ones.
export function reading(name, value) {
  if (typeof value !== "number") return number(value);
  const base = name.replace(/\[.*$/, "");
  if (/_bytes(_total)?$/.test(base)) return scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
  if (base.endsWith("_hertz")) return scaled(value, 1000, ["Hz", "kHz", "MHz", "GHz"]);
  if (base.endsWith("_ratio") || base.endsWith("_share")) return `${number(Math.round(value * 1000) / 10)} %`;
  if (base.endsWith("_celsius")) return `${number(value)} °C`;
  if (base.endsWith("_watts")) return `${number(Math.round(value))} W`;
  if (base.endsWith("_joules")) return scaled(value, 1000, ["J", "kJ", "MJ", "GJ"]);
  if (/_seconds(_median|_p99|_max|_total)?$/.test(base)) return Math.abs(value) < 1 ? `${number(value * 1000)} ms` : `${number(value)} s`;
  return number(value);
}

export function age(seconds) {
  if (!(seconds >= 0)) return "0 s";
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${(seconds / 86400).toFixed(1)} days`;
}

export const since = (nowNs, thenNs) => (thenNs ? age((nowNs - thenNs) / 1e9) : "–");
export const clockTime = (ns) => `${new Date(ns / 1e6).toISOString().slice(0, 19).replace("T", " ")} UTC`;
export const plural = (count, one, many) => `${count} ${count === 1 ? one : many || `${one}s`}`;
export const ranksText = (ranks) => (ranks.length ? `rank${ranks.length > 1 ? "s" : ""} ${spans(ranks)}` : "a rank that is not known");

// 0, 1, 2, 3, 7 -> "0-3, 7"
export function spans(ranks) {
  const sorted = [...ranks].sort((a, b) => a - b), out = [];
  for (const rank of sorted) {
    const last = out[out.length - 1];
    if (last && rank === last[1] + 1) last[1] = rank; else out.push([rank, rank]);
  }
  return out.map(([from, to]) => (from === to ? `${from}` : to === from + 1 ? `${from}, ${to}` : `${from}-${to}`)).join(", ");
}

// "0-3, 7" -> [0, 1, 2, 3, 7], only ranks that exist
export function parseRanks(text, known) {
  const wanted = new Set();
  for (const part of text.split(/[\s,]+/).filter(Boolean)) {
    const found = /^(\d{1,6})(?:-(\d{1,6}))?$/.exec(part);
    if (found) for (const rank of known) if (rank >= Number(found[1]) && rank <= Number(found[2] ?? found[1])) wanted.add(rank);
  }
  return [...wanted].sort((a, b) => a - b);
}

// Draws a part of the page only when what it shows has changed: focus, selection and open parts stay.
const shown = new Map();
export function whenChanged(part, data, draw) {
  const text = JSON.stringify(data);
  if (shown.get(part) === text) return;
  shown.set(part, text);
  draw();
}

// The colour behind a custom property as the canvas wants it: light-dark() is resolved by an element only.
const probe = document.createElement("span");
probe.hidden = true;
document.body.append(probe);
export function colour(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

export const head = (...cells) => make("thead", null, "", make("tr", null, "", ...cells.map((cell, index) => {
  const th = make("th", cell, index ? "" : "left");
  th.scope = "col";
  return th;
})));
