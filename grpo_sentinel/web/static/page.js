// Draws a summary. Everything that comes from a trainer enters through textContent, never as markup.
"use strict";

const byId = (id) => document.getElementById(id);

function make(tag, text, className, ...children) {
  const element = document.createElement(tag);
  if (text !== undefined && text !== null) element.textContent = text;
  if (className) element.className = className;
  element.append(...children);
  return element;
}

const NONFINITE = new Set(["NaN", "Infinity", "-Infinity"]);

function number(value) {
  if (value === undefined || value === null) return "–";
  if (NONFINITE.has(value)) return value;
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e6 || size < 1e-3)) return value.toExponential(2);
  return Number.isInteger(value) ? String(value) : value.toPrecision(4).replace(/\.?0+$/, "");
}

function bytes(value) {
  if (typeof value !== "number") return number(value);
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let index = 0;
  while (Math.abs(value) >= 1024 && index < units.length - 1) { value /= 1024; index += 1; }
  return `${value.toFixed(index ? 1 : 0)} ${units[index]}`;
}

function age(seconds) {
  if (!(seconds >= 0)) return "0 s";
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

const since = (nowNs, thenNs) => (thenNs ? age((nowNs - thenNs) / 1e9) : "–");
const ranksText = (ranks) => (ranks.length ? `rank ${ranks.join(", ")}` : "rank not known");
const order = { critical: 2, warning: 1, note: 0 };

function drawVerdict(news) {
  const roots = news.findings.filter((finding) => !finding.root_id)
    .sort((a, b) => order[b.severity] - order[a.severity] || a.onset_step - b.onset_step);
  const first = roots.find((finding) => finding.severity !== "note");
  const dead = news.ranks.filter((rank) => rank.liveness === "dead");
  let state = "ok", title = "Nothing is wrong", text = `${news.ranks.length} ranks are watched.`;
  if (!news.ranks.length) {
    [state, title, text] = ["unknown", "No rank has been seen", "The sidecar runs and waits for a trainer."];
  } else if (first) {
    state = first.severity;
    title = first.message;
    text = `Began in layer ${first.layer}, ${ranksText(first.ranks)}, at step ${first.onset_step}.`;
  } else if (dead.length) {
    [state, title] = ["critical", `${ranksText(dead.map((rank) => rank.rank))} died`];
  } else if (news.layers.every((layer) => layer.state === "unknown")) {
    [state, title] = ["unknown", "No signal has arrived yet"];
  }
  if (news.halt.state !== "none") text += ` ${haltText(news.halt)}`;
  byId("verdict").className = `panel ${state}`;
  byId("verdict-title").textContent = title;
  byId("verdict-text").textContent = text;
  byId("notes").replaceChildren(...news.notes.map((note) => make("li", note)));
  document.title = `${state === "ok" ? "" : "● "}${news.run_id || "grpo-sentinel"}`;
}

function drawLayers(news) {
  const words = { ok: "ok", unknown: "no signal", note: "note", warning: "warning", critical: "critical" };
  byId("layers").replaceChildren(...news.layers.map((layer) => {
    const item = make("li", null, layer.state, make("b", layer.layer), make("span", words[layer.state]));
    if (layer.root) item.title = layer.root;
    return item;
  }));
}

function findingElement(finding, followers, open) {
  const facts = [finding.layer, ranksText(finding.ranks), `since step ${finding.onset_step}`];
  if (finding.step !== finding.onset_step) facts.push(`seen at step ${finding.step}`);
  if (finding.subject) facts.push(finding.subject);
  if (finding.value !== null) facts.push(`${finding.signal} = ${number(finding.value)}` + (finding.limit === null ? "" : `, limit ${number(finding.limit)}`));
  const box = make("article", null, `finding ${finding.severity}`,
    make("div", null, "", make("span", finding.severity, `badge ${finding.severity}`), " ", make("strong", finding.message)),
    make("div", facts.join(" · "), "quiet"));
  if (finding.why || finding.remedies.length || finding.reference) {
    const more = make("details", null, "", make("summary", "Why it matters and what to try"));
    more.dataset.key = finding.finding_id;
    more.open = open.has(finding.finding_id);
    if (finding.why) more.append(make("p", finding.why));
    if (finding.remedies.length) more.append(make("ul", null, "", ...finding.remedies.map((text) => make("li", text))));
    more.append(make("p", `rule ${finding.rule}${finding.reference ? ` · ${finding.reference}` : ""}`, "quiet"));
    box.append(more);
  }
  if (followers.length) {
    const chain = make("div", null, "chain", make("div", "What followed from it", "quiet"));
    followers.forEach((one) => chain.append(findingElement(one, [], open)));
    box.append(chain);
  }
  return box;
}

function drawFindings(news) {
  const target = byId("findings");
  const open = new Set([...target.querySelectorAll("details[open]")].map((one) => one.dataset.key));
  const ids = new Set(news.findings.map((finding) => finding.finding_id));
  const roots = news.findings.filter((finding) => !ids.has(finding.root_id));
  const elements = roots.map((root) =>
    findingElement(root, news.findings.filter((one) => one.root_id === root.finding_id && one !== root), open));
  if (!elements.length) elements.push(make("p", "Nothing fires.", "quiet"));
  if (news.abstaining) elements.push(make("p", `Rules that cannot judge, because the signals they need do not arrive: ${news.abstaining}.`, "quiet"));
  target.replaceChildren(...elements);
}

function header(names) {
  const words = new Set(["host", "state", "phase", "reading"]);
  return make("thead", null, "", make("tr", null, "", ...names.map((name) => make("th", name, words.has(name) ? "left" : ""))));
}

function oddOnes(ranks, name) {
  // a replica that differs from the median by more than half of it, among at least three
  const values = ranks.map((rank) => rank.values[name]).filter((value) => typeof value === "number").sort((a, b) => a - b);
  if (values.length < 3) return () => false;
  const middle = values[Math.floor(values.length / 2)];
  return (value) => typeof value === "number" && Math.abs(value - middle) > 0.5 * Math.max(Math.abs(middle), 1e-9);
}

function drawRanks(news) {
  const names = [...new Set(news.ranks.flatMap((rank) => Object.keys(rank.values)))];
  const odd = Object.fromEntries(names.map((name) => [name, oddOnes(news.ranks, name)]));
  const newest = Math.max(0, ...news.ranks.map((rank) => rank.step));
  const body = make("tbody");
  const states = { alive: "ok", closed: "note", dead: "critical", unknown: "unknown" };
  for (const rank of news.ranks) {
    const state = make("td", null, "left", make("span", rank.closed_detail || rank.liveness, `badge ${states[rank.liveness]}`));
    const row = make("tr", null, "", make("td", rank.rank), make("td", rank.host, "left"), state,
      make("td", rank.step, rank.step < newest - 1 ? "odd" : ""), make("td", rank.phase, "left"),
      make("td", since(news.wall_ns, rank.phase_since_wall_ns)), make("td", since(news.wall_ns, rank.updated_wall_ns)));
    for (const name of names) {
      const value = rank.values[name];
      const shown = name.endsWith("_bytes") ? bytes(value) : number(value);
      row.append(make("td", shown, NONFINITE.has(value) ? "bad" : odd[name](value) ? "odd" : ""));
    }
    body.append(row);
  }
  const heads = ["rank", "host", "state", "step", "phase", "in it for", "last news", ...names.map((name) => name.replace(/_(nats|seconds|bytes)$/, ""))];
  byId("ranks").replaceChildren(header(heads), body);
}

function drawDevices(news) {
  const body = make("tbody");
  for (const sample of news.samples) {
    for (const [name, value] of Object.entries(sample.values)) {
      const shown = name.includes("_bytes") ? bytes(value) : number(value);
      body.append(make("tr", null, "", make("td", sample.labels.gpu !== undefined ? `GPU ${sample.labels.gpu}` : sample.entity),
        make("td", name.replace(/^device\./, ""), "left"), make("td", shown, NONFINITE.has(value) ? "bad" : ""), make("td", since(news.wall_ns, sample.wall_ns))));
    }
    for (const [name, reason] of Object.entries(sample.failed))
      body.append(make("tr", null, "", make("td", sample.entity), make("td", name, "left"), make("td", "failed", "bad"), make("td", reason)));
    if (sample.unsupported.length)
      body.append(make("tr", null, "", make("td", sample.entity), make("td", "not offered by this device", "left"), make("td", sample.unsupported.length), make("td", "")));
  }
  byId("devices").replaceChildren(header(["device", "reading", "value", "age"]), body);
}

function drawHealth(news) {
  const rows = Object.entries(news.health).sort(([a], [b]) => a.localeCompare(b));
  byId("health").replaceChildren(make("tbody", null, "", ...rows.map(([name, value]) =>
    make("tr", null, "", make("td", name), make("td", /bytes$/.test(name) ? bytes(value) : number(value))))));
}

function haltText(halt) {
  if (halt.state === "none") return "Nothing has been asked.";
  const asked = `${halt.action.replaceAll("_", "-")} asked by ${halt.requested_by || "user"}${halt.reason ? ` (${halt.reason})` : ""}`;
  const step = halt.step ? ` at step ${halt.step}` : "";
  return `Request ${halt.request_id}: ${asked}; ${halt.state}${step}${halt.detail ? `: ${halt.detail}` : ""}.` +
    (halt.dry_run ? " Dry run: nothing was really asked." : "") +
    (halt.pinned_checkpoint ? ` Kept: ${halt.pinned_checkpoint}` : "");
}

function drawRuns(news) {
  const select = byId("run");
  const wanted = news.runs.length ? news.runs : [""];
  if (JSON.stringify([...select.options].map((one) => one.value)) !== JSON.stringify(wanted))
    select.replaceChildren(...wanted.map((run) => { const one = make("option", run || "none yet"); one.value = run; return one; }));
  select.value = news.run_id;
  byId("node").textContent = news.node ? `node ${news.node}` : "";
}

function draw(news) {
  drawRuns(news);
  drawVerdict(news);
  drawLayers(news);
  drawFindings(news);
  drawRanks(news);
  drawDevices(news);
  drawHealth(news);
  byId("halt-state").textContent = haltText(news.halt);
}
