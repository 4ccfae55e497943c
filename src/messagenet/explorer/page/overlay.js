/** The photo with a map over it, and to the left of the swipe handle with another one. */

import { modelShown, shown } from "./session.js";

/**
 * @typedef {import("./types.js").State} State
 * @typedef {ReturnType<typeof import("./layers.js").createLayers>} Layers
 */

/**
 * Draws the photo and its maps over a whole canvas.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {State} state
 * @param {Layers} layers
 */
export function drawOverlay(context, state, layers) {
  const { width, height } = context.canvas;
  context.clearRect(0, 0, width, height);
  drawSide(context, state, layers, { model: state.model, t: state.t });
  const { compare } = state;
  if (!compare || !state.results.has(compare.model)) return;
  context.save();
  context.beginPath();
  context.rect(0, 0, Math.round(width * state.swipe), height);
  context.clip();
  context.clearRect(0, 0, width, height);
  drawSide(context, state, layers, compare);
  context.restore();
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {State} state
 * @param {Layers} layers
 * @param {import("./types.js").Version} version
 */
function drawSide(context, state, layers, version) {
  const { width, height } = context.canvas;
  const result = state.results.get(version.model);
  const model = state.models.find((each) => each.id === version.model);
  if (state.photo?.bitmap) {
    context.imageSmoothingEnabled = true;
    context.imageSmoothingQuality = "high";
    context.drawImage(state.photo.bitmap, 0, 0, width, height);
  }
  if (!result || !model || state.view === "photo") return;
  const t = Math.min(version.t, result.maps.length - 1);
  const layer =
    state.view === "labels"
      ? layers.labels(result, t, model, hiddenFor(state, model))
      : layers.entropy(result, t);
  context.save();
  context.globalAlpha = state.opacity;
  context.imageSmoothingEnabled = state.view === "entropy" || width < result.width;
  context.drawImage(layer, 0, 0, width, height);
  context.restore();
}

/**
 * Which classes of a model are switched off: the legend is that of the model shown, others follow by name.
 *
 * @param {State} state
 * @param {import("./types.js").Model} model
 * @returns {ReadonlySet<number>}
 */
function hiddenFor(state, model) {
  const legend = modelShown(state);
  if (!legend || legend === model) return state.hidden;
  const names = new Set([...state.hidden].map((id) => legend.classes[id].name));
  return new Set(model.classes.flatMap(({ name }, id) => (names.has(name) ? [id] : [])));
}

/**
 * The overlay without marks, at the size of the photo.
 *
 * @param {State} state
 * @param {Layers} layers
 */
export function overlayCanvas(state, layers) {
  const canvas = document.createElement("canvas");
  const result = shown(state);
  canvas.width = result?.width ?? 1;
  canvas.height = result?.height ?? 1;
  const context = canvas.getContext("2d");
  if (context) drawOverlay(context, { ...state, compare: null }, layers);
  return canvas;
}
