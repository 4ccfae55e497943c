/** The two canvases of the image: as large as the frame, sharp on any screen, drawn at most once per repaint. */

import { byId } from "./dom.js";
import { drawMarks } from "./marks.js";
import { drawOverlay } from "./overlay.js";
import { shown } from "./session.js";

/**
 * @param {import("./types.js").Store} store
 * @param {ReturnType<typeof import("./layers.js").createLayers>} layers
 */
export function createStage(store, layers) {
  const { state } = store;
  const frame = byId("frame");
  /** @type {HTMLCanvasElement} */
  const overlay = byId("overlay");
  /** @type {HTMLCanvasElement} */
  const marks = byId("marks");
  let due = { overlay: false, marks: false };

  function draw() {
    const now = due;
    due = { overlay: false, marks: false };
    const [onOverlay, onMarks] = [overlay.getContext("2d"), marks.getContext("2d")];
    if (!shown(state) || !onOverlay || !onMarks) return;
    if (now.overlay) drawOverlay(onOverlay, state, layers);
    if (now.marks) drawMarks(onMarks, state, marks.width / (frame.clientWidth || 1));
  }

  /** @param {"overlay" | "marks"} what */
  function ask(what) {
    if (!due.overlay && !due.marks) requestAnimationFrame(draw);
    due[what] = true;
  }

  function fit() {
    const ratio = window.devicePixelRatio || 1;
    for (const canvas of [overlay, marks]) {
      canvas.width = Math.max(1, Math.round(frame.clientWidth * ratio));
      canvas.height = Math.max(1, Math.round(frame.clientHeight * ratio));
    }
    ask("overlay");
    ask("marks");
  }

  new ResizeObserver(fit).observe(frame);
  store.on(["photo", "results", "model"], () => {
    const grid = shown(state);
    byId("empty").hidden = Boolean(grid);
    byId("stage").classList.toggle("has-photo", Boolean(grid));
    if (!grid) return;
    frame.style.setProperty("--width", String(grid.width));
    frame.style.setProperty("--height", String(grid.height));
    fit();
  });
  store.on(["t", "view", "opacity", "hidden", "compare", "swipe"], () => ask("overlay"));
  store.on(
    ["node", "chosen", "rival", "hiddenRelations", "highlight", "cursor", "hover", "compare", "themes"],
    () => ask("marks"),
  );
}
