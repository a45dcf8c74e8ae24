// The button that postpones an idle warning: data-keep is the id of the notebook's slice.
import { call, say } from "./api.js";

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-keep]");
  if (!button || button.getAttribute("aria-disabled") === "true") return;
  button.setAttribute("aria-disabled", "true"); // A disabled button would lose the focus.
  try {
    const idle = await call("POST", `notebooks/${button.dataset.keep}/actions/keep`);
    say(`${idle.message} It can be postponed ${idle.keeps_left} more ${idle.keeps_left === 1 ? "time" : "times"} before it is used again.`);
    document.dispatchEvent(new Event("gpu-quota:acted"));
  } catch (error) {
    say(error.message);
  } finally {
    button.removeAttribute("aria-disabled");
  }
});
