/**
 * What is drawn on the image about the node explained: its senders in the colours of their messages, the box
 * of each relation, the node, the cursor, and an arrow from the sender pointed at.
 */

import { css, DASHES, divergingScale, RELATION_STYLES, themeColour } from "./colour.js";
import { nodeBox } from "./geometry.js";
import { largestContribution, contributions } from "./messages.js";
import { shown } from "./session.js";

/**
 * @typedef {import("./types.js").State} State
 * @typedef {import("./types.js").Box} Box
 */

const VEIL = 0.84; // how far a sender's colour covers the photo

/**
 * Draws the marks over a whole canvas.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {State} state
 * @param {number} unit Canvas pixels per pixel of the screen: the measure of lines and letters.
 */
export function drawMarks(context, state, unit) {
  const { width, height } = context.canvas;
  context.clearRect(0, 0, width, height);
  const grid = shown(state);
  if (!grid) return;
  const scale = width / grid.width;
  /** @type {Pen} */
  const pen = {
    context,
    unit,
    scale,
    ink: css(themeColour("--mark")),
    halo: css(themeColour("--mark-halo"), 0.9),
  };
  const { node } = state;
  if (node && !state.compare) {
    drawSenders(pen, grid, state);
    drawBoxes(pen, state);
    if (state.highlight) drawHighlight(pen, grid, state, node.node.box);
  }
  if (node) ring(pen, node.node.box, 2);
  const { cursor, hover } = state;
  if (hover) ring(pen, nodeBox(grid, hover.row, hover.column), 1);
  if (cursor) drawCursor(pen, nodeBox(grid, cursor.row, cursor.column));
}

/**
 * @typedef {{context: CanvasRenderingContext2D, unit: number, scale: number, ink: string, halo: string}} Pen
 */

/**
 * The senders' cells over a photo without colours, which would change theirs.
 *
 * @param {Pen} pen
 * @param {import("./types.js").Grid} grid
 * @param {State} state
 */
function drawSenders({ context, scale }, grid, state) {
  const entries = contributions(state);
  const max = largestContribution(entries) || 1;
  const colour = divergingScale();
  const cells = entries.map(({ row, column, value }) => {
    // Whole canvas pixels, so that neighbouring cells neither overlap nor leave a gap.
    const [x0, y0, x1, y1] = nodeBox(grid, row, column).map((side) => Math.round(side * scale));
    return { x: x0, y: y0, width: x1 - x0, height: y1 - y0, fill: css(colour(value / max), VEIL) };
  });
  const { width, height } = context.canvas;
  context.save();
  context.beginPath();
  for (const cell of cells) context.rect(cell.x, cell.y, cell.width, cell.height);
  context.clip();
  if (state.photo?.bitmap) context.drawImage(state.photo.bitmap, 0, 0, width, height);
  context.globalCompositeOperation = "saturation";
  context.fillStyle = "grey";
  context.fillRect(0, 0, width, height);
  context.restore();
  for (const cell of cells) {
    context.fillStyle = cell.fill;
    context.fillRect(cell.x, cell.y, cell.width, cell.height);
  }
}

/**
 * @param {Pen} pen
 * @param {State} state
 */
function drawBoxes(pen, state) {
  const { context, unit, scale } = pen;
  const { width, height } = context.canvas;
  const drawn = (state.node?.factors ?? [])
    .slice(1)
    .map((factor, i) => ({ ...factor, style: i % RELATION_STYLES }));
  for (const { name, box, style } of drawn) {
    if (!box || state.hiddenRelations.has(name)) continue;
    // Boxes share sides: each is drawn a little further inside than the one before.
    const inset = (1.5 + 2.5 * style) * unit;
    const [x0, y0, x1, y1] = box.map((side) => side * scale);
    const rect = /** @type {[number, number, number, number]} */ ([
      Math.max(x0, 0) + inset,
      Math.max(y0, 0) + inset,
      Math.min(x1, width) - Math.max(x0, 0) - 2 * inset,
      Math.min(y1, height) - Math.max(y0, 0) - 2 * inset,
    ]);
    context.save();
    context.lineJoin = "round";
    context.strokeStyle = pen.halo;
    context.lineWidth = 4 * unit;
    context.strokeRect(...rect);
    context.strokeStyle = css(themeColour(`--relation-${style}`));
    context.lineWidth = 2 * unit;
    context.setLineDash(DASHES[style].map((length) => 2 * unit * length));
    context.strokeRect(...rect);
    context.restore();
    tag(pen, name, rect[0] + 8 * unit, Math.max(rect[1], 9 * unit));
  }
}

/**
 * The name of a box on its upper side.
 *
 * @param {Pen} pen
 * @param {string} name
 * @param {number} x
 * @param {number} y
 */
function tag({ context, unit, ink, halo }, name, x, y) {
  context.font = `600 ${11 * unit}px ${getComputedStyle(document.body).fontFamily}`;
  context.textBaseline = "middle";
  context.fillStyle = halo;
  context.beginPath();
  context.roundRect(x, y - 8 * unit, context.measureText(name).width + 10 * unit, 16 * unit, 3 * unit);
  context.fill();
  context.fillStyle = ink;
  context.fillText(name, x + 5 * unit, y + 0.5 * unit);
}

/**
 * @param {Pen} pen
 * @param {import("./types.js").Grid} grid
 * @param {State} state
 * @param {Box} receiver
 */
function drawHighlight(pen, grid, { highlight }, receiver) {
  const boxes = (highlight?.senders ?? []).map(([row, column]) => nodeBox(grid, row, column));
  if (boxes.length === 1) {
    arrow(pen, centre(boxes[0]), centre(receiver));
    ring(pen, boxes[0], 2);
  } else if (boxes.length) {
    const around = /** @type {Box} */ ([
      Math.min(...boxes.map((box) => box[0])),
      Math.min(...boxes.map((box) => box[1])),
      Math.max(...boxes.map((box) => box[2])),
      Math.max(...boxes.map((box) => box[3])),
    ]);
    ring(pen, around, 3);
  }
}

/**
 * A double line around a box, visible on anything.
 *
 * @param {Pen} pen
 * @param {Box} box
 * @param {number} weight
 */
function ring({ context, unit, scale, ink, halo }, box, weight) {
  const [x0, y0, x1, y1] = box.map((side) => side * scale);
  for (const [colour, line] of /** @type {[string, number][]} */ ([
    [halo, weight + 2.5],
    [ink, weight],
  ])) {
    context.strokeStyle = colour;
    context.lineWidth = line * unit;
    context.strokeRect(x0 - unit, y0 - unit, x1 - x0 + 2 * unit, y1 - y0 + 2 * unit);
  }
}

/**
 * The corners of a node that the keyboard is at.
 *
 * @param {Pen} pen
 * @param {Box} box
 */
function drawCursor({ context, unit, scale, ink, halo }, box) {
  const gap = 5 * unit;
  const [x0, y0, x1, y1] = [
    box[0] * scale - gap,
    box[1] * scale - gap,
    box[2] * scale + gap,
    box[3] * scale + gap,
  ];
  const arm = Math.min(7 * unit, (x1 - x0) / 3);
  context.beginPath();
  for (const [x, y, right, down] of [
    [x0, y0, 1, 1],
    [x1, y0, -1, 1],
    [x0, y1, 1, -1],
    [x1, y1, -1, -1],
  ]) {
    context.moveTo(x + right * arm, y);
    context.lineTo(x, y);
    context.lineTo(x, y + down * arm);
  }
  twice(context, unit, ink, halo);
}

/**
 * @param {Pen} pen
 * @param {[number, number]} from
 * @param {[number, number]} to
 */
function arrow({ context, unit, scale, ink, halo }, from, to) {
  const [x0, y0, x1, y1] = [...from, ...to].map((side) => side * scale);
  const angle = Math.atan2(y1 - y0, x1 - x0);
  const head = 8 * unit;
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  for (const turn of [-0.45, 0.45]) {
    context.moveTo(x1, y1);
    context.lineTo(x1 - head * Math.cos(angle + turn), y1 - head * Math.sin(angle + turn));
  }
  twice(context, unit, ink, halo);
}

/**
 * Strokes the path, first wide in the halo's colour, then in ink.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {number} unit
 * @param {string} ink
 * @param {string} halo
 */
function twice(context, unit, ink, halo) {
  context.lineCap = "round";
  context.lineJoin = "round";
  context.strokeStyle = halo;
  context.lineWidth = 4.5 * unit;
  context.stroke();
  context.strokeStyle = ink;
  context.lineWidth = 2 * unit;
  context.stroke();
}

/**
 * @param {Box} box
 * @returns {[number, number]}
 */
function centre([x0, y0, x1, y1]) {
  return [(x0 + x1) / 2, (y0 + y1) / 2];
}
