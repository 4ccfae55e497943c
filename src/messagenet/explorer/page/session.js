/**
 * What can be done: open a photo, choose a model, go to an iteration, explain a node. Each asks the server if
 * it has to and then changes the store. A photo that the server no longer caches is sent again.
 */

import { ApiError } from "./api.js";
import { duration } from "./format.js";
import { centrePixel } from "./geometry.js";

/**
 * @typedef {import("./types.js").Explanation} Explanation
 * @typedef {import("./types.js").State} State
 */

const CACHED_EXPLANATIONS = 400;

/**
 * @param {import("./types.js").Store} store
 * @param {ReturnType<typeof import("./api.js").createApi>} api
 * @param {ReturnType<typeof import("./status.js").createStatus>} status
 */
export function createSession(store, api, status) {
  const { state } = store;
  /** @type {Map<string, Explanation>} */
  const explanations = new Map();
  let opening = 0;
  let choosing = 0;
  let asking = new AbortController();
  /** @type {Promise<void>} */
  let last = Promise.resolve();

  /**
   * Does what changes the photo or the model, one after the other, so that a slow answer cannot undo a later
   * choice.
   *
   * @param {string} text
   * @param {() => Promise<void>} work
   */
  function inTurn(text, work) {
    last = last.then(() => status.during(text, work));
    return last;
  }

  /**
   * Asks about the photo shown by its key; if the server has dropped it, sends it again and asks once more.
   *
   * @template T
   * @param {(key: string) => Promise<T>} ask
   */
  async function withKey(ask) {
    const { photo } = state;
    const result = shown(state);
    if (!photo || !result) throw new Error("there is no photo yet");
    try {
      return await ask(result.key);
    } catch (problem) {
      if (!(problem instanceof ApiError) || problem.status !== 404) throw problem;
      const again = await api.segment({ image: photo.file, name: photo.name }, state.model);
      if (state.photo === photo) store.set({ results: new Map(state.results).set(state.model, again) });
      return ask(again.key);
    }
  }

  /** @param {string} model */
  async function result(model) {
    const cached = state.results.get(model);
    if (cached) return cached;
    const { photo } = state;
    const fresh = await withKey((key) => api.segment({ key }, model));
    if (state.photo === photo) store.set({ results: new Map(state.results).set(model, fresh) });
    return fresh;
  }

  /**
   * @param {number} x
   * @param {number} y
   */
  async function explain(x, y) {
    asking.abort();
    asking = new AbortController();
    const { signal } = asking;
    const { model, t } = state;
    const name = `${model} ${t} ${x} ${y}`;
    const found =
      explanations.get(name) ??
      (await withKey((key) => api.explain({ key, model, x, y, iteration: t }, signal)));
    if (signal.aborted) return;
    explanations.set(name, found);
    const [oldest] = explanations.keys();
    if (explanations.size > CACHED_EXPLANATIONS) explanations.delete(oldest);
    const { node } = state;
    const same = node && node.node.row === found.node.row && node.node.column === found.node.column;
    store.set({
      node: found,
      highlight: null,
      ...(same ? {} : { chosen: largest(found.belief.logits), rival: null }),
    });
  }

  /** Explains the same pixel again, for another model or iteration. */
  async function refresh() {
    asking.abort();
    const { node } = state;
    if (!node) return;
    if (modelShown(state)?.explainable) await explain(...node.pixel);
    else closeNode();
  }

  function closeNode() {
    asking.abort();
    store.set({ node: null, highlight: null });
  }

  return {
    /**
     * @param {Blob} file
     * @param {string} name
     */
    open: (file, name) => {
      const turn = (opening += 1);
      return inTurn(`Segmenting ${name} …`, async () => {
        if (turn !== opening) return;
        const decoding = createImageBitmap(file).catch(() => null);
        const fresh = await api.segment({ image: file, name }, state.model);
        const bitmap = await decoding;
        asking.abort();
        explanations.clear();
        const before = state.photo;
        store.set({
          photo: { file, name, bitmap },
          results: new Map([[fresh.model, fresh]]),
          t: fresh.maps.length - 1,
          cursor: null,
          hover: null,
          node: null,
          highlight: null,
          playing: false,
        });
        before?.bitmap?.close();
        const { width, height, rows, columns, milliseconds, stride } = fresh;
        const own = modelShown(state)?.stride ?? stride;
        const reduced =
          stride > 1.01 * own
            ? `, reduced by a factor of ${(stride / own).toFixed(1)} for the model`
            : "";
        status.show(
          `${width} × ${height} pixels, ${columns} × ${rows} nodes${reduced}, ${duration(milliseconds)}`,
        );
        if (state.compare) await result(state.compare.model);
      });
    },

    /** @param {string} model */
    useModel: (model) => {
      const turn = (choosing += 1);
      return inTurn(`Running ${model} …`, async () => {
        if (turn !== choosing) return;
        const before = modelShown(state);
        if (state.photo) await result(model);
        const after = state.models.find((each) => each.id === model);
        store.set({
          model,
          t: after?.iterations ?? 0,
          playing: false,
          ...(sameClasses(before, after) ? {} : { hidden: hiddenAtFirst(after), rival: null, node: null }),
        });
        await refresh();
      });
    },

    /** @param {number} t */
    goTo: (t) => {
      store.set({ t });
      return status.during("", refresh);
    },

    /** @param {import("./types.js").Version | null} version */
    compare: (version) =>
      inTurn("", async () => {
        if (version && state.photo) await result(version.model);
        store.set({ compare: version });
      }),

    /**
     * @param {number} x
     * @param {number} y
     */
    explain: (x, y) => status.during("", () => explain(x, y)),

    /** @param {import("./types.js").NodePosition} node */
    explainNode: (node) => {
      const grid = shown(state);
      return grid ? status.during("", () => explain(...centrePixel(grid, node))) : Promise.resolve();
    },

    closeNode,

    /** The labels on show, as a palette PNG. */
    labels: () => withKey((key) => api.labels(key, state.model, state.t)),
  };
}

/** @param {State} state */
export function modelShown(state) {
  return state.models.find((model) => model.id === state.model);
}

/**
 * The segmentation on show.
 *
 * @param {State} state
 */
export function shown(state) {
  return state.results.get(state.model);
}

/**
 * Classes that are off at first: a black background would only darken the photo.
 *
 * @param {import("./types.js").Model | undefined} model
 * @returns {ReadonlySet<number>}
 */
export function hiddenAtFirst(model) {
  const ids = [...(model?.classes.keys() ?? [])];
  return new Set(
    ids.filter((id) => model?.classes[id].name === "background" && model.classes[id].colour === "#000000"),
  );
}

/** @param {number[]} values */
export function largest(values) {
  return values.reduce((best, value, i) => (value > values[best] ? i : best), 0);
}

/**
 * @param {import("./types.js").Model | undefined} one
 * @param {import("./types.js").Model | undefined} other
 */
export function sameClasses(one, other) {
  return JSON.stringify(one?.classes) === JSON.stringify(other?.classes);
}
