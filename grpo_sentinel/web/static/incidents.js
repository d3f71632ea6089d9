// Incidents: what was wrong together, the walk back to its cause, and its signals around the onset.

import { byId, clockTime, head, make, plural, whenChanged } from "./base.js";
import { findingElement } from "./findings.js";
import { get, live } from "./net.js";
import { Plot } from "./plot.js";
import { drawVerdict } from "./verdict.js";

const GOOD = /^good/, WRONG = /^wrong/;
let plots = [], shown = "";

export async function refreshIncidents() {
  if (!live.news || !live.news.run_id || document.hidden) return;
  const health = live.news.health, key = [live.news.run_id, health.incidents_opened_total, health.incidents_written_total, health.incidents_open];
  if (JSON.stringify(key) === shown) return;
  try {
    const { incidents, note } = await get("incidents", { run: live.news.run_id });
    live.incidents = { of: key[0], heads: incidents };
    drawVerdict(live.news);
    whenChanged("incidents", incidents, () => drawList(incidents, note));
    shown = JSON.stringify(key);
  } catch (error) {
    byId("incidents-list").replaceChildren(make("p", error.message, "quiet"));
  }
}

function drawList(incidents, note) {
  const open = new Set([...byId("incidents-list").querySelectorAll("details[open]")].map((one) => one.dataset.name));
  plots.forEach((plot) => plot.close());
  plots = [];
  byId("incidents-title").textContent = incidents.length ? `Incidents: ${incidents.length}` : "Incidents";
  byId("incidents-list").replaceChildren(...(incidents.length ? incidents.map((one) => element(one, open.has(one.name))) : [make("p", note || "There is none.", "quiet")]));
}

function element(about, open) {
  const summary = make("summary", null, "", make("span", about.state, `badge ${about.state === "open" ? "critical" : "note"}`), " ",
    make("strong", about.title), make("span", ` step ${about.onset_step}, ${clockTime(about.opened_wall_ns)}`, "quiet"));
  const body = make("div", "Reading the evidence …", "incident");
  const details = make("details", null, "", summary, body);
  details.dataset.name = about.name;
  details.addEventListener("toggle", async () => {
    if (!details.open || details.dataset.read) return;
    details.dataset.read = "1";
    try { drawView(body, await get("incident", { name: about.name })); } catch (error) { body.textContent = error.message; delete details.dataset.read; }
  });
  details.open = open;
  return details;
}

const table = (rows, header) => make("table", null, "", ...(header ? [head(...header)] : []), make("tbody", null, "", ...rows));
const wide = (label, inside) => { const box = make("div", null, "wide", inside); box.tabIndex = 0; box.setAttribute("role", "region"); box.setAttribute("aria-label", label); return box; };

function drawView(body, view) {
  const facts = table(view.facts.map(([name, value]) => make("tr", null, "", make("th", name, "left"), make("td", value, "text"))));
  facts.className = "facts";
  const walk = table(view.walk.rows.map(([layer, told, ...answers]) => make("tr", null, "", make("th", layer, "left"),
    make("td", told, told === "nothing found" ? "text quiet" : "text told"),
    ...answers.map((text) => make("td", text, `text ${WRONG.test(text) ? "bad" : GOOD.test(text) ? "good" : "quiet"}`)))), view.walk.head);
  walk.className = "walk";
  const charts = make("div", null, "plots");
  body.replaceChildren(
    make("p", view.first_wrong, "says"), facts,
    make("h3", "The walk backwards"), make("p", "From the symptom down to the cause; every layer is asked the same four questions.", "quiet"), wide("The walk backwards", walk),
    make("h3", "What happened"), ...view.chains.map(({ root, followers }) => findingElement(root, followers)),
    make("h3", "Signals"), make("p", "The dashed line is the onset; red at the top is a value that is not finite.", "quiet"), charts,
    wide("The last values", table(view.values.rows.map((row) => make("tr", null, "", ...row.map((cell, index) => make("td", cell, index ? "" : "left")))), view.values.head)),
    make("p", null, "quiet", "All of it, with stacks and logs: ", make("code", `grpo-sentinel incident show ${view.about.incident_id}`), ` or ${view.folder}`),
    ...Object.entries(view.missing).map(([what, why]) => make("p", `Not kept: ${what}: ${why}`, "quiet")));
  view.plots.forEach((one) => drawPlot(charts, one, view.about.onset_step));
}

function drawPlot(target, one, onset) {
  const box = make("div", null, "plot"), figure = make("figure", null, "", make("figcaption", `${one.signal}${one.unit ? ` (${one.unit})` : ""}${one.left_out ? `, and ${plural(one.left_out, "more rank")}` : ""}`), box);
  box.setAttribute("role", "img");
  target.append(figure);
  const lines = one.lines.map((points, index) => {
    const steps = points.map(([step]) => step), values = points.map(([, value]) => (typeof value === "number" ? value : null));
    return { label: `rank ${one.ranks[index]}`, steps, low: values, high: values, bad: points.filter(([, value]) => typeof value !== "number").map(([step]) => step) };
  });
  const broken = lines.reduce((sum, line) => sum + line.bad.length, 0);
  box.setAttribute("aria-label", `${one.signal}, ${plural(lines.length, "rank")}, onset at step ${onset}${broken ? `, ${broken} values not finite` : ""}`);
  const plot = new Plot(box, { height: 170, legend: false });
  plots.push(plot);
  plot.draw(lines, { marks: [{ step: onset, severity: "critical" }] });
}
