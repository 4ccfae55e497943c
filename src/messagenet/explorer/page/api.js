/** The server's addresses. Errors carry its one-line explanation; requests to a busy server are retried. */

import { decodeGrey } from "./png.js";

/**
 * @typedef {import("./types.js").Model} Model
 * @typedef {import("./types.js").Segmentation} Segmentation
 * @typedef {import("./types.js").Explanation} Explanation
 */

const ATTEMPTS = 6;
const MAX_WAIT = 15;

/** A request that the server refused, with its message. */
export class ApiError extends Error {
  /**
   * @param {string} message
   * @param {number} status 0 if there was no answer.
   */
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/**
 * @param {(seconds: number) => void} onWait Called before a request is retried.
 */
export function createApi(onWait) {
  /**
   * @param {string} path
   * @param {RequestInit} [init]
   * @returns {Promise<Response>}
   */
  async function request(path, init = {}) {
    for (let attempt = 1; ; attempt += 1) {
      const response = await fetch(path, init).catch((/** @type {unknown} */ problem) => {
        if (init.signal?.aborted) throw problem;
        throw new ApiError("The server does not answer. Is `messagenet serve` still running?", 0);
      });
      if (response.ok) return response;
      if (response.status !== 503 || attempt === ATTEMPTS) throw await refusal(response);
      const asked = Number(response.headers.get("Retry-After"));
      const seconds = Math.min(Number.isFinite(asked) && asked > 0 ? asked : 1, MAX_WAIT);
      onWait(seconds);
      await new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
    }
  }

  return {
    /** @returns {Promise<{models: Model[], default: string}>} */
    async models() {
      return (await request("models")).json();
    },

    /** @returns {Promise<string[]>} */
    async samples() {
      return (await (await request("samples")).json()).samples;
    },

    /** @param {string} name */
    async sample(name) {
      return (await request(sampleAddress(name))).blob();
    },

    /**
     * @param {{image: Blob, name: string} | {key: string}} what A photo, or the key of one sent before.
     * @param {string} model
     * @returns {Promise<Segmentation>}
     */
    async segment(what, model) {
      const response = await request("segment", {
        method: "POST",
        body: form(what, { model }),
        headers: { Accept: "application/json" },
      });
      return decoded(await response.json());
    },

    /**
     * Labels as a palette PNG.
     *
     * @param {string} key
     * @param {string} model
     * @param {number} iteration
     */
    async labels(key, model, iteration) {
      const response = await request("segment", {
        method: "POST",
        body: form({ key }, { model, iteration: String(iteration) }),
        headers: { Accept: "image/png" },
      });
      return response.blob();
    },

    /**
     * @param {{key: string, model: string, x: number, y: number, iteration: number}} question
     * @param {AbortSignal} signal
     * @returns {Promise<Explanation>}
     */
    async explain(question, signal) {
      const response = await request("explain", {
        method: "POST",
        body: JSON.stringify(question),
        headers: { "Content-Type": "application/json" },
        signal,
      });
      return response.json();
    },
  };
}

/** @param {string} name */
export function sampleAddress(name) {
  return `samples/${encodeURIComponent(name)}`;
}

/**
 * @param {{image: Blob, name: string} | {key: string}} what
 * @param {Record<string, string>} fields
 */
function form(what, fields) {
  const body = new FormData();
  if ("key" in what) body.append("key", what.key);
  else body.append("image", what.image, what.name);
  for (const [name, value] of Object.entries(fields)) body.append(name, value);
  return body;
}

/** @param {Response} response */
async function refusal(response) {
  const content = await response.json().catch(() => null);
  const message =
    typeof content?.error === "string" ? content.error : `The server answered ${response.status}.`;
  return new ApiError(message, response.status);
}

/**
 * The answer of /segment with decoded maps.
 *
 * @param {any} answer
 * @returns {Promise<Segmentation>}
 */
async function decoded(answer) {
  const maps = await Promise.all(
    answer.maps.map(async (/** @type {any} */ each) => ({
      ...each,
      labels: (await decodeGrey(each.labels)).values,
      entropy: (await decodeGrey(each.entropy)).values,
    })),
  );
  return { ...answer, maps };
}
