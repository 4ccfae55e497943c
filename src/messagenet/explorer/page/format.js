/** Numbers as people read them: a true minus sign, fixed decimals, sums that add up. */

/**
 * @param {number} value
 * @param {number} [digits]
 */
export function signed(value, digits = 3) {
  const text = Math.abs(value).toFixed(digits);
  if (Number(text) === 0) return text;
  return (value < 0 ? "\u2212" : "+") + text;
}

/**
 * A share as a percentage; a positive share is never shown as 0.
 *
 * @param {number} share
 */
export function percent(share) {
  if (share > 0 && share < 0.0005) return "<0.1\u202f%";
  if (share < 1 && share > 0.9995) return ">99.9\u202f%";
  return `${(100 * share).toFixed(1)}\u202f%`;
}

/**
 * The number of decimals that shows values up to a size with so many significant digits.
 *
 * @param {number} size
 * @param {number} significant
 * @param {number} max
 */
export function decimals(size, significant, max) {
  const magnitude = size > 0 && Number.isFinite(size) ? Math.floor(Math.log10(size)) : 0;
  return Math.min(Math.max(significant - 1 - magnitude, 0), max);
}

/** @param {number} milliseconds */
export function duration(milliseconds) {
  return milliseconds < 1000 ? `${Math.round(milliseconds)} ms` : `${(milliseconds / 1000).toFixed(1)} s`;
}

/**
 * Rounds parts so that the rounded parts add up to the rounded sum (largest remainders), each less than one
 * unit of its last decimal away from its value.
 *
 * @param {number[]} parts
 * @param {number} total The sum of the parts, as computed elsewhere.
 * @param {number} [digits]
 */
export function addUp(parts, total, digits = 3) {
  const unit = 10 ** digits;
  const scaled = parts.map((part) => part * unit);
  const rounded = scaled.map(Math.floor);
  let missing = Math.round(total * unit) - rounded.reduce((sum, part) => sum + part, 0);
  const order = scaled.map((_, i) => i).sort((a, b) => scaled[b] - rounded[b] - (scaled[a] - rounded[a]));
  for (const i of order) {
    if (missing <= 0) break;
    rounded[i] += 1;
    missing -= 1;
  }
  return rounded.map((part) => part / unit);
}

/**
 * Where a sender is, seen from its receiver, in words and in arrows: "3 up, 2 left" and "↑3 ←2".
 *
 * @param {number} down Rows from the receiver to the sender.
 * @param {number} right Columns likewise.
 */
export function direction(down, right) {
  const steps = [
    { by: down, word: down < 0 ? "up" : "down", arrow: down < 0 ? "↑" : "↓" },
    { by: right, word: right < 0 ? "left" : "right", arrow: right < 0 ? "←" : "→" },
  ].filter(({ by }) => by);
  return {
    words: steps.map(({ by, word }) => `${Math.abs(by)} ${word}`).join(", "),
    arrows: steps.map(({ by, arrow }) => `${arrow}\u200a${Math.abs(by)}`).join(" "),
  };
}
