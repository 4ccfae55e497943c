/**
 * The state that the parts of the page share. A part listens to some keys and runs once per change.
 *
 * @template {object} T
 * @param {T} initial
 */
export function createStore(initial) {
  const state = { ...initial };
  /** @type {{keys: (keyof T)[], run: (state: T) => void}[]} */
  const listeners = [];
  return {
    /** Read it, and change it through `set` only. */
    state,

    /** @param {Partial<T>} patch */
    set(patch) {
      const changed = new Set(
        /** @type {(keyof T)[]} */ (Object.keys(patch)).filter((key) => !Object.is(state[key], patch[key])),
      );
      Object.assign(state, patch);
      for (const { keys, run } of listeners) if (keys.some((key) => changed.has(key))) run(state);
    },

    /**
     * Runs now, and again whenever one of the keys changes.
     *
     * @param {(keyof T)[]} keys
     * @param {(state: T) => void} run
     */
    on(keys, run) {
      listeners.push({ keys, run });
      run(state);
    },
  };
}
