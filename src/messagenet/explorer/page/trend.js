/** How a node's marginals change over the iterations, as lines; only where there are enough for a line. */

import { byId, fill, h, svg } from "./dom.js";
import { percent } from "./format.js";
import { largest, modelShown } from "./session.js";

const [WIDTH, HEIGHT] = [400, 118];
const [LEFT, RIGHT, TOP, BOTTOM] = [34, 96, 8, 20];
const MIN_ITERATIONS = 2;
const LINES = 3;
const LINE_HEIGHT = 13; // of the names at the right

/** @param {import("./types.js").Store} store */
export function createTrend(store) {
  const { state } = store;
  store.on(["node", "chosen", "t"], () => {
    const { node, chosen } = state;
    const model = modelShown(state);
    const last = (node?.beliefs.length ?? 1) - 1;
    const now = node?.iteration ?? 0;
    byId("trend-section").hidden = last < MIN_ITERATIONS;
    if (!node || !model || last < MIN_ITERATIONS) return;

    const curves = model.classes.map((_, id) => node.beliefs.map(({ marginal }) => marginal[id]));
    const shown = [...curves.keys()]
      .sort((a, b) => Math.max(...curves[b]) - Math.max(...curves[a]))
      .slice(0, LINES);
    if (!shown.includes(chosen)) shown[shown.length - 1] = chosen;
    /** @param {number} t */
    const x = (t) => LEFT + (t / last) * (WIDTH - LEFT - RIGHT);
    /** @param {number} p */
    const y = (p) => TOP + (1 - p) * (HEIGHT - TOP - BOTTOM);

    const lines = shown.map((id) =>
      svg("path", {
        class: id === chosen ? "curve chosen" : "curve",
        d: curves[id].map((p, t) => `${t ? "L" : "M"}${x(t).toFixed(1)} ${y(p).toFixed(1)}`).join(""),
      }),
    );
    const dots = shown.map((id) =>
      svg("circle", {
        class: id === chosen ? "dot chosen" : "dot",
        cx: x(now),
        cy: y(curves[id][now]),
        r: 3.5,
      }),
    );
    const names = spread(shown.map((id) => ({ id, y: y(curves[id][last]) }))).map(({ id, y: position }) =>
      svg(
        "text",
        { class: id === chosen ? "curve-name chosen" : "curve-name", x: WIDTH - RIGHT + 8, y: position + 4 },
        model.classes[id].name,
      ),
    );
    const grid = [0, 0.5, 1].flatMap((p) => [
      svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(p), y2: y(p) }),
      svg("text", { class: "tick", x: LEFT - 6, y: y(p) + 4, "text-anchor": "end" }, `${100 * p} %`),
    ]);
    const ticks = node.beliefs.map(({ t }) =>
      svg(
        "text",
        { class: t === now ? "tick now" : "tick", x: x(t), y: HEIGHT - 4, "text-anchor": "middle" },
        String(t),
      ),
    );
    const best = node.beliefs.map(({ t, marginal }) => {
      const id = largest(marginal);
      return `t = ${t}: ${model.classes[id].name} ${percent(marginal[id])}`;
    });
    const chart = svg(
      "svg",
      {
        viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
        role: "img",
        "aria-label": `Most probable class: ${best.join("; ")}`,
      },
      ...grid,
      svg("line", { class: "now", x1: x(now), x2: x(now), y1: TOP, y2: HEIGHT - BOTTOM }),
      ...lines,
      ...dots,
      ...ticks,
      ...names,
    );
    fill(byId("trend"), h("div", { class: "chart" }, chart));
  });
}

/**
 * Moves names apart that would lie over each other, downwards and at the lower end upwards.
 *
 * @param {{id: number, y: number}[]} names
 */
function spread(names) {
  const sorted = [...names].sort((a, b) => a.y - b.y);
  for (let i = 1; i < sorted.length; i += 1) {
    sorted[i].y = Math.max(sorted[i].y, sorted[i - 1].y + LINE_HEIGHT);
  }
  let lowest = HEIGHT - BOTTOM;
  for (const name of sorted.reverse()) {
    name.y = Math.min(name.y, lowest);
    lowest = name.y - LINE_HEIGHT;
  }
  return sorted;
}
