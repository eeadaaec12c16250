"use strict";
// A figure of figures.js as a list of SVG elements {tag, set, text, hint, op}: plain values in, plain values out.

const CHARACTER = 6; // pixels, in the size that charts are labelled with

/** Round numbers from low to high, about `count` of them. */
function ticks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5].find((factor) => factor * power >= rough) ?? 10), found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) found.push(k * step);
  return found;
}

/** An axis: `at` takes values to shares of its length, `marks` are where it is labelled. */
function axisOf(values, settings, count) {
  if (settings.type === "log") {
    const top = Math.max(1, Math.ceil(Math.log10(Math.max(1, ...values))));
    const marks = Array.from({length: top + 1}, (_, k) => 10 ** k).filter((_, k) => k % Math.ceil((top + 1) / count) === 0);
    return {at: (value) => (value > 0 ? Math.max(0, (Math.log10(value) + 0.3) / (top + 0.3)) : 0), marks};
  }
  let [low, high] = settings.range ?? [Math.min(...values), Math.max(...values)];
  if (settings.rangemode === "tozero") low = Math.min(0, low);
  if (!(high > low)) [low, high] = [low - 0.5, low + 0.5];
  if (!settings.range) high += 0.04 * (high - low);
  return {at: (value) => (value - low) / (high - low), marks: ticks(low, high, count)};
}

/** What bars and lines reach along x and y. */
function extents(data) {
  const xs = [], ys = [];
  for (const trace of data) {
    const lengths = trace.orientation === "h" ? xs : ys, places = trace.orientation === "h" ? ys : xs;
    trace[trace.orientation === "h" ? "x" : "y"].forEach((value, k) => {
      const base = trace.base?.[k] ?? 0;
      lengths.push(...(trace.type === "bar" ? [base, base + value + (trace.error_x?.array[k] ?? 0)] : [value]));
    });
    trace[trace.orientation === "h" ? "y" : "x"].forEach((place, k) => {
      const half = trace.type === "bar" ? (trace.width?.[k] ?? 0.8) / 2 : 0.5;
      places.push(...(typeof place === "number" ? [place - half, place + half] : [k - 0.5, k + 0.5]));
    });
  }
  return {xs, ys};
}

/** The elements of a figure in a room of so many pixels. */
function chartParts({data, layout}, room) {
  const {xs, ys} = extents(data), sideways = data.some((trace) => trace.orientation === "h");
  const names = sideways ? data[0].y : [];
  const left = sideways ? Math.min(0.4 * room.width, 12 + CHARACTER * Math.max(...names.map((name) => name.length))) : 52;
  const box = {left, top: layout.showlegend ? 30 : 20, right: room.width - 10, bottom: room.height - 34};
  const xAxis = axisOf(xs, layout.xaxis, 6), yAxis = axisOf(ys, layout.yaxis, 5);
  const x = (value) => box.left + xAxis.at(value) * (box.right - box.left);
  const y = (value) => (sideways ? box.top + yAxis.at(value) * (box.bottom - box.top) : box.bottom - yAxis.at(value) * (box.bottom - box.top));
  return [
    ...frameParts(layout, box, {x, y, xAxis, yAxis, names}),
    ...(layout.shapes ?? []).map((shape) => shapePart(shape, x, box)),
    ...data.flatMap((trace) => (trace.type === "bar" ? barParts(trace, x, y) : lineParts(trace, x, y))),
    ...(layout.annotations ?? []).map((note) => label(x(note.x), box.top - 4, note.text, note.xanchor === "left" ? "start" : "end", layout.font.color)),
    ...legendParts(layout, data, box),
  ];
}

function label(x, y, text, anchor, colour) {
  return {tag: "text", set: {x, y, fill: colour, "text-anchor": anchor}, text};
}

function frameParts(layout, box, {x, y, xAxis, yAxis, names}) {
  const colour = layout.font.color, grid = layout.xaxis.gridcolor, parts = [];
  for (const mark of xAxis.marks) {
    parts.push({tag: "path", set: {stroke: grid, d: `M${x(mark)} ${box.top}V${box.bottom}`}});
    parts.push(label(x(mark), box.bottom + 14, shortNumber(mark), "middle", colour));
  }
  if (names.length) names.forEach((name, k) => parts.push(label(box.left - 6, y(k) + 4, name, "end", colour)));
  else {
    for (const mark of yAxis.marks) {
      parts.push({tag: "path", set: {stroke: grid, d: `M${box.left} ${y(mark)}H${box.right}`}});
      parts.push(label(box.left - 5, y(mark) + 4, shortNumber(mark), "end", colour));
    }
  }
  const middle = (box.top + box.bottom) / 2, [below, beside] = [layout.xaxis.title?.text, layout.yaxis.title?.text];
  if (below) parts.push(label((box.left + box.right) / 2, box.bottom + 29, below, "middle", colour));
  if (beside) parts.push({...label(11, middle, beside, "middle", colour), set: {x: 11, y: middle, fill: colour, "text-anchor": "middle", transform: `rotate(-90 11 ${middle})`}});
  return parts;
}

function shapePart(shape, x, box) {
  const [from, to] = [x(shape.x0), x(shape.x1)];
  if (shape.type === "line") {
    return {tag: "path", set: {class: "range", stroke: shape.line.color, "stroke-width": shape.line.width, "stroke-dasharray": "5 4", d: `M${from} ${box.top}V${box.bottom}`}};
  }
  return {tag: "rect", set: {class: "range", fill: shape.fillcolor, opacity: shape.opacity, x: from, y: box.top, width: to - from, height: box.bottom - box.top}};
}

function barParts(trace, x, y) {
  const count = (trace.orientation === "h" ? trace.y : trace.x).length;
  return Array.from({length: count}, (_, k) => k).flatMap((k) => {
    if (trace.orientation !== "h") {
      const half = trace.width[k] / 2, base = trace.base?.[k] ?? 0, [top, foot] = [y(base + trace.y[k]), y(base)];
      const [from, to] = [x(trace.x[k] - half), x(trace.x[k] + half)];
      return [{tag: "rect", set: {fill: trace.marker.color, x: from, y: top, width: Math.max(0.6, to - from), height: Math.max(0, foot - top)}, hint: trace.hints[k]}];
    }
    const [from, to, thick] = [x(0), x(trace.x[k]), 0.35 * Math.abs(y(1) - y(0))];
    const {array, arrayminus, color} = trace.error_x, [low, high] = [x(trace.x[k] - arrayminus[k]), x(trace.x[k] + array[k])];
    return [
      {tag: "rect", set: {fill: trace.marker.color, x: from, y: y(k) - thick, width: to - from, height: 2 * thick}, hint: trace.hints[k]},
      {tag: "path", set: {stroke: color, d: `M${low} ${y(k)}H${high}M${low} ${y(k) - 4}v8M${high} ${y(k) - 4}v8`}},
    ];
  });
}

function lineParts(trace, x, y) {
  const step = trace.line.shape === "hvh" && trace.x.length > 1 ? (trace.x[1] - trace.x[0]) / 2 : 0;
  const path = trace.x.map((at, k) => {
    const to = `${x(at - step)} ${y(trace.y[k])}`;
    return `${k ? "L" : "M"}${to}${step ? `H${x(at + step)}` : ""}`;
  });
  const dots = !trace.mode.includes("markers") ? [] : trace.x.map((at, k) => (
    {tag: "circle", set: {class: "dot", fill: trace.line.color, r: 3.2, cx: x(at), cy: y(trace.y[k])}, hint: trace.hints[k], op: trace.customdata[k]}));
  return [{tag: "path", set: {fill: "none", stroke: trace.line.color, "stroke-width": trace.line.width, d: path.join("")}}, ...dots];
}

function legendParts(layout, data, box) {
  let at = box.left;
  return !layout.showlegend ? [] : data.flatMap((trace) => {
    const from = at;
    at += 34 + CHARACTER * trace.name.length;
    return [
      {tag: "path", set: {stroke: trace.line.color, "stroke-width": 3, d: `M${from} 12h14`}},
      label(from + 18, 16, trace.name, "start", layout.font.color),
    ];
  });
}
