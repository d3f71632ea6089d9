// Charts: search over all signals, a line per rank, zoom by asking the server for the steps that are looked at.

import { byId, head, make, number, parseRanks, plural, ranksText, spans, whenChanged } from "./base.js";
import { get, live } from "./net.js";
import { Plot } from "./plot.js";
import { chainsOf } from "./verdict.js";

const MOST_LINES = 16, MOST_OFFERED = 60, POINTS = 400, NAMES_MS = 60000;
const state = { signal: "", names: [], about: {}, zoom: null, whole: [0, 0], offered: [], at: -1, told: [], run: "", turn: 0, namesAt: 0, toldFor: "" };
const plot = new Plot(byId("chart"), { height: 280, onZoom: zoomTo });

const baseOf = (name) => name.replace(/\[.*$/, "");
export const chosen = () => ({ signal: state.signal, mode: byId("mode").value, span: window_() });

// Steps that are looked at, as the API takes them; nothing = the whole run.
function window_() {
  if (state.zoom) return { since: Math.max(0, Math.floor(state.zoom[0])), until: Math.max(1, Math.ceil(state.zoom[1])) };
  const newest = Number(byId("span").value);
  return newest ? { since: Math.max(0, lastStep() - newest + 1) } : {};
}

const lastStep = () => Math.max(0, ...live.news.ranks.map((rank) => rank.step));

function ranksToDraw() {
  const known = live.news.ranks.map((rank) => rank.rank), asked = parseRanks(byId("signal-ranks").value, known);
  if (asked.length) return asked.slice(0, MOST_LINES);
  const named = [...new Set(live.news.findings.flatMap((one) => one.ranks))].filter((rank) => known.includes(rank)).slice(0, 4);
  return [...new Set([...named, ...known.slice(0, 8)])].slice(0, 8).sort((a, b) => a - b);
}

export async function refreshSignals() {
  if (!live.news || !live.news.run_id || document.hidden) return;
  const run = live.news.run_id, turn = (state.turn += 1);
  if (run !== state.run) Object.assign(state, { run, zoom: null, names: [] });
  try {
    const names = readNames(run);
    if (!state.signal) state.signal = guessed(); // so that the first chart need not wait for the names
    const early = state.signal, asked = early ? series(run) : null;
    await names;
    if (!state.names.includes(state.signal)) state.signal = firstSignal(state.names);
    if (document.activeElement !== byId("signal")) byId("signal").value = state.signal;
    if (!state.signal) { byId("chart-note").textContent = "No values have been stored yet."; return; }
    const [found] = await Promise.all([early === state.signal ? asked : series(run), readTold(run)]);
    if (turn === state.turn) show(found.ranks, found.series);
  } catch (error) {
    byId("chart-note").textContent = error.message;
  }
}

function series(run) {
  const ranks = ranksToDraw(), { mode, span } = chosen();
  const asked = get("series", { run, ranks: ranks.join(","), signal: state.signal, mode, max_points: POINTS, ...span });
  const found = asked.then((answer) => ({ ranks, series: answer.series }));
  found.catch(() => {}); // it may be that nobody waits for it any more
  return found;
}

// The signal that `firstSignal` will choose, where the news alone say so.
function guessed() {
  const [wrong = "reward.mean"] = chainsOf(live.news).map(({ root }) => root.signal);
  return live.news.ranks.some((rank) => wrong in rank.values) ? wrong : "";
}

// Names change seldom, findings when one fires or resolves: neither is asked for at every look.
async function readNames(run) {
  if (state.names.length && Date.now() - state.namesAt < NAMES_MS) return;
  const { signals, about } = await get("signals", { run });
  Object.assign(state, { names: signals, about, namesAt: signals.length > 20 ? Date.now() : 0 });
}

async function readTold(run) {
  const key = JSON.stringify([run, live.news.findings.map((one) => one.finding_id)]);
  if (key === state.toldFor) return;
  state.told = (await get("findings", { run, all: "latest" })).findings;
  state.toldFor = key;
}

// What to draw before anybody has chosen: the signal of what is wrong, else the loss.
function firstSignal(signals) {
  const wrong = chainsOf(live.news).map(({ root }) => root.signal);
  return [...wrong, "reward.mean", "policy.loss"].find((name) => signals.includes(name)) || signals[0] || "";
}

function show(ranks, answers) {
  const lines = answers.map((series, index) => ({
    label: `rank ${ranks[index]}`, steps: series.steps, low: series.low.map(finite), high: series.high.map(finite),
    bad: series.steps.filter((_, at) => series.nonfinite[at] > 0),
  }));
  const broken = answers.reduce((sum, series) => sum + series.nonfinite.reduce((a, b) => a + b, 0), 0);
  const ends = answers.filter((series) => series.steps.length).map((series) => [series.steps[0], series.steps.at(-1)]);
  const first = Math.min(...ends.map(([low]) => low)), drawnTo = Math.max(...ends.map(([, high]) => high));
  const joined = ends.length && answers.some((series) => series.steps.length > 1 && series.steps.length < (series.steps.at(-1) - series.steps[0]) / 2);
  const last = joined && !state.zoom && byId("mode").value === "train" ? Math.max(drawnTo, lastStep()) : drawnTo; // the last group begins before its newest step
  if (!state.zoom) state.whole = [first, last];
  const about = state.about[baseOf(state.signal)] || { unit: "", help: "" };
  const here = state.told.filter((one) => one.severity !== "note" && one.onset_step >= first && one.onset_step <= last)
    .sort((a, b) => (a.severity === b.severity ? a.onset_step - b.onset_step : a.severity === "critical" ? -1 : 1));
  const marks = here.map((one) => ({ step: one.onset_step, severity: one.severity, label: one.rule }));
  plot.draw(lines, { marks, logarithmic: byId("logarithmic").checked, unit: about.unit, span: state.zoom });
  byId("signal-help").textContent = about.help ? `${about.help}${about.unit ? ` (${about.unit})` : ""}` : "";
  const known = live.news.ranks.length, drawn = `rank${ranks.length > 1 ? "s" : ""} ${spans(ranks)}${ranks.length < known ? ` of ${known}` : ""}`;
  byId("chart-note").textContent = ends.length
    ? `${first === last ? `Step ${first}` : `Steps ${first} to ${last}`}, ${drawn}` + (joined ? "; every point shows the lowest and highest of its steps" : "") + (broken ? `; ${plural(broken, "value")} not finite, red at the top` : "")
    : "No values in these steps.";
  byId("chart").setAttribute("aria-label", `${state.signal}: ${byId("chart-note").textContent}`);
  Object.assign(byId("chart").dataset, { signal: state.signal, first, last, marks: marks.length, broken });
  whenChanged("marks", here, () => drawMarks(here));
  if (byId("chart-more").open) drawTable(lines);
}

const finite = (value) => (typeof value === "number" ? value : null);

function drawMarks(here) {
  byId("marks").replaceChildren(...here.slice(0, 12).map((one) => {
    const button = make("button", `step ${one.onset_step}`, "small");
    button.type = "button";
    button.addEventListener("click", () => around(one.onset_step));
    return make("li", null, "", make("span", one.severity, `badge ${one.severity}`), " ", button, ` ${one.message} (${ranksText(one.ranks)}${one.state === "resolved" ? ", over" : ""})`);
  }), ...(here.length > 12 ? [make("li", `and ${here.length - 12} more`, "quiet")] : []));
}

function drawTable(lines) {
  const steps = [...new Set(lines.flatMap((line) => line.steps))].sort((a, b) => a - b).slice(-200);
  const at = lines.map((line) => new Map(line.steps.map((step, index) => [step, index])));
  const text = (line, index) => (index === undefined ? "" : line.bad.includes(line.steps[index]) ? "not finite"
    : line.low[index] === line.high[index] ? number(line.low[index]) : `${number(line.low[index])} to ${number(line.high[index])}`);
  byId("chart-table").replaceChildren(head("step", ...lines.map((line) => line.label)), make("tbody", null, "", ...steps.map((step) =>
    make("tr", null, "", make("td", step), ...lines.map((line, index) => make("td", text(line, at[index].get(step))))))));
}

// ---- which steps

export function zoomTo(range) {
  if (!range) state.zoom = null;
  else {
    const size = Math.max(10, range[1] - range[0]), low = Math.max(0, Math.round(range[0]));
    state.zoom = [low, Math.round(low + size)];
  }
  changed();
}

const changed = () => document.dispatchEvent(new CustomEvent("look"));
const around = (step) => zoomTo([step - 50, step + 50]);
const seen = () => state.zoom || [plot.plot ? plot.plot.scales.x.min : 0, plot.plot ? plot.plot.scales.x.max : 1];

export function move(what) {
  const [low, high] = seen(), size = high - low, middle = (low + high) / 2;
  if (what === "whole") { byId("span").value = "0"; zoomTo(null); }
  if (what === "in") zoomTo([middle - size / 4, middle + size / 4]);
  if (what === "out") {
    const wide = [middle - size, middle + size];
    zoomTo(wide[0] <= state.whole[0] && wide[1] >= lastStep() ? null : [Math.max(0, wide[0]), wide[1]]);
  }
  if (what === "earlier") zoomTo([Math.max(0, low - size / 2), Math.max(size, high - size / 2)]);
  if (what === "later") zoomTo([low + size / 2, high + size / 2]);
}

export function showSignal({ signal, step, rank }) {
  if (signal) state.signal = signal;
  if (rank !== undefined && live.news.ranks.length > 8) byId("signal-ranks").value = String(rank);
  byId("signal").value = state.signal;
  closeList();
  if (step !== undefined) around(step); else changed();
  byId("signals").scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth", block: "start" });
}

// ---- search

function offer(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (name) => { const about = state.about[baseOf(name)], whole = `${name} ${about ? about.help : ""}`.toLowerCase(); return words.every((word) => whole.includes(word)); };
  const inName = (name) => (words.every((word) => name.toLowerCase().includes(word)) ? 0 : 1);
  const found = state.names.filter(fits).sort((a, b) => inName(a) - inName(b));
  Object.assign(state, { offered: found.slice(0, MOST_OFFERED), at: -1 });
  const items = state.offered.map((name, index) => {
    const about = state.about[baseOf(name)], item = make("li", null, "", make("b", name), make("span", about ? about.help : "a signal of the trainer's own", "quiet"));
    item.id = `signal-${index}`;
    item.setAttribute("role", "option");
    item.setAttribute("aria-selected", String(name === state.signal));
    item.addEventListener("pointerdown", (event) => { event.preventDefault(); pick(name); });
    return item;
  });
  if (found.length > MOST_OFFERED) items.push(make("li", `and ${found.length - MOST_OFFERED} more; type another word`, "quiet more"));
  if (!found.length) items.push(make("li", `none of the ${state.names.length} signals fits`, "quiet more"));
  byId("signal-list").replaceChildren(...items);
  byId("signal-list").hidden = false;
  byId("signal").setAttribute("aria-expanded", "true");
}

function highlight(at) {
  const items = byId("signal-list").querySelectorAll('[role="option"]');
  if (!items.length) return;
  state.at = (at + items.length) % items.length;
  items.forEach((item, index) => item.classList.toggle("at", index === state.at));
  items[state.at].scrollIntoView({ block: "nearest" });
  byId("signal").setAttribute("aria-activedescendant", items[state.at].id);
}

function pick(name) {
  state.signal = name;
  byId("signal").value = name;
  closeList();
  changed();
}

function closeList() {
  byId("signal-list").hidden = true;
  byId("signal").setAttribute("aria-expanded", "false");
  byId("signal").removeAttribute("aria-activedescendant");
}

export function search(text) {
  byId("signal").focus();
  byId("signal").value = text;
  offer(text);
}

export function startSignals() {
  const input = byId("signal");
  input.addEventListener("focus", () => { input.select(); if (byId("signal-list").hidden) offer(""); });
  input.addEventListener("input", () => offer(input.value));
  input.addEventListener("blur", () => { closeList(); input.value = state.signal; });
  input.addEventListener("keydown", (event) => {
    const open = !byId("signal-list").hidden;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      if (!open) offer(input.value === state.signal ? "" : input.value);
      highlight(state.at + (event.key === "ArrowDown" ? 1 : state.at < 0 ? 0 : -1));
      event.preventDefault();
    } else if (event.key === "Enter" && open) {
      const name = state.offered[Math.max(0, state.at)];
      if (name) pick(name);
      event.preventDefault();
    } else if (event.key === "Escape") closeList();
  });
  for (const id of ["mode", "logarithmic", "signal-ranks"]) byId(id).addEventListener("change", changed);
  byId("span").addEventListener("change", () => zoomTo(null));
  const buttons = { "zoom-in": "in", "zoom-out": "out", earlier: "earlier", later: "later", whole: "whole" };
  for (const [id, what] of Object.entries(buttons)) byId(id).addEventListener("click", () => move(what));
  byId("chart").addEventListener("keydown", (event) => {
    const what = { "+": "in", "=": "in", "-": "out", ArrowLeft: "earlier", ArrowRight: "later", 0: "whole" }[event.key];
    if (what) { move(what); event.preventDefault(); event.stopPropagation(); }
  });
  byId("chart-more").addEventListener("toggle", changed);
}
