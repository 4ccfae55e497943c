/** Choosing a node on the picture: with mouse or finger, or with the keyboard, node by node. */

import { byId } from "./dom.js";
import { decimals, signed } from "./format.js";
import { centrePixel, clamp, nodeAt } from "./geometry.js";
import { pushes } from "./messages.js";
import { modelShown, shown } from "./session.js";

/** @type {Record<string, [number, number]>} */
const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
const STRIDES = 5; // nodes at a time with Shift

/**
 * @param {import("./types.js").Store} store
 * @param {import("./types.js").Session} session
 * @param {{step: (by: number) => void, play: () => void}} stepping
 */
export function createPicking(store, session, stepping) {
  const { state } = store;
  const surface = byId("surface");
  const readout = byId("readout");
  const said = byId("cursor-status");

  /**
   * @param {MouseEvent} event
   * @returns {[number, number] | null}
   */
  function pixel(event) {
    const grid = shown(state);
    if (!grid) return null;
    const place = surface.getBoundingClientRect();
    const x = Math.floor(((event.clientX - place.left) / place.width) * grid.width);
    const y = Math.floor(((event.clientY - place.top) / place.height) * grid.height);
    return [clamp(x, 0, grid.width - 1), clamp(y, 0, grid.height - 1)];
  }

  /**
   * @param {number} x
   * @param {number} y
   */
  function describe(x, y) {
    const [grid, model] = [shown(state), modelShown(state)];
    if (!grid || !model) return "";
    const { row, column } = nodeAt(grid, x, y);
    const { labels, entropy } = grid.iterations[state.t];
    const name = model.classes[labels[y * grid.width + x]]?.name ?? "unlabelled";
    const nats = (entropy[y * grid.width + x] / 255) * Math.log(model.classes.length);
    const push = state.node && pushes(state).find((each) => each.row === row && each.column === column);
    const sent = push ? `, sends ${signed(push.value, decimals(Math.abs(push.value), 3, 6))}` : "";
    return `Row ${row}, column ${column}: ${name}, entropy ${nats.toFixed(2)} nats${sent}`;
  }

  function describeHere() {
    const grid = shown(state);
    const place = state.hover ?? state.cursor ?? state.node?.node;
    const help = modelShown(state)?.explains ? "Click a pixel to see the messages it receives." : "";
    readout.textContent = grid && place ? describe(...centrePixel(grid, place)) : grid ? help : "";
  }

  /**
   * @param {number} down
   * @param {number} right
   */
  function move(down, right) {
    const grid = shown(state);
    if (!grid) return;
    const from = state.cursor ?? state.node?.node ?? { row: grid.rows >> 1, column: grid.columns >> 1 };
    const to = {
      row: clamp(from.row + down, 0, grid.rows - 1),
      column: clamp(from.column + right, 0, grid.columns - 1),
    };
    store.set({ cursor: to, hover: null });
    said.textContent = describe(...centrePixel(grid, to));
  }

  surface.addEventListener("click", (event) => {
    const place = pixel(event);
    store.set({ cursor: null });
    if (place && modelShown(state)?.explains) session.explain(...place);
  });
  surface.addEventListener("pointermove", (event) => {
    const [grid, place] = [shown(state), pixel(event)];
    if (!grid || !place) return;
    const hover = nodeAt(grid, ...place);
    const same = hover.row === state.hover?.row && hover.column === state.hover?.column;
    if (!same) store.set({ hover });
  });
  surface.addEventListener("pointerleave", () => store.set({ hover: null }));
  surface.addEventListener("blur", () => store.set({ cursor: null }));
  surface.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const arrow = ARROWS[event.key];
    const size = event.shiftKey ? STRIDES : 1;
    if (arrow) move(arrow[0] * size, arrow[1] * size);
    else if (event.key === "Enter" || event.key === " ") {
      if (!state.cursor) move(0, 0);
      if (state.cursor && modelShown(state)?.explains) session.explainNode(state.cursor);
    } else if (event.key === "Escape") session.forget();
    else if (event.key === "." || event.key === ">") stepping.step(1);
    else if (event.key === "," || event.key === "<") stepping.step(-1);
    else if (event.key === "p") stepping.play();
    else return;
    event.preventDefault();
  });
  store.on(["hover", "cursor", "t", "results", "model", "node", "chosen", "rival", "muted"], describeHere);
  store.on(["results", "model"], () => {
    const grid = shown(state);
    surface.hidden = !grid;
    if (grid) {
      surface.setAttribute(
        "aria-label",
        `${state.photo?.name}, ${grid.rows} rows and ${grid.columns} columns of nodes`,
      );
    }
  });
}
