// The walk backwards of a run as it is now: every layer is asked the same questions, and "not seen" is an answer.

import { byId, head, make, plural, whenChanged } from "./base.js";
import { get, live } from "./net.js";

const QUESTIONS = ["numbers", "shapes", "devices", "dtypes", "levels"];
const LOOKS = { wrong: "bad", fine: "good", "fine as far as seen": "good", "not seen": "quiet" };
const answer = (text) => make("td", text || "–", `short ${LOOKS[text] || "quiet"}`);

function row(stop, messages) {
  const judged = stop.fine.length + stop.wrong.length, blind = Object.keys(stop.not_seen).length;
  const th = make("th", stop.layer, "left");
  th.scope = "row";
  const last = make("td", `${judged} of ${plural(judged + blind, "rule")} could judge`, "short quiet");
  last.title = Object.entries(stop.not_seen).map(([rule, why]) => `${rule}: ${why}`).join("\n");
  const told = stop.wrong.map((id) => messages.get(id)).filter(Boolean);
  return make("tr", null, "", th, answer(stop.state), ...QUESTIONS.map((question) => answer(stop.questions[question])), make("td", told.length > 1 ? `${told[0]}, and ${told.length - 1} more` : told[0] || "", "text"), last);
}

export async function refreshWalk() {
  if (!byId("walk-more").open || !live.news) return;
  try {
    const walk = await get("walk", { run: live.news.run_id });
    const messages = new Map(live.news.findings.map((one) => [one.finding_id, `${one.message} (step ${one.onset_step})`]));
    whenChanged("walk", walk, () => {
      byId("walk-says").textContent = walk.conclusion.charAt(0).toUpperCase() + walk.conclusion.slice(1);
      byId("walk").replaceChildren(...(walk.layers.length ? [head("layer", "altogether", ...QUESTIONS, "what was found", "looked at"), make("tbody", null, "", ...walk.layers.map((stop) => row(stop, messages)))] : []));
    });
  } catch (error) {
    byId("walk-says").textContent = error.message;
  }
}
