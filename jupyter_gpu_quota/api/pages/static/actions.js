// Buttons that act on a job: data-action and data-job. The page's polite live region states the result.
import { call, say } from "./api.js";

const REQUESTED = { hold: "held", cancel: "cancelled" };
const PASSING = ["queued", "starting", "running", "pausing", "paused"];
const watched = new Map(); // jobs that have not reached the requested state, by id: the state last shown

// "train is held.", but "train succeeded."
const ended = (job) => `${job.name} ${["succeeded", "failed"].includes(job.state) ? "" : "is "}${job.state}.`;

function outcome(action, view) {
  const wanted = REQUESTED[action];
  if (!wanted || view.state === wanted) return ended(view);
  watched.set(view.id, view.state);
  return `${view.name} saves and stops; then it is ${wanted}.`;
}

async function act(button) {
  const { action, job } = button.dataset;
  const view = await call("POST", `jobs/${job}/actions/${action}`, action === "rerun" ? {} : undefined);
  if (action === "rerun") { location.assign(`${document.querySelector(".brand").pathname}jobs/${view.id}`); return; }
  watched.delete(job);
  say(action === "release" ? `${view.name} is released: it is ${view.state}.` : outcome(action, view));
  document.dispatchEvent(new Event("gpu-quota:acted"));
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-action]");
  if (!button || button.getAttribute("aria-disabled") === "true") return;
  if (button.dataset.action === "cancel" && !window.confirm("Cancel this job? Unsaved work is lost.")) return;
  button.setAttribute("aria-disabled", "true"); // A disabled button would lose the focus.
  try {
    await act(button);
  } catch (error) {
    say(error.message);
  } finally {
    button.removeAttribute("aria-disabled");
  }
});

document.addEventListener("gpu-quota:changed", (event) => {
  for (const job of event.detail.jobs ?? []) {
    if (!watched.has(job.id) || PASSING.includes(job.state)) continue;
    watched.delete(job.id);
    say(ended(job));
  }
});
