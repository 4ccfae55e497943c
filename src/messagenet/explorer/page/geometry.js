/** Where nodes are: node (row, column) covers `stride` pixels either way from (column, row) · stride. */

/**
 * @typedef {import("./types.js").Grid} Grid
 * @typedef {import("./types.js").Box} Box
 * @typedef {import("./types.js").NodePosition} NodePosition
 */

/**
 * @param {number} value
 * @param {number} low
 * @param {number} high
 */
export function clamp(value, low, high) {
  return Math.min(Math.max(value, low), high);
}

/**
 * The node whose cell a pixel is in.
 *
 * @param {Grid} grid
 * @param {number} x
 * @param {number} y
 * @returns {NodePosition}
 */
export function nodeAt(grid, x, y) {
  return {
    row: clamp(Math.floor(y / grid.stride), 0, grid.rows - 1),
    column: clamp(Math.floor(x / grid.stride), 0, grid.columns - 1),
  };
}

/**
 * The pixel in the middle of a node's cell.
 *
 * @param {Grid} grid
 * @param {NodePosition} node
 * @returns {[number, number]}
 */
export function centrePixel(grid, { row, column }) {
  const [x0, y0, x1, y1] = nodeBox(grid, row, column);
  return [
    clamp(Math.floor((x0 + x1) / 2), 0, grid.width - 1),
    clamp(Math.floor((y0 + y1) / 2), 0, grid.height - 1),
  ];
}

/**
 * A node's cell.
 *
 * @param {Grid} grid
 * @param {number} row
 * @param {number} column
 * @returns {Box}
 */
export function nodeBox({ stride, width, height }, row, column) {
  return [
    Math.min(column * stride, width - 1),
    Math.min(row * stride, height - 1),
    Math.min((column + 1) * stride, width),
    Math.min((row + 1) * stride, height),
  ];
}
