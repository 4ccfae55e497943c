/**
 * Decodes 8-bit greyscale PNGs exactly.
 *
 * A canvas could decode them too, but colour management and protection against fingerprinting may change its
 * pixels, and here a pixel is a class id.
 */

const SIGNATURE = [137, 80, 78, 71, 13, 10, 26, 10];

/**
 * @param {string} base64
 * @returns {Promise<{width: number, height: number, values: Uint8Array}>}
 */
export async function decodeGrey(base64) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  if (SIGNATURE.some((byte, i) => bytes[i] !== byte)) throw new Error("not a PNG file");
  let [width, height] = [0, 0];
  /** @type {BlobPart[]} */
  const parts = [];
  for (let offset = 8; offset < bytes.length;) {
    const length = view.getUint32(offset);
    const type = String.fromCharCode(...bytes.subarray(offset + 4, offset + 8));
    const start = offset + 8;
    if (type === "IHDR") {
      width = view.getUint32(start);
      height = view.getUint32(start + 4);
      const [depth, colour, , , interlaced] = bytes.subarray(start + 8, start + 13);
      if (depth !== 8 || colour !== 0 || interlaced) throw new Error("not an 8-bit greyscale PNG");
    } else if (type === "IDAT") parts.push(bytes.subarray(start, start + length));
    offset = start + length + 4;
  }
  const inflated = new Blob(parts).stream().pipeThrough(new DecompressionStream("deflate"));
  const lines = new Uint8Array(await new Response(inflated).arrayBuffer());
  return { width, height, values: unfilter(lines, width, height) };
}

/**
 * Undoes the line filters: every line starts with the index of its filter (none, sub, up, average, Paeth).
 *
 * @param {Uint8Array} lines
 * @param {number} width
 * @param {number} height
 */
function unfilter(lines, width, height) {
  if (lines.length !== height * (width + 1)) throw new Error("a PNG of the wrong length");
  const values = new Uint8Array(width * height);
  for (let y = 0; y < height; y += 1) {
    const filter = lines[y * (width + 1)];
    const from = y * (width + 1) + 1;
    const to = y * width;
    for (let x = 0; x < width; x += 1) {
      const left = x ? values[to + x - 1] : 0;
      const up = y ? values[to + x - width] : 0;
      const corner = x && y ? values[to + x - width - 1] : 0;
      values[to + x] = lines[from + x] + predict(filter, left, up, corner);
    }
  }
  return values;
}

/**
 * @param {number} filter
 * @param {number} left
 * @param {number} up
 * @param {number} corner
 */
function predict(filter, left, up, corner) {
  switch (filter) {
    case 0:
      return 0;
    case 1:
      return left;
    case 2:
      return up;
    case 3:
      return (left + up) >> 1;
    default: {
      const guess = left + up - corner;
      const [a, b, c] = [Math.abs(guess - left), Math.abs(guess - up), Math.abs(guess - corner)];
      return a <= b && a <= c ? left : b <= c ? up : corner;
    }
  }
}
