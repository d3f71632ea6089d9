// One uPlot chart: a line per rank, its lowest and highest where steps are joined, findings and broken values marked.

import { colour, number } from "./base.js";

export const LINES = ["#2f7fb8", "#d2691e", "#2e9e63", "#a05fbf", "#b58900", "#d6457a", "#2a9fb0", "#7d8a2e"];
const MOST_MARKS = 60;

// A tick of an axis, which has room for eight letters: 4008000000 -> 4.008 G
function short(value) {
  const power = Math.min(4, Math.floor(Math.log10(Math.abs(value) || 1) / 3));
  return Math.abs(value) < 1e4 ? number(value) : `${number(value / 1000 ** power)} ${["", "k", "M", "G", "T"][power]}`;
}

// lines: [{ label, steps, low, high, bad: [step] }], all numbers; a value that is not finite is null and its step in `bad`.
export function tableOf(lines) {
  const steps = [...new Set(lines.flatMap((line) => line.steps))].sort((a, b) => a - b);
  const place = new Map(steps.map((step, index) => [step, index]));
  const data = [steps];
  for (const line of lines) {
    const low = new Array(steps.length), high = new Array(steps.length); // undefined: no point of this line, drawn through
    line.steps.forEach((step, index) => { low[place.get(step)] = line.low[index]; high[place.get(step)] = line.high[index]; });
    data.push(high, low);
  }
  return data;
}

export class Plot {
  constructor(target, { height, onZoom, legend = true, time = false }) {
    Object.assign(this, { target, height, onZoom, legend, time, key: "", plot: null, marks: [], bad: [] });
    this.watcher = new ResizeObserver(() => this.plot && this.target.clientWidth && this.plot.setSize({ width: this.target.clientWidth, height: this.height }));
    this.watcher.observe(target);
  }

  draw(lines, { marks = [], logarithmic = false, unit = "", span = null } = {}) {
    const data = tableOf(lines);
    if (logarithmic) for (const column of data.slice(1)) column.forEach((value, index) => { if (value <= 0) column[index] = null; });
    Object.assign(this, { marks: marks.slice(0, MOST_MARKS), bad: lines.map((line) => line.bad || []), span });
    this.target.dataset.points = data[0].length;
    this.target.dataset.lines = lines.length;
    const key = JSON.stringify([lines.map((line) => line.label), logarithmic, unit, document.documentElement.dataset.theme, matchMedia("(prefers-color-scheme: dark)").matches]);
    if (this.plot && this.key === key) { this.plot.setData(data); return; }
    this.close();
    this.key = key;
    this.plot = new uPlot(this.options(lines, logarithmic, unit), data, this.target);
  }

  options(lines, logarithmic, unit) {
    const axis = { stroke: colour("quiet"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line") } };
    const series = [{ label: this.time ? "time" : "step" }], bands = [];
    lines.forEach((line, index) => {
      const stroke = LINES[index % LINES.length], points = { size: 4 };
      bands.push({ series: [series.length, series.length + 1], fill: `${stroke}40` });
      series.push({ label: line.label, stroke, width: 1.5, points, value: (_, value) => number(value) });
      series.push({ label: `${line.label}, lowest`, stroke, width: 0.5, points: { show: false } });
    });
    return {
      width: this.target.clientWidth || 300,
      height: this.height,
      legend: { show: this.legend },
      scales: { x: { time: this.time, range: (plot, low, high) => this.span || (low === high ? [low - 1, high + 1] : [low, high]) }, y: logarithmic ? { distr: 3 } : {} },
      axes: [this.time ? axis : { ...axis, values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? String(tick) : "")) }, { ...axis, size: 64, label: unit || undefined, labelSize: 18, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : short(tick))) }],
      series,
      bands,
      hooks: { draw: [(plot) => this.paint(plot)], setSelect: this.onZoom ? [(plot) => {
        const [left, width] = [plot.select.left, plot.select.width];
        plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        if (width > 4) this.onZoom([plot.posToVal(left, "x"), plot.posToVal(left + width, "x")]);
      }] : [] },
      cursor: { drag: { x: Boolean(this.onZoom), y: false, setScale: false } },
    };
  }

  paint(plot) {
    const context = plot.ctx, { left, top, width, height } = plot.bbox, ratio = devicePixelRatio || 1;
    const inside = (x) => x >= left - 1 && x <= left + width + 1;
    context.save();
    context.lineWidth = 1.5 * ratio;
    context.font = `${11 * ratio}px system-ui, sans-serif`;
    let free = -Infinity;
    const first = new Map(); // of several findings at one step the first is drawn: they come with the worst in front
    for (const mark of this.marks) if (!first.has(mark.step)) first.set(mark.step, mark);
    for (const mark of [...first.values()].sort((a, b) => a.step - b.step)) {
      const x = plot.valToPos(mark.step, "x", true);
      if (!inside(x)) continue;
      context.strokeStyle = context.fillStyle = colour(mark.severity);
      context.setLineDash([5 * ratio, 4 * ratio]);
      context.beginPath();
      context.moveTo(x, top);
      context.lineTo(x, top + height);
      context.stroke();
      if (mark.label && x > free) {
        const wide = context.measureText(mark.label).width, room = left + width - x;
        context.textAlign = room < wide + 8 ? "right" : "left";
        context.fillText(mark.label, x + (room < wide + 8 ? -4 : 4) * ratio, top + 20 * ratio);
        free = x + wide + 10 * ratio;
      }
    }
    context.setLineDash([]);
    context.strokeStyle = colour("critical");
    context.lineWidth = 2.5 * ratio;
    for (const steps of this.bad) for (const step of steps) {
      const x = plot.valToPos(step, "x", true);
      if (!inside(x)) continue;
      context.beginPath();
      context.moveTo(x, top);
      context.lineTo(x, top + 8 * ratio);
      context.stroke();
    }
    context.restore();
  }

  close() {
    if (this.plot) this.plot.destroy();
    this.plot = null;
    this.key = "";
  }
}
