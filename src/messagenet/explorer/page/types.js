/**
 * The types of the server's answers and of the page's state.
 *
 * @typedef {{name: string, colour: string}} ClassInfo
 * @typedef {{name: string, form: "pairwise" | "box"}} RelationInfo
 * @typedef {{id: string, kind: string, classes: ClassInfo[], relations: RelationInfo[], iterations: number,
 *   explainable: boolean, stride: number}} Model
 *
 * @typedef {{t: number, labels: Uint8Array, entropy: Uint8Array, shares: number[], changed: number}}
 *   IterationMaps
 *   `labels` holds a class id per pixel; `entropy` 0 (certain) to 255 (log K nats).
 * @typedef {{width: number, height: number, rows: number, columns: number, stride: number}} Grid
 * @typedef {Grid & {key: string, model: string, maps: IterationMaps[], milliseconds: number}} Segmentation
 *
 * @typedef {[number, number, number, number]} Box x0, y0, x1, y1 in pixels of the image
 * @typedef {{row: number, column: number}} NodePosition
 * @typedef {{logits: number[], marginal: number[]}} Belief
 * @typedef {{name: string, form?: "pairwise" | "box", box?: Box | null, total: number[],
 *   senders?: [number, number][], messages?: number[][]}} Factor
 * @typedef {{key: string, model: string, iteration: number, pixel: [number, number],
 *   node: NodePosition & {box: Box}, unary: Belief, belief: Belief, beliefs: (Belief & {t: number})[],
 *   factors: Factor[], milliseconds: number}} Explanation
 *
 * @typedef {{file: Blob, name: string, bitmap: ImageBitmap | null}} Photo
 * @typedef {{model: string, t: number}} Version What is compared: a model after t iterations.
 *
 * @typedef {object} State
 * @property {Model[]} models
 * @property {string} model Id of the model shown.
 * @property {Photo | null} photo
 * @property {ReadonlyMap<string, Segmentation>} results By model id, of the photo shown.
 * @property {number} t The iteration shown.
 * @property {"labels" | "entropy" | "photo"} view
 * @property {number} opacity
 * @property {ReadonlySet<number>} hidden Classes that are switched off.
 * @property {NodePosition | null} cursor Where the keyboard is.
 * @property {NodePosition | null} hover Where the mouse is.
 * @property {Explanation | null} node The node explained.
 * @property {number} chosen The class explained.
 * @property {number | null} rival The class it is compared with; null for its logit as it is.
 * @property {ReadonlySet<string>} hiddenRelations Relations whose senders are not drawn.
 * @property {Message | null} highlight The message pointed at in the list.
 * @property {Version | null} compare What is left of the swipe handle.
 * @property {number} swipe Where the handle is, 0 to 1 from the left.
 * @property {boolean} playing
 * @property {number} themes How often the theme has changed.
 *
 * @typedef {{relation: string, form: "pairwise" | "box", senders: [number, number][], value: number}} Message
 *   A message's value for the chosen class.
 *
 * @typedef {ReturnType<typeof import("./store.js").createStore<State>>} Store
 * @typedef {ReturnType<typeof import("./session.js").createSession>} Session
 */

export {};
