// The first sentence: what is wrong and where it began. Then the layers, in the order in which a fault spreads.

import { byId, make, plural, ranksText, reading, whenChanged } from "./base.js";
import { live } from "./net.js";

const CHAIN = ["data", "reward", "policy", "gradient", "optimizer"];
const SAYS = { ok: "nothing fires", unknown: "not watched", note: "note", warning: "warning", critical: "critical" };

// Every root with what follows from it, as the sidecar has chained them: what to read first in front.
export function chainsOf(news) {
  const byName = new Map(news.findings.map((one) => [one.finding_id, one]));
  return news.chains.map(({ root, followers, severity }) => ({ root: byName.get(root), followers: followers.map((one) => byName.get(one)), severity }));
}

// State, title, text, and what to try first.
function verdict(news) {
  const told = chainsOf(news).filter((one) => one.severity !== "note");
  if (!news.ranks.length) return ["unknown", "No rank has been seen yet", "The sidecar is up and waits for a trainer with the agent attached. Runs of the past are in the list of runs above."];
  if (told.length) {
    const { root, followers, severity } = told[0], others = told.length - 1;
    const text = `It began in the ${root.layer} layer, on ${ranksText(root.ranks)}, at step ${root.onset_step}.` +
      (followers.length ? ` ${plural(followers.length, "finding follows", "findings follow")} from it.` : "") +
      (others ? ` ${plural(others, "other thing is", "other things are")} wrong beside it.` : "");
    return [severity, sentence(root.message), text, root.remedies[0]];
  }
  const dead = news.ranks.filter((rank) => rank.liveness === "dead").map((rank) => rank.rank);
  if (dead.length) return ["critical", `${sentence(ranksText(dead))} died without a word`, "The process is gone and did not close its ring; the log of the launcher may say why."];
  if (over(news)) return ["note", "The run has ended", ""];
  if (news.layers.every((layer) => layer.state === "unknown")) return ["unknown", "No signal has arrived yet", "Nothing can be said before the first step."];
  if (news.past) return ["unknown", "Nothing was wrong when this run was last seen", progress(news)];
  const had = incidents(news).length, title = `Nothing is wrong ${had ? "now " : ""}in what is watched`;
  if (news.problems.length) return ["warning", `${title}, but the sentinel itself has trouble`, progress(news)];
  return [had ? "note" : "ok", title, progress(news)];
}

function progress(news) {
  const seconds = median(news.ranks.map((rank) => rank.values["time.step_seconds"]));
  const unwatched = news.layers.filter((layer) => layer.state === "unknown").map((layer) => layer.layer);
  const unjudged = news.layers.filter((layer) => layer.state === "ok" && (news.judging[layer.layer] || [1])[0] === 0).map((layer) => layer.layer);
  return `${plural(news.ranks.length, "rank")} at step ${Math.max(...news.ranks.map((rank) => rank.step))}` +
    (seconds === undefined ? "" : `, a step takes ${reading("_seconds", seconds)}`) +
    (unwatched.length ? `. Not watched: ${unwatched.join(", ")}.` : ".") +
    (unjudged.length ? ` Not judged, though signals arrive: ${unjudged.join(", ")}.` : "") +
    (news.abstaining ? ` ${plural(news.abstaining, "rule")} cannot judge, see “The sentinel itself”.` : "");
}

export const over = (news) => news.ranks.length > 0 && news.ranks.every((rank) => rank.liveness === "closed" || rank.liveness === "dead");

// How a run that is over has ended, and where to go on from unless it came to its own end.
function ending(news) {
  if (!over(news)) return [];
  const said = [...new Set(news.ranks.map((rank) => rank.closed_detail).filter(Boolean))];
  const dead = news.ranks.filter((rank) => rank.liveness === "dead").map((rank) => rank.rank);
  const { halt } = news, saved = halt.state === "done" && !halt.dry_run;
  const how = `The run ended at step ${Math.max(...news.ranks.map((rank) => rank.step))}: ` +
    ([dead.length ? `${ranksText(dead)} died` : "", ...said].filter(Boolean).join("; ") || "every rank closed in order") + ".";
  if (!dead.length && said.every((text) => text === "finished")) return [how];
  const asked = saved ? ` ${sentence(halt.action.replaceAll("_", "-"))}, asked by ${halt.requested_by || "user"}${halt.reason ? ` (${halt.reason})` : ""}.` : "";
  const kept = (saved && halt.detail ? ` Saved: ${halt.detail}.` : "") + (halt.pinned_checkpoint ? ` Kept from before the onset: ${halt.pinned_checkpoint}.` : "");
  return [`${how}${asked}${kept} The checkpoint to resume from: `, make("code", `grpo-sentinel resume-point ${news.run_id}`)];
}

const incidents = (news) => (live.incidents.of === news.run_id ? live.incidents.heads : []);

// What the run went through before: that nothing is wrong now must not hide it.
function past(news) {
  const [last] = incidents(news), count = incidents(news).length;
  if (!count || news.chains.some((one) => one.severity !== "note")) return [];
  const link = make("a", plural(count, "incident"));
  link.href = "#incidents";
  return ["This run had ", link, `, ${count > 1 ? "the last " : ""}at step ${last.onset_step}: ${last.title}`];
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

export function median(values) {
  const known = values.filter((value) => typeof value === "number").sort((a, b) => a - b);
  return known[Math.floor(known.length / 2)];
}

export function drawVerdict(news) {
  document.documentElement.toggleAttribute("data-empty", !news.ranks.length && !news.findings.length);
  const [state, title, text, remedy] = verdict(news), shown = [news.halt, over(news), incidents(news), news.problems];
  whenChanged("verdict", [state, title, text, remedy, news.notes, news.run_id, shown], () => {
    byId("overview").className = `panel verdict ${state}`;
    byId("verdict-title").textContent = title;
    byId("verdict-text").textContent = text;
    byId("verdict-try").replaceChildren(...(remedy ? [make("b", "Try first: "), remedy] : []));
    byId("verdict-end").replaceChildren(...ending(news));
    byId("verdict-past").replaceChildren(...past(news));
    byId("trouble").replaceChildren(...news.problems.map((text) => make("li", text, "bad")));
    byId("notes").replaceChildren(...news.notes.map((note) => make("li", note)));
    document.title = `${state === "ok" ? "" : "● "}${news.run_id || "grpo-sentinel"}`;
  });
  const [first] = chainsOf(news).filter((one) => one.severity !== "note").map(({ root }) => root);
  const layers = news.layers.map((layer) => ({ ...layer, ...judged(layer, news.judging[layer.layer]) }));
  whenChanged("layers", [layers, first && first.layer], () => drawLayers(layers, first));
}

// A layer whose signals arrive, but in which no rule can judge, is not well: it is not judged.
function judged(layer, counts) {
  if (!counts || layer.state === "unknown") return { word: SAYS[layer.state], title: "" };
  const title = `${counts[0]} of ${plural(counts[1], "rule")} can judge`;
  return layer.state === "ok" && !counts[0] ? { state: "unknown", word: "not judged", title } : { word: SAYS[layer.state], title };
}

function drawLayers(layers, first) {
  byId("layers").replaceChildren(...layers.map((layer) => {
    const origin = first && first.layer === layer.layer;
    const button = make("button", null, "", make("b", layer.layer), make("span", origin ? "it began here" : layer.word, "word"));
    button.type = "button";
    button.title = layer.title;
    if (layer.root) button.append(make("span", layer.root, "root"));
    button.addEventListener("click", () => document.dispatchEvent(new CustomEvent("show-layer", { detail: layer.layer })));
    const item = make("li", null, `${layer.state}${origin ? " origin" : ""}${CHAIN.includes(layer.layer) ? " chained" : " beside"}`, button);
    item.dataset.layer = layer.layer;
    return item;
  }));
}
