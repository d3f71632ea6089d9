// The sentinel about itself: how far behind, what it lost, what it costs, and which rules cannot judge.

import { byId, head, make, number, plural, reading, whenChanged } from "./base.js";
import { get, live } from "./net.js";

let before = null; // the processor time of an earlier summary: a share needs two

function share(news) {
  const used = news.health.cpu_seconds_total;
  if (used === undefined) return undefined;
  if (!before || before.run !== news.run_id || news.wall_ns - before.wall > 60e9) { before = { run: news.run_id, wall: news.wall_ns, used }; return undefined; }
  const seconds = (news.wall_ns - before.wall) / 1e9;
  if (seconds < 5) return before.share;
  const found = Math.max(0, (used - before.used) / seconds);
  before = { run: news.run_id, wall: news.wall_ns, used, share: found };
  return found;
}

const lost = (health) => Object.entries(health).filter(([name, value]) => value > 0 && /missed_records_total|bad_slots_total|dropped_total|rejected_total|_errors_total/.test(name));

export function drawHealth(news) {
  const health = news.health, gone = lost(health), cost = share(news);
  const agents = news.ranks.map((rank) => rank.values["sentinel.agent_share"]).filter((value) => typeof value === "number");
  const tiles = [
    ["Behind the trainer", health.read_lag_seconds_median === undefined ? "not known" : `${reading("_seconds", health.read_lag_seconds_median)}, at most ${reading("_seconds", health.read_lag_seconds_max)}`, ""],
    ["Lost", gone.length ? gone.map(([name, value]) => `${number(value)} ${name.replace(/_total/, "").replaceAll("_", " ")}`).join(", ") : "nothing", gone.length ? "odd" : ""],
    ["Sidecar", `${cost === undefined ? "" : `${number(Math.round(cost * 1000) / 10)} % of a core, `}${reading("_bytes", health.rss_bytes)}`, ""],
    ["In the trainer", agents.length ? `${reading("_share", Math.max(...agents))} of a step` : "not known", ""],
    ["Rules that cannot judge", String(news.abstaining), ""],
  ];
  whenChanged("health", tiles, () => byId("health").replaceChildren(...tiles.map(([name, text, state]) => make("div", null, "", make("dt", name), make("dd", text, state)))));
  whenChanged("problems", news.problems, () => byId("problems").replaceChildren(...(news.problems.length ? news.problems.map((text) => make("li", text, "bad")) : [make("li", "It does its work: loop, sinks and page answer.", "good")])));
  byId("abstaining-title").textContent = `Rules that cannot judge: ${news.abstaining}`;
  if (byId("health-more").open) {
    const rows = Object.entries(health).sort(([a], [b]) => a.localeCompare(b));
    byId("health-table").replaceChildren(head("figure", "value"), make("tbody", null, "", ...rows.map(([name, value]) => make("tr", null, "", make("td", name, "left"), make("td", reading(name, value))))));
  }
}

// Reasons are asked for when they are looked at: they are many and change seldom.
export async function refreshAbstaining() {
  if (!byId("abstaining-more").open || !live.news) return;
  try {
    const { abstaining } = await get("findings", { run: live.news.run_id });
    const reasons = new Map();
    for (const [rule, why] of Object.entries(abstaining)) reasons.set(why, [...(reasons.get(why) || []), rule]);
    byId("abstaining").replaceChildren(...[...reasons].sort().map(([why, rules]) => make("li", null, "", make("b", `${why}: `), make("span", `${plural(rules.length, "rule")}: ${rules.sort().join(", ")}`))));
  } catch (error) {
    byId("abstaining").replaceChildren(make("li", error.message));
  }
}
