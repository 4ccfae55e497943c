/** An explanation seen from one class: all messages, their sum by sender, the parts of the logit. */

/**
 * @typedef {import("./types.js").State} State
 * @typedef {import("./types.js").Message} Message
 */

/**
 * Maps one value per class to the value in question: that of the chosen class, less that of its rival.
 *
 * @param {State} state
 */
export function inQuestion({ chosen, rival }) {
  return (/** @type {number[]} */ values) => values[chosen] - (rival === null ? 0 : values[rival]);
}

/**
 * The parts of the logit in question: the unary message and the total of each relation.
 *
 * @param {State} state
 * @returns {{name: string, form: string, value: number, senders: number, style: number}[]}
 */
export function parts(state) {
  const value = inQuestion(state);
  return (state.node?.factors ?? []).map((factor, i) => ({
    name: factor.name,
    form: factor.form ?? "unary",
    value: value(factor.total),
    senders: factor.senders?.length ?? 0,
    style: i - 1,
  }));
}

/**
 * Every message of a relation that is drawn, the strongest first.
 *
 * @param {State} state
 * @returns {Message[]}
 */
export function messages(state) {
  const value = inQuestion(state);
  /** @type {Message[]} */
  const found = [];
  for (const { name, form = "pairwise", senders = [], messages: sent = [] } of state.node?.factors ?? []) {
    if (state.hiddenRelations.has(name)) continue;
    if (form === "box" && senders.length) {
      found.push({ relation: name, form, senders, value: value(sent[0]) });
    } else if (form === "pairwise") {
      senders.forEach((sender, i) => {
        found.push({ relation: name, form, senders: [sender], value: value(sent[i]) });
      });
    }
  }
  return found.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
}

/**
 * The sum of each sender's messages through all relations that are drawn. The one message of a box counts in
 * equal parts for its senders.
 *
 * @param {State} state
 * @returns {{row: number, column: number, value: number}[]}
 */
export function contributions(state) {
  /** @type {Map<string, {row: number, column: number, value: number}>} */
  const bySender = new Map();
  for (const { senders, value } of messages(state)) {
    for (const [row, column] of senders) {
      const key = `${row} ${column}`;
      const entry = bySender.get(key) ?? { row, column, value: 0 };
      entry.value += value / senders.length;
      bySender.set(key, entry);
    }
  }
  return [...bySender.values()];
}

/** @param {{value: number}[]} entries */
export function largestContribution(entries) {
  return entries.reduce((largest, { value }) => Math.max(largest, Math.abs(value)), 0);
}
