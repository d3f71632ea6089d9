// The first sentence: what is wrong and where it began. Then the layers, in the order in which a fault spreads.

import { byId, make, plural, ranksText, reading, whenChanged } from "./base.js";

const GRADES = { critical: 3, warning: 2, note: 1 };
const CHAIN = ["data", "reward", "policy", "gradient", "optimizer"];
const SAYS = { ok: "nothing fires", unknown: "not watched", note: "note", warning: "warning", critical: "critical" };

// Roots, the worst first and among equals the earliest: what to read first.
export function rootsOf(findings) {
  const ids = new Set(findings.map((one) => one.finding_id));
  return findings.filter((one) => !ids.has(one.root_id) || one.root_id === one.finding_id)
    .sort((a, b) => worst(b, findings) - worst(a, findings) || a.onset_step - b.onset_step);
}

export const followersOf = (root, findings) =>
  findings.filter((one) => one.root_id === root.finding_id && one !== root).sort((a, b) => a.onset_step - b.onset_step);

export const worst = (root, findings) => Math.max(GRADES[root.severity], ...followersOf(root, findings).map((one) => GRADES[one.severity]));
const grade = (size) => Object.keys(GRADES).find((name) => GRADES[name] === size);

export function verdict(news) {
  const roots = rootsOf(news.findings).filter((one) => worst(one, news.findings) > 1);
  const dead = news.ranks.filter((rank) => rank.liveness === "dead").map((rank) => rank.rank);
  const ended = news.ranks.length > 0 && news.ranks.every((rank) => rank.liveness === "closed");
  const first = roots[0];
  if (!news.ranks.length) return ["unknown", "No rank has been seen yet", "The sidecar is up and waits for a trainer with the agent attached. Runs of the past are in the list of runs above."];
  if (first) {
    const followers = followersOf(first, news.findings).length;
    const others = roots.length - 1;
    const text = `It began in the ${first.layer} layer, on ${ranksText(first.ranks)}, at step ${first.onset_step}.` +
      (followers ? ` ${plural(followers, "finding follows", "findings follow")} from it.` : "") +
      (others ? ` ${plural(others, "other thing is", "other things are")} wrong beside it.` : "");
    return [grade(worst(first, news.findings)), sentence(first.message), text, first.remedies[0]];
  }
  if (dead.length) return ["critical", `${sentence(ranksText(dead))} died without a word`, "The process is gone and did not close its ring; the log of the launcher may say why."];
  if (ended) return ["note", "The run has ended", [...new Set(news.ranks.map((rank) => rank.closed_detail).filter(Boolean))].join("; ") || "Every rank closed in order."];
  if (news.layers.every((layer) => layer.state === "unknown")) return ["unknown", "No signal has arrived yet", "Nothing can be said before the first step."];
  const seconds = median(news.ranks.map((rank) => rank.values["time.step_seconds"]));
  const unwatched = news.layers.filter((layer) => layer.state === "unknown").map((layer) => layer.layer);
  const unjudged = news.layers.filter((layer) => layer.state === "ok" && (news.judging[layer.layer] || [1])[0] === 0).map((layer) => layer.layer);
  const at = news.past ? ["unknown", "Nothing was wrong when this run was last seen"] : ["ok", "Nothing is wrong in what is watched"];
  return [...at,
    `${plural(news.ranks.length, "rank")} at step ${Math.max(...news.ranks.map((rank) => rank.step))}` +
    (seconds === undefined ? "" : `, a step takes ${reading("_seconds", seconds)}`) +
    (unwatched.length ? `. Not watched: ${unwatched.join(", ")}.` : ".") +
    (unjudged.length ? ` Not judged, though signals arrive: ${unjudged.join(", ")}.` : "") +
    (news.abstaining ? ` ${plural(news.abstaining, "rule")} cannot judge, see “The sentinel itself”.` : "")];
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

export function median(values) {
  const known = values.filter((value) => typeof value === "number").sort((a, b) => a - b);
  return known[Math.floor(known.length / 2)];
}

export function drawVerdict(news) {
  const [state, title, text, remedy] = verdict(news);
  whenChanged("verdict", [state, title, text, remedy, news.notes], () => {
    byId("overview").className = `panel verdict ${state}`;
    byId("verdict-title").textContent = title;
    byId("verdict-text").textContent = text;
    byId("verdict-try").replaceChildren(...(remedy ? [make("b", "Try first: "), remedy] : []));
    byId("notes").replaceChildren(...news.notes.map((note) => make("li", note)));
    document.title = `${state === "ok" ? "" : "● "}${news.run_id || "grpo-sentinel"}`;
  });
  const first = rootsOf(news.findings).find((one) => worst(one, news.findings) > 1);
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
