// Checkpoint and halt: asked in a dialog that says what will happen, then followed to its end.

import { byId } from "./base.js";
import { ask, live } from "./net.js";
import { over } from "./verdict.js";

const ASKED = {
  checkpoint: ["Save a checkpoint?", "The trainer saves a checkpoint with its own code at the end of the step that all ranks agree on, and goes on training.", "Save a checkpoint"],
  "checkpoint-and-halt": ["Save a checkpoint and end this run?", "The trainer saves a checkpoint at the end of the step that all ranks agree on, then all ranks exit. The run does not go on by itself; it can be resumed from that checkpoint.", "Checkpoint and halt"],
};
let action = "";

export function openAct(wanted) {
  if (byId("act-dialog").open || byId("ask-halt").disabled) return;
  action = wanted;
  const [title, means, go] = ASKED[action];
  byId("act-title").textContent = title;
  byId("act-means").textContent = `${means} Run: ${live.news.run_id}.`;
  byId("act-token-where").textContent = `cat /dev/shm/grpo-sentinel-$(id -u)/${live.news.run_id}/daemon.json`;
  byId("act-go").textContent = go;
  byId("act-go").className = action === "checkpoint" ? "" : "danger";
  byId("act-answer").textContent = "";
  byId("act-dialog").showModal();
  (byId("act-token").value ? byId("act-reason") : byId("act-token")).focus();
}

async function send(event) {
  event.preventDefault();
  byId("act-go").disabled = true;
  const headers = { Authorization: `Bearer ${byId("act-token").value}`, "Content-Type": "application/json" };
  const body = JSON.stringify({ action, run_id: live.news.run_id, reason: byId("act-reason").value || "asked on the page" });
  try {
    const answer = await ask("/api/v1/requests", { method: "POST", headers, body });
    byId("halt-state").textContent = `Request ${answer.request_id}: asked.`;
    byId("act-reason").value = "";
    byId("act-dialog").close();
  } catch (error) {
    byId("act-answer").textContent = `Nothing was asked: ${/fetch/i.test(error.message) ? "the sidecar does not answer" : error.message}.`;
  }
  byId("act-go").disabled = false;
}

const STEPS = { requested: "asked, waits for the ranks to agree", voted: "all ranks agreed", checkpointing: "saving the checkpoint", done: "done", failed: "failed", finished: "the run ended first", refused: "refused" };

export function haltText(halt) {
  if (halt.state === "none") return "";
  const asked = `${halt.action.replaceAll("_", "-")}, asked by ${halt.requested_by || "user"}${halt.reason ? ` (${halt.reason})` : ""}`;
  return `Request ${halt.request_id}: ${asked}: ${STEPS[halt.state] || halt.state}${halt.step ? ` at step ${halt.step}` : ""}${halt.detail ? `: ${halt.detail}` : ""}.` +
    (halt.dry_run ? " Dry run: nothing was really asked." : "") + (halt.pinned_checkpoint ? ` Kept from rotation: ${halt.pinned_checkpoint}.` : "") +
    (halt.gave_way ? ` ${halt.gave_way}.` : "");
}

export function drawAct(news) {
  const text = over(news) && news.halt.state === "done" ? "" : haltText(news.halt); // the verdict tells how a run ended
  if (text && byId("halt-state").textContent !== text) byId("halt-state").textContent = text;
  const living = !news.past && news.ranks.some((rank) => rank.liveness === "alive" || rank.liveness === "unknown");
  for (const id of ["ask-checkpoint", "ask-halt"]) byId(id).disabled = !living;
  if (!text) byId("halt-state").textContent = living ? "" : "No rank is alive that could be asked.";
}

export function startAct() {
  byId("ask-checkpoint").addEventListener("click", () => openAct("checkpoint"));
  byId("ask-halt").addEventListener("click", () => openAct("checkpoint-and-halt"));
  byId("act-cancel").addEventListener("click", () => byId("act-dialog").close());
  byId("act-form").addEventListener("submit", send);
}
