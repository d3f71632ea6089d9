// One signal over the run, one line per rank; thinned by the server, so a week of training draws like a minute.
"use strict";

const chart = { plot: null, key: "", zoom: null, names: "" };
const COLOURS = ["#1d6fa5", "#c1541b", "#2b8a57", "#8a4fa3", "#b08a00", "#c2366b", "#2a8f9c", "#6b6f2b"];
const MAX_RANKS = 16;

const finite = (value) => (typeof value === "number" ? value : null);

async function drawChart(news) {
  const run = news.run_id, signal = byId("signal").value;
  if (!run || !signal) return;
  const ranks = news.ranks.map((rank) => rank.rank).slice(0, MAX_RANKS);
  const range = chart.zoom ? `&since=${Math.max(0, Math.floor(chart.zoom[0]))}&until=${Math.max(0, Math.ceil(chart.zoom[1]))}` : "";
  const query = (rank) => `/api/v1/series?run=${encodeURIComponent(run)}&rank=${rank}&signal=${encodeURIComponent(signal)}` +
    `&mode=${byId("mode").value}&max_points=600${range}`;
  const answers = await Promise.all(ranks.map((rank) => ask(query(rank))));
  const steps = [...new Set(answers.flatMap((series) => series.steps))].sort((a, b) => a - b);
  const place = new Map(steps.map((step, index) => [step, index]));
  const data = [steps];
  let nonfinite = 0;
  for (const series of answers) {
    const low = new Array(steps.length).fill(null), high = new Array(steps.length).fill(null);
    series.steps.forEach((step, index) => {
      low[place.get(step)] = finite(series.low[index]);
      high[place.get(step)] = finite(series.high[index]);
      nonfinite += series.nonfinite[index];
    });
    data.push(high, low);
  }
  const onsets = news.findings.filter((finding) => finding.severity !== "note").map((finding) => finding.onset_step);
  show(ranks, data, onsets, `${run} ${signal} ${ranks}`);
  byId("chart-note").textContent = steps.length
    ? `steps ${steps[0]} to ${steps[steps.length - 1]}` + (nonfinite ? `, ${nonfinite} values not finite` : "") + (news.ranks.length > MAX_RANKS ? `, first ${MAX_RANKS} ranks` : "")
    : "no values in this range yet";
}

function show(ranks, data, onsets, key) {
  chart.onsets = onsets;
  if (chart.plot && chart.key === key) { chart.plot.setData(data); return; }
  if (chart.plot) chart.plot.destroy();
  const style = getComputedStyle(document.body);
  const axis = { stroke: style.getPropertyValue("--quiet"), grid: { stroke: style.getPropertyValue("--line"), width: 1 } };
  const series = [{ label: "step" }];
  const bands = [];
  ranks.forEach((rank, index) => {
    const colour = COLOURS[index % COLOURS.length];
    bands.push({ series: [series.length, series.length + 1], fill: `${colour}33` });
    series.push({ label: `rank ${rank}`, stroke: colour, width: 1.5, spanGaps: true });
    series.push({ label: `rank ${rank} lowest`, stroke: colour, width: 0.5, spanGaps: true });
  });
  chart.key = key;
  chart.plot = new uPlot({
    width: byId("chart").clientWidth || 600,
    height: 260,
    scales: { x: { time: false } },
    axes: [axis, { ...axis, size: 70, values: (_, ticks) => ticks.map(number) }],
    series,
    bands,
    hooks: { draw: [markOnsets], setSelect: [(plot) => zoomTo([plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x")])] },
    cursor: { drag: { x: true, y: false, setScale: false } },
  }, data, byId("chart"));
}

function markOnsets(plot) {
  const context = plot.ctx;
  context.save();
  context.strokeStyle = getComputedStyle(document.body).getPropertyValue("--critical");
  context.setLineDash([4, 4]);
  for (const step of chart.onsets || []) {
    const x = plot.valToPos(step, "x", true);
    if (x < plot.bbox.left || x > plot.bbox.left + plot.bbox.width) continue;
    context.beginPath();
    context.moveTo(x, plot.bbox.top);
    context.lineTo(x, plot.bbox.top + plot.bbox.height);
    context.stroke();
  }
  context.restore();
}

function zoomTo(range) {
  if (range && range[1] - range[0] < 1) return;
  chart.zoom = range;
  refreshChart();
}

async function refreshSignals(run) {
  const answer = await ask(`/api/v1/signals?run=${encodeURIComponent(run)}`);
  const names = JSON.stringify(answer.signals);
  if (names === chart.names) return;
  chart.names = names;
  const select = byId("signal"), before = select.value || "policy.loss";
  select.replaceChildren(...answer.signals.map((name) => make("option", name)));
  select.value = answer.signals.includes(before) ? before : answer.signals[0];
}

async function refreshChart() {
  const news = live.news;
  if (!news || !news.run_id || document.hidden) return;
  try {
    await refreshSignals(news.run_id);
    await drawChart(news);
  } catch (error) {
    byId("chart-note").textContent = error.message;
  }
}
