/** The sign of a relation: a small box with the colour and dashes of the one on the image. */

import { RELATION_STYLES } from "./colour.js";
import { h } from "./dom.js";

/** @param {number} style The relation's number in its model. */
export function relationSwatch(style) {
  return h("span", { class: `box-swatch style-${style % RELATION_STYLES}`, "aria-hidden": "true" });
}
