// The button that verifies the whole chain of the audit.
import { call } from "./api.js";

document.getElementById("verify")?.addEventListener("click", async () => {
  const result = document.getElementById("verified");
  result.textContent = "Checking…";
  try {
    result.textContent = (await call("GET", "audit/verify")).message;
  } catch (error) {
    result.textContent = error.message;
  }
});
