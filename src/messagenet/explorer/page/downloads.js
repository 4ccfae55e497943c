/** Downloads: labels, overlay and the figure as shown as PNG, and the explained node as JSON. */

import { byId } from "./dom.js";
import { drawMarks } from "./marks.js";
import { drawOverlay, overlayCanvas } from "./overlay.js";
import { modelShown, shown } from "./session.js";

const FIGURE_WIDTH = 2000; // pixels across at least: enough for a printed page

/**
 * @typedef {import("./types.js").State} State
 * @typedef {ReturnType<typeof import("./layers.js").createLayers>} Layers
 */

/**
 * @param {import("./types.js").Store} store
 * @param {import("./types.js").Session} session
 * @param {Layers} layers
 * @param {ReturnType<typeof import("./status.js").createStatus>} status
 */
export function createDownloads(store, session, layers, status) {
  const { state } = store;

  /**
   * @param {string} id
   * @param {string} ending
   * @param {() => Promise<Blob>} make
   */
  function offer(id, ending, make) {
    byId(id).addEventListener("click", () =>
      status.during("", async () => save(await make(), `${stem(state)}-${ending}`)),
    );
  }

  offer("save-labels", "labels.png", () => session.labels());
  offer("save-overlay", "overlay.png", () => png(overlayCanvas(state, layers)));
  offer("save-figure", "figure.png", () => png(figureCanvas(state, layers)));
  offer("save-node", "node.json", async () => nodeFile(state));
  store.on(["node"], () => {
    byId("save-node").toggleAttribute("disabled", !state.node);
  });
}

/** @param {State} state */
function stem({ photo, model, t, node }) {
  const name = (photo?.name ?? "image").replace(/\.[^.]*$/, "");
  const suffix = node ? `-r${node.node.row}c${node.node.column}` : "";
  return `${name}-${model}-t${t}${suffix}`;
}

/**
 * The overlay with its marks and, while comparing, both sides of the handle, enlarged for print.
 *
 * @param {State} state
 * @param {Layers} layers
 */
function figureCanvas(state, layers) {
  const canvas = overlayCanvas(state, layers);
  const times = Math.max(1, Math.ceil(FIGURE_WIDTH / canvas.width));
  canvas.width *= times;
  canvas.height *= times;
  const marks = document.createElement("canvas");
  [marks.width, marks.height] = [canvas.width, canvas.height];
  const [below, above] = [canvas.getContext("2d"), marks.getContext("2d")];
  if (below && above) {
    drawOverlay(below, state, layers);
    drawMarks(above, state, canvas.width / (byId("frame").clientWidth || 1));
    below.drawImage(marks, 0, 0);
  }
  return canvas;
}

/**
 * The server's explanation, with the names of the image and of the classes.
 *
 * @param {State} state
 */
function nodeFile(state) {
  const grid = shown(state);
  const content = {
    image: state.photo?.name,
    width: grid?.width,
    height: grid?.height,
    classes: modelShown(state)?.classes.map(({ name }) => name),
    ...state.node,
  };
  return new Blob([`${JSON.stringify(content, null, 1)}\n`], { type: "application/json" });
}

/**
 * @param {HTMLCanvasElement} canvas
 * @returns {Promise<Blob>}
 */
function png(canvas) {
  return new Promise((resolve, reject) => {
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("The image is too large to save."))));
  });
}

/**
 * @param {Blob} blob
 * @param {string} name
 */
function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
