// Buttons that act on a job: data-action and data-job.
import { call, say } from "./api.js";

const DONE = { hold: "held", release: "released", cancel: "cancelled" };

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-action]");
  if (!button) return;
  const { action, job } = button.dataset;
  if (action === "cancel" && !window.confirm("Cancel this job? What it has not saved is lost.")) return;
  button.disabled = true;
  try {
    const view = await call("POST", `jobs/${job}/actions/${action}`, action === "rerun" ? {} : undefined);
    if (action === "rerun") location.assign(`${document.querySelector(".brand").pathname}jobs/${view.id}`);
    else say(`${view.name} is to be ${DONE[action]}.`);
    document.dispatchEvent(new Event("gpu-quota:acted"));
  } catch (error) {
    say(error.message);
  } finally {
    button.disabled = false;
  }
});
