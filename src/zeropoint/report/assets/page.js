"use strict";
// Puts life into the page. All text from the model goes in as text, never as markup.

const page = JSON.parse(document.getElementById("data").textContent);
const opsById = new Map(page.ops.map((op) => [op.id, op]));
const all = (selector, where = document) => [...where.querySelectorAll(selector)];
const one = (selector) => document.querySelector(selector);
const redraws = new Map(); // chart element -> draws it in the present colours

function element(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children.filter((child) => child !== null));
  return made;
}

// Charts. The library is unpacked when the first one is drawn, so that opening the page does not wait for it.

let library = null, printing = false;

async function unpackLibrary() {
  const letters = atob(one("#charts").textContent), packed = new Uint8Array(letters.length);
  for (let k = 0; k < packed.length; k++) packed[k] = letters.charCodeAt(k); // ten times as fast as Uint8Array.from
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const text = await new Response(stream).text();
  document.head.append(element("script", {textContent: text}));
}

function ink() {
  const probe = document.body.appendChild(element("i", {hidden: false}));
  const colour = (name) => { probe.style.color = `var(--${name})`; return getComputedStyle(probe).color; };
  const found = {text: colour("text"), line: colour("line"), accent: colour("accent"), range: colour("mark"), third: colour("quiet")};
  probe.remove();
  return found;
}

function paint(where, figure) {
  const {data, layout} = figure(ink());
  if (printing) layout.width = 640; // paper has not been measured yet when this is drawn
  return window.Plotly.react(where, data, layout, {displaylogo: false, responsive: true, displayModeBar: false});
}

async function drawChart(where, figure) {
  redraws.set(where, () => { if (window.Plotly) paint(where, figure); });
  try {
    library ??= unpackLibrary();
    await library;
    if (where.isConnected) await paint(where, figure);
  } catch (error) {
    where.replaceChildren(element("p", {className: "quiet", textContent: `This browser cannot draw the charts: ${error.message}`}));
  }
}

// One op.

function errorTable(errors) {
  const shares = new Set(["clipped", "used"]);
  const titles = {
    own: "Own SNR, dB", accumulated: "Accumulated SNR, dB", expected: "Expected SNR, dB", cosine: "Cosine",
    mean_ulp: "Mean error, units of the last place", max_ulp: "Largest, units of the last place",
    clipped: "Clipped values", used: "Integers in use",
  };
  const rows = Object.entries(titles).filter(([key]) => errors[key] !== null).map(([key, title]) => {
    const value = shares.has(key) ? `${shortNumber(100 * errors[key])}%` : shortNumber(errors[key]);
    return element("tr", {}, element("td", {textContent: title}), element("td", {className: "number", textContent: value}));
  });
  return rows.length ? element("table", {}, element("tbody", {}, ...rows)) : null;
}

function tensorPart(title, name) {
  const tensor = page.tensors[name];
  const part = element("div", {}, element("h3", {textContent: title}));
  if (!title.startsWith("Output 0")) part.append(element("p", {textContent: name})); // the op goes by that name already
  part.append(element("p", {className: "quiet", textContent: [tensor.type, tensor.formula].filter(Boolean).join("  ·  ")}));
  if (tensor.limits) part.append(element("p", {className: "quiet", textContent: `integers cover ${tensor.limits.map(shortNumber).join(" to ")}`}));
  if (tensor.seen) part.append(element("p", {className: "quiet", textContent: `calibration saw ${tensor.seen.map(shortNumber).join(" to ")}`}));
  if (tensor.bins) {
    const where = part.appendChild(element("div", {className: "chart histogram"}));
    drawChart(where, (colours) => histogramFigure(tensor, colours));
  }
  return part;
}

function choose(id, {reveal}) {
  const op = opsById.get(id);
  all(".chosen").forEach((marked) => marked.classList.remove("chosen"));
  all(`[data-op="${id}"]`).forEach((marked) => { if (marked.matches(".box, tr")) marked.classList.add("chosen"); });
  if (reveal) showBox(id);
  all("#detail .chart").forEach((old) => { redraws.delete(old); window.Plotly?.purge(old); });
  const detail = one("#detail");
  detail.replaceChildren(
    element("h2", {textContent: op.kind}),
    element("p", {textContent: op.name}),
    element("p", {className: "quiet", textContent: [op.execution, op.macs ? `${op.macs.toLocaleString("en")} multiply-accumulates` : ""].filter(Boolean).join(", ")}),
  );
  op.notes.forEach((note) => detail.append(element("p", {textContent: note})));
  op.outputs.forEach((name, k) => detail.append(tensorPart(`Output ${k}`, name)));
  const errors = errorTable(op.errors);
  if (errors) detail.append(element("h3", {textContent: "Error"}), errors);
  if (op.multiplier) detail.append(element("p", {className: "quiet", textContent: `kernel factor ${op.multiplier}`}));
  op.inputs.forEach((name, k) => { if (name !== null) detail.append(tensorPart(`Input ${k}`, name)); });
  for (const weights of op.weights) {
    detail.append(element("h3", {textContent: "Weights by channel"}), element("p", {className: "quiet", textContent: `${weights.name}, axis ${weights.axis}; the outline is what the scale allows`}));
    const where = detail.appendChild(element("div", {className: "chart channels"}));
    drawChart(where, (colours) => channelFigure(weights, colours));
  }
  detail.scrollTop = 0;
}

// The picture.

let svg = null, view = null, size = null;

function room() {
  const box = one(".stage").getBoundingClientRect();
  return {width: Math.max(box.width, 1), height: Math.max(box.height, 1)};
}

function show(next) {
  view = next;
  // A transform moves what is painted already; another viewBox would lay out every text anew.
  const scale = room().width / view.width;
  svg.style.transform = `matrix(${scale}, 0, 0, ${scale}, ${-view.x * scale}, ${-view.y * scale})`;
}

function openPicture(index) {
  const pictures = all(".picture");
  pictures.forEach((picture, k) => picture.toggleAttribute("hidden", k !== index));
  svg = pictures[index];
  size = {width: Number(svg.dataset.width), height: Number(svg.dataset.height)};
  const first = svg.querySelector(".box[data-op]").transform.baseVal.getItem(0).matrix;
  show(firstView(size, room(), first.e + svg.querySelector("rect").width.baseVal.value / 2));
}

function showBox(id) {
  const box = one(`.box[data-op="${id}"]`);
  const index = all(".picture").indexOf(box.closest(".picture"));
  if (all(".picture")[index] !== svg) {
    openPicture(index);
    one("#picture").value = String(index);
  }
  const place = box.transform.baseVal.getItem(0).matrix, shape = box.getBBox();
  show(centred(view, place.e + shape.width / 2, place.f + shape.height / 2));
}

function pictureMoves(stage) {
  const touching = new Map();
  let dragged = 0;
  const at = (event) => {
    const box = stage.getBoundingClientRect();
    return [view.x + (event.clientX - box.left) / box.width * view.width, view.y + (event.clientY - box.top) / box.height * view.height];
  };
  const spread = () => { const [a, b] = [...touching.values()]; return Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY); };
  stage.addEventListener("pointerdown", (event) => { touching.set(event.pointerId, event); dragged = 0; stage.classList.add("moving"); });
  window.addEventListener("pointermove", (event) => {
    const last = touching.get(event.pointerId);
    if (!last) return;
    const before = touching.size === 2 ? spread() : 0;
    touching.set(event.pointerId, event);
    dragged += Math.abs(event.clientX - last.clientX) + Math.abs(event.clientY - last.clientY);
    if (touching.size === 2) show(zoomed(view, before / Math.max(spread(), 1), ...at(event), size));
    else {
      const unit = view.width / room().width;
      show(moved(view, (last.clientX - event.clientX) * unit, (last.clientY - event.clientY) * unit, size));
    }
  });
  for (const end of ["pointerup", "pointercancel"]) {
    window.addEventListener(end, (event) => { touching.delete(event.pointerId); stage.classList.remove("moving"); });
  }
  stage.addEventListener("click", (event) => {
    const box = event.target.closest(".box[data-op]");
    if (box && dragged < 5) choose(box.dataset.op, {reveal: false});
  });
  stage.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      show(zoomed(view, Math.exp(event.deltaY / 300), ...at(event), size));
      return;
    }
    // At either end of the picture the wheel belongs to the page again.
    const unit = view.width / room().width, next = view.y + event.deltaY * unit;
    if (next > -0.1 * view.height && next + view.height < size.height + 0.1 * view.height) {
      event.preventDefault();
      show(moved(view, event.deltaX * unit, event.deltaY * unit, size));
    }
  }, {passive: false});
}

function colourBy(measure) {
  const looks = ["l0", "l1", "l2", "l3", "l4", "l5", "integer", "hybrid", "float", "conversion", "other"];
  all(".box[data-op]").forEach((box) => {
    const op = opsById.get(box.dataset.op);
    box.classList.remove(...looks);
    if (measure === "execution") box.classList.add(op.execution);
    else if (measure in op.levels) box.classList.add(`l${op.levels[measure]}`);
  });
  all(".legend").forEach((legend) => legend.toggleAttribute("hidden", legend.dataset.measure !== measure));
}

// The table.

function filterRows() {
  const query = one("#search").value, execution = one("#execution").value;
  let shown = 0;
  const rows = all("#ops tbody tr");
  for (const row of rows) {
    const op = opsById.get(row.dataset.op);
    const fits = (!execution || op.execution === execution) && matches(`${op.kind} ${op.name}`, query);
    row.toggleAttribute("hidden", !fits);
    shown += fits;
  }
  one("#count").textContent = `${shown} of ${rows.length} ops`;
}

function sortBy(head) {
  const heads = all("#ops thead th"), column = heads.indexOf(head);
  const descending = head.getAttribute("aria-sort") === "ascending";
  heads.forEach((other) => other.setAttribute("aria-sort", "none"));
  head.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const body = one("#ops tbody"), rows = [...body.rows], isNumber = head.classList.contains("number");
  const cells = rows.map((row) => {
    const cell = row.cells[column];
    if (!isNumber) return cell.textContent;
    return "value" in cell.dataset ? Number(cell.dataset.value) : null;
  });
  body.append(...ordered(cells, descending).map((k) => rows[k]));
}

// Wiring.

function startPicture() {
  openPicture(0);
  pictureMoves(one(".stage"));
  one("#picture")?.addEventListener("change", (event) => openPicture(Number(event.target.value)));
  one("#measure").addEventListener("change", (event) => colourBy(event.target.value));
  const middle = () => [view.x + view.width / 2, view.y + view.height / 2];
  one("#closer").addEventListener("click", () => show(zoomed(view, 0.75, ...middle(), size)));
  one("#further").addEventListener("click", () => show(zoomed(view, 1 / 0.75, ...middle(), size)));
  one("#fit").addEventListener("click", () => show(wholeView(size, room())));
  new ResizeObserver(() => {
    const now = room();
    if (now.width > 1) show({...view, height: view.width * now.height / now.width});
  }).observe(one(".stage"));
}

function start() {
  one(".stage").classList.add("live");
  if (one(".picture")) startPicture();
  all(".show").forEach((button) => button.addEventListener("click", () => choose(button.dataset.op, {reveal: true})));
  all("#ops thead th").forEach((head) => head.querySelector("button").addEventListener("click", () => sortBy(head)));
  one("#search").addEventListener("input", filterRows);
  one("#execution").addEventListener("change", filterRows);
  filterRows();
  one("#theme").addEventListener("click", () => {
    const root = document.documentElement, system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    root.dataset.theme = (root.dataset.theme || system) === "dark" ? "light" : "dark";
    redraws.forEach((draw) => draw());
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraws.forEach((draw) => draw()));
  let theme = "";
  window.addEventListener("beforeprint", () => {
    theme = document.documentElement.dataset.theme;
    document.documentElement.dataset.theme = "light";
    printing = true;
    redraws.forEach((draw) => draw());
  });
  window.addEventListener("afterprint", () => {
    printing = false;
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    redraws.forEach((draw) => draw());
  });
  const course = one("#course-chart"), latency = one("#latency-chart");
  // After the first picture is on the screen.
  setTimeout(() => {
    if (course) {
      drawChart(course, (colours) => courseFigure(page.ops, page.measures, colours))
        .then(() => course.on?.("plotly_click", (event) => choose(event.points[0].customdata, {reveal: true})));
    }
    if (latency) drawChart(latency, (colours) => latencyFigure(page.bars, colours));
  }, 50);
}

start();
