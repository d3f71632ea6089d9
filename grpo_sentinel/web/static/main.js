// Puts the page together: every summary is drawn at once, what costs a query is looked at again every few seconds.

import { drawAct, startAct } from "./act.js";
import { byId, make, whenChanged } from "./base.js";
import { drawDevices } from "./devices.js";
import { drawFindings } from "./findings.js";
import { chooseHeat, draw as drawHeat, heatBy, refreshHeat, startHeat } from "./heat.js";
import { drawHealth, refreshAbstaining } from "./health.js";
import { refreshIncidents } from "./incidents.js";
import { startKeys } from "./keys.js";
import { get, live, otherRun, stay } from "./net.js";
import { drawRanks } from "./ranks.js";
import { refreshReading } from "./readings.js";
import { chosen, refreshSignals, search, showSignal, startSignals } from "./signals.js";
import { drawVerdict } from "./verdict.js";
import { refreshWalk } from "./walk.js";

const LOOK_MS = 5000, SHARE = 20, MOST_MS = 60000, RUNS_MS = 30000; // looking costs the sidecar at most a twentieth of the time
let run = null;

// Runs that are watched, and below them those that the history still knows.
let known = [], askedAt = 0;
function drawRuns(news) {
  const past = [...new Set([...(news.past ? [news.run_id] : []), ...known])].filter((name) => !news.runs.includes(name));
  const option = (name) => { const one = make("option", name); one.value = name; return one; };
  whenChanged("runs", [news.runs, past], () => {
    const group = make("optgroup", null, "", ...past.map(option));
    group.label = "not watched now";
    byId("run").replaceChildren(...(news.runs.length ? news.runs.map(option) : [Object.assign(make("option", "none is watched"), { value: "" })]), ...(past.length ? [group] : []));
  });
  byId("run").value = news.run_id;
  byId("node").textContent = news.node ? `node ${news.node}` : "";
  if (Date.now() - askedAt > RUNS_MS) { askedAt = Date.now(); get("runs", {}).then(({ runs }) => { known = runs.map((one) => one.run_id); if (live.news) drawRuns(live.news); }).catch(() => {}); }
}

function receive(news) {
  for (const part of [drawRuns, drawVerdict, drawAct, drawFindings, drawRanks, drawDevices, drawHealth]) part(news);
  if (news.run_id !== run) { run = news.run_id; chooseHeat(news.ranks.length); look(); }
}

// The map over steps shows the signal of the chart; the one over signals need not wait for it.
async function chartThenMap() {
  const over = () => { const { signal, span, mode } = chosen(); return refreshHeat(signal, span, mode); };
  if (heatBy() === "step") { await refreshSignals(); await over(); } else await Promise.all([refreshSignals(), over()]);
}

// A look may take long on a slow disk or a long run: the next one waits for it, and comes later.
let looking = false, again = false, timer = 0;
async function look() {
  if (looking) { again = true; return; }
  looking = true;
  clearTimeout(timer);
  const began = performance.now();
  do {
    again = false;
    await Promise.all([chartThenMap(), refreshIncidents(), refreshAbstaining(), refreshWalk(), refreshReading()]);
  } while (again);
  looking = false;
  timer = setTimeout(look, Math.max(LOOK_MS, Math.min(MOST_MS, SHARE * (performance.now() - began))));
}

startHeat(look);
startSignals();
startAct();
startKeys();
byId("run").addEventListener("change", (event) => otherRun(event.target.value));
for (const id of ["ranks-more", "health-more"]) byId(id).addEventListener("toggle", () => live.news && receive(live.news));
byId("abstaining-more").addEventListener("toggle", refreshAbstaining);
byId("walk-more").addEventListener("toggle", refreshWalk);
document.addEventListener("look", () => { if (live.news) { look(); drawHeat(); } });
document.addEventListener("show-signal", (event) => showSignal(event.detail));
document.addEventListener("show-layer", (event) => {
  const finding = [...byId("findings-list").querySelectorAll(".finding")].find((one) => one.querySelector(".quiet").textContent.startsWith(`${event.detail} layer`));
  if (finding) { finding.scrollIntoView({ block: "center" }); finding.focus({ preventScroll: true }); } else { byId("signals").scrollIntoView(); search(`${event.detail}.`); }
});
document.addEventListener("visibilitychange", () => { if (!document.hidden && live.news) look(); });
stay(receive);
