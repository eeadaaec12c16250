"use strict";
// Order and choice of table rows. A cell is a number, a text, or null where nothing was measured.

/** Whether every word of the query occurs in the text. */
function matches(text, query) {
  const where = text.toLowerCase();
  return query.toLowerCase().split(/\s+/).every((word) => where.includes(word));
}

/** The value that occurs most often; of several, the first. */
function mostFrequent(values) {
  const count = (value) => values.filter((other) => other === value).length;
  return values.reduce((best, value) => (count(value) > count(best) ? value : best));
}

/** Indices of the cells in ascending or descending order; nothing comes last either way, equals keep their order. */
function ordered(cells, descending) {
  const order = (a, b) => (typeof a === "number" ? a - b : a < b ? -1 : a > b ? 1 : 0);
  return cells.map((_, k) => k).sort((i, j) => {
    const [a, b] = [cells[i], cells[j]];
    if (a === null || b === null) return (a === null) - (b === null);
    return descending ? order(b, a) : order(a, b);
  });
}
