// GPUs with a column each, the host in tiles, and the ranks' processes as the host sees them.

import { byId, head, make, NONFINITE, reading, since, whenChanged } from "./base.js";
import { showReading } from "./readings.js";

const HOT = { "device.memory_used_ratio": 0.95, "device.shm_used_ratio": 0.9, "device.disk_used_ratio": 0.95, "device.cgroup_memory_used_ratio": 0.95 };
const ZERO = ["device.gpu_lost", "device.gpu_hw_slowdown", "device.gpu_ecc_uncorrected", "device.gpu_remapped_rows_failed", "device.gpu_remapped_rows_pending", "device.cgroup_oom_kills", "device.rank_processes_dead", "device.xid_errors"];
const isGpu = (sample) => sample.labels.gpu !== undefined;
const nameOf = (sample) => (isGpu(sample) ? `GPU ${sample.labels.gpu}` : sample.entity);
const wrong = (name, value) => NONFINITE.has(value) || (ZERO.includes(name) && value > 0) || value >= (HOT[name] ?? Infinity);
const words = (name) => name.replace(/^device\.(gpu_|rank_)?/, "").replace(/_(bytes|ratio|celsius|watts|hertz|joules|seconds)\b/, "").replaceAll("_", " ");

function drawer(name, title, entities) {
  const button = make("button", title, "link");
  button.type = "button";
  button.dataset.signal = name;
  button.addEventListener("click", () => showReading(name, title, entities));
  return button;
}

// A table of readings x columns; `value(name, column)` gives undefined where there is none, `drawn(name)` what is charted.
function grid(id, names, columns, value, drawn) {
  const rows = names.map((name) => {
    const th = make("th", drawn ? null : words(name), "left", ...(drawn ? [drawer(name, words(name), drawn(name))] : []));
    th.scope = "row";
    th.title = name;
    return make("tr", null, "", th, ...columns.map((column) => { const one = value(name, column); return make("td", one === undefined ? "" : reading(name, one), one !== undefined && wrong(name, one) ? "bad" : ""); }));
  });
  byId(id).replaceChildren(...(rows.length ? [head("", ...columns), make("tbody", null, "", ...rows)] : []));
}

export function drawDevices(news) {
  whenChanged("devices", news.samples, () => {
    const gpus = news.samples.filter(isGpu), others = news.samples.filter((sample) => !isGpu(sample));
    const byName = new Map(gpus.map((sample) => [nameOf(sample), sample.values]));
    grid("gpus-table", [...new Set(gpus.flatMap((sample) => Object.keys(sample.values)))], [...byName.keys()], (name, gpu) => byName.get(gpu)[name],
      (name) => gpus.filter((sample) => name in sample.values).map((sample) => [nameOf(sample), sample.entity]));
    const outside = others.flatMap((sample) => Object.entries(sample.values).map(([name, value]) => [name, value, sample]));
    const ofRanks = outside.map(([name, value]) => [/^(device\.rank_\w+)\[(\d+)\]$/.exec(name), value]).filter(([found]) => found);
    const cells = new Map(ofRanks.map(([[, name, rank], value]) => [`${name} ${rank}`, value]));
    const ranks = [...new Set(ofRanks.map(([[, , rank]]) => Number(rank)))].sort((a, b) => a - b);
    grid("processes-table", [...new Set(ofRanks.map(([[, name]]) => name))], ranks.map((rank) => `rank ${rank}`), (name, rank) => cells.get(`${name} ${rank.slice(5)}`));
    byId("host").replaceChildren(...outside.filter(([name]) => !/\[/.test(name)).map(([name, value, sample]) =>
      make("div", null, "", make("dt", null, "", drawer(name, words(name) + (name.includes("disk") ? `, ${sample.entity}` : ""), [[nameOf(sample), sample.entity]])), make("dd", reading(name, value), wrong(name, value) ? "bad" : ""))));
    const failed = news.samples.flatMap((sample) => Object.entries(sample.failed).map(([name, reason]) => ({ name, reason, text: `${nameOf(sample)}: ${name} cannot be read: ${reason}` })));
    const none = gpus.length ? null : failed.find((one) => one.name === "device.gpu_count"); // a node without GPUs is no fault
    const trouble = failed.filter((one) => one !== none).map((one) => one.text);
    const unsupported = news.samples.filter((sample) => sample.unsupported.length).map((sample) => `${nameOf(sample)} does not offer ${sample.unsupported.map(words).join(", ")}`);
    byId("devices-trouble").replaceChildren(...(gpus.length ? [] : [make("li", `No GPU is watched${none ? `: ${none.reason.replace(/\.$/, "")}` : ""}.`, "quiet")]), ...trouble.map((text) => make("li", text, "bad")), ...unsupported.map((text) => make("li", text, "quiet")));
    byId("readings-title").hidden = !news.samples.length;
    byId("devices-title").textContent = news.samples.length ? `GPUs and host, read ${since(news.wall_ns, Math.max(...news.samples.map((sample) => sample.wall_ns)))} ago` : "GPUs and host";
  });
}
