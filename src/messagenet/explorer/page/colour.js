/**
 * Colours of maps, messages and relations. The style sheet holds those that depend on the theme; here they
 * are read and mixed.
 *
 * For and against are orange and blue, which every common form of colour blindness keeps apart; boxes differ
 * in their dashes as well as their colour; uncertainty grows with lightness.
 */

import { h } from "./dom.js";

/** @typedef {[number, number, number]} RGB */

/** @type {RGB[]} */
const UNCERTAINTY = [
  [0, 0, 4],
  [59, 15, 112],
  [140, 41, 129],
  [222, 73, 104],
  [254, 159, 109],
  [252, 253, 191],
];
const DIVERGING_STOPS = 5;
export const RELATION_STYLES = 6;

/** Dashes of the boxes on the image, in widths of the line; the style sheet has the same for swatches. */
export const DASHES = [[], [5, 3], [1.2, 2.4], [8, 3, 1.5, 3], [3, 1.5], [10, 2]];

/**
 * The symbol of a relation: a small box with the colour and dashes of the one on the image.
 *
 * @param {number} style The relation's index in its model.
 */
export function relationSwatch(style) {
  return h("span", { class: `box-swatch style-${style % RELATION_STYLES}`, "aria-hidden": "true" });
}

/**
 * @param {string} hex
 * @returns {RGB}
 */
export function parseHex(hex) {
  const value = Number.parseInt(hex.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

/** @type {Map<string, RGB>} */
const cache = new Map();
document.addEventListener("themechange", () => cache.clear());

/**
 * The colour of a CSS variable in the current theme.
 *
 * @param {string} name
 * @returns {RGB}
 */
export function themeColour(name) {
  const colour = cache.get(name) ?? computedColour(name);
  cache.set(name, colour);
  return colour;
}

/**
 * @param {string} name
 * @returns {RGB}
 */
function computedColour(name) {
  const probe = document.createElement("span");
  probe.hidden = true;
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const channels = getComputedStyle(probe).color.match(/[\d.]+/g) ?? ["0", "0", "0"];
  probe.remove();
  return [Number(channels[0]), Number(channels[1]), Number(channels[2])];
}

/**
 * Linear between evenly spaced stops.
 *
 * @param {RGB[]} stops
 * @param {number} share 0 to 1
 * @returns {RGB}
 */
export function between(stops, share) {
  const position = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const below = Math.min(Math.floor(position), stops.length - 2);
  const part = position - below;
  const [r, g, b] = stops[below].map((value, i) => Math.round(value + part * (stops[below + 1][i] - value)));
  return [r, g, b];
}

/** @param {RGB} colour */
export function css([r, g, b], alpha = 1) {
  return `rgb(${r} ${g} ${b} / ${alpha})`;
}

/** The colour of a contribution from −1 (against) to 1 (for), in the current theme. */
export function divergingScale() {
  const stops = Array.from({ length: DIVERGING_STOPS }, (_, i) => themeColour(`--diverging-${i}`));
  return (/** @type {number} */ value) => between(stops, (value + 1) / 2);
}

/**
 * RGBA of all 256 values of a label map; classes that are hidden are transparent.
 *
 * @param {{colour: string}[]} classes
 * @param {ReadonlySet<number>} hidden
 */
export function labelTable(classes, hidden) {
  return table((id) => (id < classes.length && !hidden.has(id) ? parseHex(classes[id].colour) : null));
}

/** RGBA of all 256 values of an entropy map. */
export function entropyTable() {
  return table((value) => between(UNCERTAINTY, value / 255));
}

/** @param {(value: number) => RGB | null} colourOf */
function table(colourOf) {
  const bytes = new Uint8ClampedArray(4 * 256);
  for (let value = 0; value < 256; value += 1) {
    const colour = colourOf(value);
    if (colour) bytes.set([...colour, 255], 4 * value);
  }
  return new Uint32Array(bytes.buffer);
}
