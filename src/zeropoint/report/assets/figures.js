"use strict";
// What charts.js is to draw, as plain values. `ink` holds the colours of the present theme.

function frame(ink, more) {
  const axis = {gridcolor: ink.line};
  return {
    font: {color: ink.text}, showlegend: false, ...more,
    xaxis: {...axis, ...more.xaxis}, yaxis: {...axis, ...more.yaxis},
  };
}

/** The histogram of a tensor, with the range that its integers cover drawn over it. */
function histogramFigure(tensor, ink) {
  const {low, width, counts} = tensor.bins;
  const ends = [low, low + width * counts.length, ...(tensor.limits || [])];
  const from = Math.min(...ends), to = Math.max(...ends), margin = 0.04 * (to - from || 1);
  const bars = {
    type: "bar", x: counts.map((_, k) => low + (k + 0.5) * width), y: counts, width: counts.map(() => width),
    marker: {color: ink.accent}, hints: counts.map((count, k) => `${shortNumber(low + (k + 0.5) * width)}: ${count}`),
  };
  const shapes = [], annotations = [];
  if (tensor.limits) {
    const [first, last] = tensor.limits;
    shapes.push({type: "rect", x0: first, x1: last, fillcolor: ink.range, opacity: 0.18});
    for (const [x, side] of [[first, "left"], [last, "right"]]) {
      shapes.push({type: "line", x0: x, x1: x, line: {color: ink.range, width: 1.6}});
      annotations.push({x, xanchor: side, text: shortNumber(x)});
    }
  }
  return {
    data: [bars],
    layout: frame(ink, {
      shapes, annotations, xaxis: {range: [from - margin, to + margin]},
      yaxis: {type: "log", title: {text: "values"}},
    }),
  };
}

/** The weights of each channel from least to greatest, between what its scale allows. */
function channelFigure(weights, ink) {
  const channel = weights.lows.map((_, k) => k * weights.each);
  const outline = (values) => ({
    type: "scatter", mode: "lines", x: channel, y: values, line: {color: ink.range, width: 1.2, shape: "hvh"},
  });
  const bars = {
    type: "bar", x: channel, base: weights.lows, y: weights.highs.map((high, k) => high - weights.lows[k]),
    width: channel.map(() => 0.8 * weights.each), marker: {color: ink.accent},
    hints: channel.map((at, k) => `channel ${at}: ${shortNumber(weights.lows[k])} to ${shortNumber(weights.highs[k])}`),
  };
  return {
    data: [bars, outline(weights.limits), outline(weights.limits.map((limit) => -limit))],
    layout: frame(ink, {xaxis: {title: {text: weights.each > 1 ? `channel, ${weights.each} to a bar` : "channel"}}, yaxis: {}}),
  };
}

const SHOWN_DECIBELS = 90; // what is exact counts as 200 dB, and would press all else flat

/** Signal-to-noise from the first op to the last. */
function courseFigure(ops, measures, ink) {
  const lines = measures.filter((measure) => measure.unit === "dB").map((measure, k) => {
    const known = ops.map((op, index) => ({op, index})).filter(({op}) => op.errors[measure.key] !== null);
    return {
      type: "scatter", mode: "lines+markers", name: measure.title, x: known.map((one) => one.index),
      y: known.map((one) => Math.min(one.op.errors[measure.key], SHOWN_DECIBELS)),
      hints: known.map((one) => `${one.op.kind} ${one.op.short_name}: ${shortNumber(one.op.errors[measure.key])} dB, ${measure.title}`),
      customdata: known.map((one) => one.op.id), line: {width: 1.4, color: [ink.accent, ink.range, ink.third][k % 3]},
    };
  }).filter((line) => line.x.length);
  return {
    data: lines,
    layout: frame(ink, {
      showlegend: true, xaxis: {title: {text: "op"}}, yaxis: {title: {text: "SNR, dB"}},
    }),
  };
}

/** Durations side by side, with their spread. */
function latencyFigure(bars, ink) {
  return {
    data: [{
      type: "bar", orientation: "h", y: bars.map((bar) => bar.label), x: bars.map((bar) => bar.value), marker: {color: ink.accent},
      error_x: {
        color: ink.text, array: bars.map((bar) => bar.high - bar.value), arrayminus: bars.map((bar) => bar.value - bar.low),
      },
      hints: bars.map((bar) => `${bar.label}: ${shortNumber(bar.value)} ms`),
    }],
    layout: frame(ink, {xaxis: {title: {text: "ms"}, rangemode: "tozero"}, yaxis: {}}),
  };
}

function shortNumber(value) {
  return value === null ? "" : String(Number(value.toPrecision(4)));
}
