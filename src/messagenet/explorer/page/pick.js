/** Choosing a node on the image: with mouse or finger, or with the keyboard, node by node. */

import { byId } from "./dom.js";
import { decimals, signed } from "./format.js";
import { centrePixel, clamp, nodeAt } from "./geometry.js";
import { contributions } from "./messages.js";
import { modelShown, shown } from "./session.js";

/** @type {Record<string, [number, number]>} */
const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
const JUMP = 5; // nodes at a time with Shift

/**
 * @param {import("./types.js").Store} store
 * @param {import("./types.js").Session} session
 * @param {{step: (by: number) => void, play: () => void}} stepping
 */
export function createPicking(store, session, stepping) {
  const { state } = store;
  const surface = byId("surface");
  const readout = byId("readout");
  const announcement = byId("cursor-status");

  /**
   * @param {MouseEvent} event
   * @returns {[number, number] | null}
   */
  function pixel(event) {
    const grid = shown(state);
    if (!grid) return null;
    const rect = surface.getBoundingClientRect();
    const x = Math.floor(((event.clientX - rect.left) / rect.width) * grid.width);
    const y = Math.floor(((event.clientY - rect.top) / rect.height) * grid.height);
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
    const { labels, entropy } = grid.maps[state.t];
    const name = model.classes[labels[y * grid.width + x]]?.name ?? "unlabelled";
    const nats = (entropy[y * grid.width + x] / 255) * Math.log(model.classes.length);
    const sender =
      state.node && contributions(state).find((each) => each.row === row && each.column === column);
    const sent = sender ? `, sends ${signed(sender.value, decimals(Math.abs(sender.value), 3, 6))}` : "";
    return `Row ${row}, column ${column}: ${name}, entropy ${nats.toFixed(2)} nats${sent}`;
  }

  function describeHere() {
    const grid = shown(state);
    const node = state.hover ?? state.cursor ?? state.node?.node;
    const help = modelShown(state)?.explainable ? "Click a pixel to see the messages it receives." : "";
    readout.textContent = grid && node ? describe(...centrePixel(grid, node)) : grid ? help : "";
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
    announcement.textContent = describe(...centrePixel(grid, to));
  }

  surface.addEventListener("click", (event) => {
    const position = pixel(event);
    store.set({ cursor: null });
    if (position && modelShown(state)?.explainable) session.explain(...position);
  });
  surface.addEventListener("pointermove", (event) => {
    const [grid, position] = [shown(state), pixel(event)];
    if (!grid || !position) return;
    const hover = nodeAt(grid, ...position);
    const same = hover.row === state.hover?.row && hover.column === state.hover?.column;
    if (!same) store.set({ hover });
  });
  surface.addEventListener("pointerleave", () => store.set({ hover: null }));
  surface.addEventListener("blur", () => store.set({ cursor: null }));
  surface.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const arrow = ARROWS[event.key];
    const size = event.shiftKey ? JUMP : 1;
    if (arrow) move(arrow[0] * size, arrow[1] * size);
    else if (event.key === "Enter" || event.key === " ") {
      if (!state.cursor) move(0, 0);
      if (state.cursor && modelShown(state)?.explainable) session.explainNode(state.cursor);
    } else if (event.key === "Escape") session.closeNode();
    else if (event.key === "." || event.key === ">") stepping.step(1);
    else if (event.key === "," || event.key === "<") stepping.step(-1);
    else if (event.key === "p") stepping.play();
    else return;
    event.preventDefault();
  });
  store.on(
    ["hover", "cursor", "t", "results", "model", "node", "chosen", "rival", "hiddenRelations"],
    describeHere,
  );
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
