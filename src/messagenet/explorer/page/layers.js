/** Label and entropy maps as canvases, drawn when first needed and cached. */

import { entropyTable, labelTable } from "./colour.js";

/**
 * @typedef {import("./types.js").Segmentation} Segmentation
 * @typedef {import("./types.js").Model} Model
 */

const CACHE_SIZE = 24;

export function createLayers() {
  /** @type {Map<string, HTMLCanvasElement>} */
  const cache = new Map();

  /**
   * @param {string} name
   * @param {Segmentation} result
   * @param {Uint8Array} values
   * @param {() => Uint32Array} colours
   */
  function layer(name, result, values, colours) {
    const cached = cache.get(name);
    if (cached) return cached;
    const made = paint(values, colours(), result.width, result.height);
    cache.set(name, made);
    if (cache.size > CACHE_SIZE) cache.delete([...cache.keys()][0]);
    return made;
  }

  return {
    /**
     * @param {Segmentation} result
     * @param {number} t
     * @param {Model} model
     * @param {ReadonlySet<number>} hidden
     */
    labels(result, t, model, hidden) {
      const name = [result.key, result.model, t, ...hidden].join(" ");
      return layer(name, result, result.maps[t].labels, () => labelTable(model.classes, hidden));
    },

    /**
     * @param {Segmentation} result
     * @param {number} t
     */
    entropy(result, t) {
      const name = [result.key, result.model, t, "entropy"].join(" ");
      return layer(name, result, result.maps[t].entropy, entropyTable);
    },
  };
}

/**
 * @param {Uint8Array} values
 * @param {Uint32Array} colours
 * @param {number} width
 * @param {number} height
 */
function paint(values, colours, width, height) {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  const image = new ImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  for (let i = 0; i < pixels.length; i += 1) pixels[i] = colours[values[i]];
  canvas.getContext("2d")?.putImageData(image, 0, 0);
  return canvas;
}
