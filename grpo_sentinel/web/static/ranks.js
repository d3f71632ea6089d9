// The ranks as a table: where each is, and its newest values beside those of the others.

import { byId, head, make, NONFINITE, number, reading, since } from "./base.js";
import { median } from "./verdict.js";

const STATES = { alive: "ok", closed: "note", dead: "critical", unknown: "unknown" };

// A value that differs from the median by more than half of it, among at least three.
function oddOnes(ranks, name) {
  const values = ranks.map((rank) => rank.values[name]).filter((value) => typeof value === "number");
  const middle = median(values);
  return (value) => values.length > 2 && typeof value === "number" && Math.abs(value - middle) > 0.5 * Math.max(Math.abs(middle), 1e-9);
}

export function drawRanks(news) {
  const states = new Map();
  for (const rank of news.ranks) states.set(rank.liveness, (states.get(rank.liveness) || 0) + 1);
  byId("ranks-title").textContent = news.ranks.length ? `Ranks: ${[...states].map(([state, count]) => `${count} ${state}`).join(", ")}` : "Ranks";
  if (!byId("ranks-more").open) return;
  const names = [...new Set(news.ranks.flatMap((rank) => Object.keys(rank.values)))];
  const odd = Object.fromEntries(names.map((name) => [name, oddOnes(news.ranks, name)]));
  const newest = Math.max(0, ...news.ranks.map((rank) => rank.step));
  const rows = news.ranks.map((rank) => make("tr", null, "",
    make("td", rank.rank, "left"), make("td", rank.host),
    make("td", null, "", make("span", rank.closed_detail || rank.liveness, `badge ${STATES[rank.liveness]}`)),
    make("td", rank.step, rank.step < newest - 1 ? "odd" : ""), make("td", rank.phase),
    make("td", since(news.wall_ns, rank.phase_since_wall_ns)), make("td", since(news.wall_ns, rank.updated_wall_ns)),
    ...names.map((name) => make("td", rank.values[name] === undefined ? number() : reading(name, rank.values[name]), NONFINITE.has(rank.values[name]) ? "bad" : odd[name](rank.values[name]) ? "odd" : ""))));
  byId("ranks-table").replaceChildren(head("rank", "host", "state", "step", "phase", "in it for", "last news", ...names.map((name) => name.replace(/_(nats|seconds|bytes)$/, ""))), make("tbody", null, "", ...rows));
}
