// Buttons that act on a job: data-action and data-job. What came of it is said in the page's polite live region.
import { call, say } from "./api.js";

const ASKED = { hold: "held", cancel: "cancelled" };
const PASSING = ["queued", "starting", "running", "pausing", "paused"];
const watched = new Map(); // jobs that are on their way to what was asked for, by id: the state last said

function outcome(action, view) {
  const wanted = ASKED[action];
  if (!wanted || view.state === wanted) return `${view.name} is ${view.state}.`;
  watched.set(view.id, view.state);
  return `${view.name} is asked to save and leave; then it is ${wanted}.`;
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
  if (button.dataset.action === "cancel" && !window.confirm("Cancel this job? What it has not saved is lost.")) return;
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
    say(`${job.name} is ${job.state}.`);
  }
});
