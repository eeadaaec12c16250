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

// Charts.

let printing = false;

function ink() {
  const probe = document.body.appendChild(element("i", {hidden: false}));
  const colour = (name) => { probe.style.color = `var(--${name})`; return getComputedStyle(probe).color; };
  const found = {text: colour("text"), line: colour("line"), accent: colour("accent"), range: colour("mark"), third: colour("quiet")};
  probe.remove();
  return found;
}

function drawChart(where, figure) {
  const draw = () => {
    const box = where.getBoundingClientRect(), width = printing ? 640 : Math.max(box.width, 240), height = Math.max(box.height, 150);
    const chart = svgElement("svg", {width, height, viewBox: `0 0 ${width} ${height}`, role: "img", class: "drawn"});
    for (const part of chartParts(figure(ink()), {width, height})) {
      const made = svgElement(part.tag, part.set);
      if (part.text !== undefined) made.textContent = part.text;
      if (part.hint) made.append(Object.assign(svgElement("title", {}), {textContent: part.hint}));
      if (part.op) made.addEventListener("click", () => choose(part.op, {reveal: true}));
      chart.append(made);
    }
    where.replaceChildren(chart);
  };
  redraws.set(where, draw);
  requestAnimationFrame(draw); // its room is known then
}

function svgElement(tag, attributes) {
  const made = document.createElementNS(one("#map").namespaceURI, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, typeof value === "number" ? Math.round(10 * value) / 10 : value);
  return made;
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
  if (!title.startsWith("Output 0")) part.append(element("p", {}, tensorLink(name))); // the op goes by that name already
  part.append(element("p", {className: "quiet", textContent: [tensor.type, tensor.formula].filter(Boolean).join("  ·  ")}));
  if (tensor.limits) part.append(element("p", {className: "quiet", textContent: `integers cover ${tensor.limits.map(shortNumber).join(" to ")}`}));
  if (tensor.given) part.append(element("p", {className: "quiet", textContent: `given: ${tensor.given}`}));
  if (tensor.seen) part.append(element("p", {className: "quiet", textContent: `calibration saw ${tensor.seen.map(shortNumber).join(" to ")}`}));
  if (tensor.bins) {
    const where = part.appendChild(element("div", {className: "chart histogram"}));
    drawChart(where, (colours) => histogramFigure(tensor, colours));
  }
  return part;
}

/** A tensor's name; a click shows the op that makes it. */
function tensorLink(name, text = name) {
  const maker = page.ops.find((op) => op.outputs.includes(name));
  if (!maker) return element("span", {textContent: text});
  const link = element("button", {type: "button", className: "link", textContent: text, title: `Made by ${maker.kind}`});
  link.addEventListener("click", () => choose(maker.id, {reveal: true}));
  return link;
}

/** How a number of the op's first output came about: one of those that the page knows, or the command for any other. */
function numberPart(op) {
  if (!op.numbers.length) return null;
  const list = element("select", {}, ...op.numbers.map((number, k) => element("option", {value: String(k), textContent: `[${number.index}] ${number.why}`})));
  const body = element("tbody", {});
  const explain = () => body.replaceChildren(...op.numbers[Number(list.value)].rows.map((row) => {
    const text = row.tensor ? tensorLink(row.tensor, row.text) : element("span", {textContent: row.text});
    return element("tr", {}, element("td", {textContent: row.label}), element("td", {}, text));
  }));
  list.addEventListener("change", explain);
  explain();
  const part = element("div", {id: "number"}, element("h3", {textContent: "How a number came about"}), element("label", {}, "Element ", list), element("table", {}, body));
  if (page.trace) {
    const index = element("input", {type: "text", value: op.numbers[0].index, size: 12});
    const command = element("code", {});
    const name = distinctPart(op.outputs[0], Object.keys(page.tensors));
    const write = () => { command.textContent = traceCommand(page.trace, name, index.value); };
    index.addEventListener("input", write);
    write();
    part.append(element("p", {}, element("label", {}, "Any other: index ", index)), element("p", {}, command));
  }
  return part;
}

function choose(id, {reveal}) {
  const op = opsById.get(id);
  all(".chosen").forEach((marked) => marked.classList.remove("chosen"));
  all(`[data-op="${id}"]`).forEach((marked) => { if (marked.matches(".box, tr")) marked.classList.add("chosen"); });
  if (reveal) {
    showBox(id);
    one(".stage").scrollIntoView({block: "nearest"});
  }
  all("#detail .chart").forEach((old) => { redraws.delete(old); });
  const detail = one("#detail");
  detail.replaceChildren(
    element("h2", {textContent: op.kind}),
    element("p", {textContent: op.short_name}),
    ...(op.name === op.short_name ? [] : [element("p", {className: "quiet", textContent: `in the file: ${op.name}`})]),
    element("p", {className: "quiet", textContent: [op.execution, op.macs ? `${op.macs.toLocaleString("en")} multiply-accumulates` : ""].filter(Boolean).join(", ")}),
  );
  op.notes.forEach((note) => detail.append(element("p", {textContent: note})));
  op.outputs.forEach((name, k) => detail.append(tensorPart(`Output ${k}`, name)));
  const errors = errorTable(op.errors);
  if (errors) detail.append(element("h3", {textContent: "Error"}), errors);
  const number = numberPart(op);
  if (number) detail.append(number);
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
const boxes = () => all(".box[tabindex]", svg);

function room() {
  const box = one(".stage").getBoundingClientRect();
  return {width: Math.max(box.width, 1), height: Math.max(box.height, 1)};
}

function show(next) {
  view = next;
  // A transform moves what is painted already; another viewBox would lay out every text anew.
  const scale = room().width / view.width;
  svg.style.transform = `matrix(${scale}, 0, 0, ${scale}, ${-view.x * scale}, ${-view.y * scale})`;
  for (const [name, value] of Object.entries(view)) one("#map rect").setAttribute(name, Math.round(value));
}

/** A small map of the whole picture, with a frame around what is seen. */
function drawMap() {
  const places = all(".box", svg).map((box) => box.transform.baseVal.getItem(0).matrix);
  const {width, height} = svg.querySelector(".box rect").getBBox();
  one("#map").setAttribute("viewBox", `0 0 ${size.width} ${size.height}`);
  one("#map path").setAttribute("d", places.map(({e, f}) => `M${e} ${f}h${width}v${height}h${-width}z`).join(""));
}

function openPicture(index) {
  const pictures = all(".picture");
  pictures.forEach((picture, k) => picture.toggleAttribute("hidden", k !== index));
  svg = pictures[index];
  size = {width: Number(svg.dataset.width), height: Number(svg.dataset.height)};
  const first = boxes()[0].transform.baseVal.getItem(0).matrix;
  drawMap();
  show(firstView(size, room(), first.e + svg.querySelector("rect").width.baseVal.value / 2));
  const list = one("#picture");
  if (list) list.value = String(index);
  one("#overview")?.toggleAttribute("hidden", !svg.dataset.parent);
}

/** An op, or a group of ops that opens a picture of its own. */
function enter(box) {
  if (box.dataset.opens) openPicture(Number(box.dataset.opens));
  else choose(box.dataset.op, {reveal: false});
}

/** One box of a picture is in the tab order; arrows go from there to all others, in the order of execution. */
function walk(event) {
  const known = boxes(), at = known.indexOf(event.target);
  if (at < 0) return;
  const steps = {ArrowDown: at + 1, ArrowRight: at + 1, ArrowUp: at - 1, ArrowLeft: at - 1, Home: 0, End: known.length - 1};
  if (event.key === "Enter" || event.key === " ") enter(known[at]);
  else if (event.key === "Escape" && svg.dataset.parent) openPicture(Number(svg.dataset.parent));
  else if (known[steps[event.key]]) {
    const next = known[steps[event.key]];
    known[at].setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    lookAt(next);
    next.focus({preventScroll: true});
  } else return;
  event.preventDefault();
}

/** In the middle, large enough to be read. */
function lookAt(box) {
  const place = box.transform.baseVal.getItem(0).matrix, {width, height} = box.querySelector("rect").getBBox();
  show(centred(readable(view, room()), place.e + width / 2, place.f + height / 2));
}

function showBox(id) {
  const box = one(`.box[data-op="${id}"]`), index = all(".picture").indexOf(box.closest(".picture"));
  if (all(".picture")[index] !== svg) openPicture(index);
  lookAt(box);
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
    const box = event.target.closest(".box[tabindex]");
    if (box && dragged < 5) enter(box);
  });
  stage.addEventListener("wheel", (event) => { // without Ctrl the page scrolls
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    show(zoomed(view, Math.exp(event.deltaY / 300), ...at(event), size));
  }, {passive: false});
}

function colourBy(measure) {
  const looks = ["l0", "l1", "l2", "l3", "l4", "l5", "integer", "hybrid", "float", "conversion", "other"];
  all(".box[tabindex]").forEach((box) => {
    box.classList.remove(...looks);
    const within = (box.dataset.ops ?? box.dataset.op).split(" ").map((id) => opsById.get(id));
    const levels = within.filter((op) => measure in op.levels).map((op) => op.levels[measure]);
    if (measure === "execution") box.classList.add(mostFrequent(within.map((op) => op.execution)));
    else if (levels.length) box.classList.add(`l${Math.max(...levels)}`); // of a group, the worst op counts
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
    const fits = (!execution || op.execution === execution) && matches(`${op.kind} ${op.short_name} ${op.name}`, query);
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
  one(".stage").addEventListener("keydown", walk);
  one("#map").addEventListener("click", (event) => {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(one("#map").getScreenCTM().inverse());
    show(centred(view, point.x, point.y));
  });
  one("#overview")?.addEventListener("click", () => openPicture(Number(svg.dataset.parent)));
  one("#picture")?.addEventListener("change", (event) => openPicture(Number(event.target.value)));
  one("#measure").addEventListener("change", (event) => colourBy(event.target.value));
  const middle = () => [view.x + view.width / 2, view.y + view.height / 2];
  one("#closer").addEventListener("click", () => show(zoomed(view, 0.75, ...middle(), size)));
  one("#further").addEventListener("click", () => show(zoomed(view, 1 / 0.75, ...middle(), size)));
  one("#fit").addEventListener("click", () => show(wholeView(size, room())));
  new ResizeObserver(() => {
    redraws.forEach((draw) => draw());
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
  if (course) drawChart(course, (colours) => courseFigure(page.ops, page.measures, colours));
  if (latency) drawChart(latency, (colours) => latencyFigure(page.bars, colours));
}

start();
