/** The two canvases of the picture: as large as their place, sharp on any screen, drawn once per frame. */

import { byId } from "./dom.js";
import { drawMarks } from "./marks.js";
import { drawPicture } from "./picture.js";
import { shown } from "./session.js";

/**
 * @param {import("./types.js").Store} store
 * @param {ReturnType<typeof import("./layers.js").createLayers>} layers
 */
export function createStage(store, layers) {
  const { state } = store;
  const frame = byId("frame");
  /** @type {HTMLCanvasElement} */
  const picture = byId("picture");
  /** @type {HTMLCanvasElement} */
  const marks = byId("marks");
  let due = { picture: false, marks: false };

  function draw() {
    const now = due;
    due = { picture: false, marks: false };
    const [onPicture, onMarks] = [picture.getContext("2d"), marks.getContext("2d")];
    if (!shown(state) || !onPicture || !onMarks) return;
    if (now.picture) drawPicture(onPicture, state, layers);
    if (now.marks) drawMarks(onMarks, state, marks.width / (frame.clientWidth || 1));
  }

  /** @param {"picture" | "marks"} what */
  function ask(what) {
    if (!due.picture && !due.marks) requestAnimationFrame(draw);
    due[what] = true;
  }

  function fit() {
    const ratio = window.devicePixelRatio || 1;
    for (const canvas of [picture, marks]) {
      canvas.width = Math.max(1, Math.round(frame.clientWidth * ratio));
      canvas.height = Math.max(1, Math.round(frame.clientHeight * ratio));
    }
    ask("picture");
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
  store.on(["t", "view", "opacity", "hidden", "compare", "swipe"], () => ask("picture"));
  store.on(["node", "chosen", "rival", "muted", "highlight", "cursor", "hover", "compare", "themes"], () =>
    ask("marks"),
  );
}
