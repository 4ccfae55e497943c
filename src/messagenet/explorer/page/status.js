/** What the page is doing and what went wrong, for eyes and for screen readers. */

import { ApiError } from "./api.js";
import { byId } from "./dom.js";

const SHOW_AFTER = 120; // milliseconds; what is faster needs no sign of work

export function createStatus() {
  const status = byId("status");
  const problem = byId("problem");
  const message = byId("problem-text");
  let running = 0;
  byId("problem-close").addEventListener("click", clear);

  function clear() {
    problem.hidden = true;
    message.textContent = "";
  }

  /** @param {string} text */
  function show(text) {
    status.textContent = text;
  }

  /** @param {unknown} reason */
  function fail(reason) {
    if (reason instanceof DOMException && reason.name === "AbortError") return;
    if (!(reason instanceof ApiError)) console.error(reason);
    const text = reason instanceof Error ? reason.message : String(reason);
    message.textContent = text.charAt(0).toUpperCase() + text.slice(1);
    problem.hidden = false;
    show("");
  }

  return {
    show,
    fail,

    /** @param {number} seconds */
    waiting: (seconds) => show(`The server is busy; retrying in ${seconds} s …`),

    /**
     * Does some work, with a sign of it, and shows why it failed if it did.
     *
     * @param {string} text What it is, or nothing if that is plain.
     * @param {() => Promise<void>} work
     */
    async during(text, work) {
      running += 1;
      clear();
      if (text) show(text);
      const sign = setTimeout(() => document.body.setAttribute("aria-busy", "true"), SHOW_AFTER);
      try {
        await work();
        if (text && status.textContent === text) show("");
      } catch (reason) {
        fail(reason);
      } finally {
        clearTimeout(sign);
        running -= 1;
        if (!running) document.body.removeAttribute("aria-busy");
      }
    },
  };
}
