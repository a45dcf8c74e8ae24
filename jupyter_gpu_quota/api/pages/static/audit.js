// The button that has the whole chain of the audit checked.
import { call } from "./api.js";

document.getElementById("verify")?.addEventListener("click", async () => {
  const place = document.getElementById("verified");
  place.textContent = "Checking…";
  try {
    place.textContent = (await call("GET", "audit/verify")).message;
  } catch (error) {
    place.textContent = error.message;
  }
});
