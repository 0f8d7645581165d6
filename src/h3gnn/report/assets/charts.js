// Small charts as SVG: lines over epochs, grouped and stacked bars.

const SVG = byId("drawing").namespaceURI;

function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") element.textContent = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function card(title, note, ...children) {
  const body = make("article", { class: "card" }, make("h3", { text: title }), ...children);
  if (note) body.append(make("p", { class: "quiet", text: note }));
  return body;
}

const WIDTH = 360, HEIGHT = 190, EDGES = { left: 46, right: 10, top: 12, bottom: 26 };

/** Round numbers from low to high, about so many. */
function ticks(low, high, about = 4) {
  const rough = (high - low) / about || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= rough * 0.999);
  const found = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-6; tick += step) found.push(Math.abs(tick) < step * 1e-6 ? 0 : tick);
  return found;
}

/** A frame with axes; returns the drawing and the two scales. */
function frame({ title, low, high, width = WIDTH, height = HEIGHT, tick = short }) {
  const drawing = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  const y = (value) => height - EDGES.bottom - ((value - low) / (high - low || 1)) * (height - EDGES.top - EDGES.bottom);
  for (const value of ticks(low, high)) {
    drawing.append(draw("line", { x1: EDGES.left, x2: width - EDGES.right, y1: y(value), y2: y(value), class: "grid" }),
      draw("text", { x: EDGES.left - 6, y: y(value) + 3.5, "text-anchor": "end", text: tick(value) }));
  }
  return { drawing, y };
}

/**
 * Lines over epochs, or along something else in even steps. series: [{name, values, colour, faint}], null where nothing was measured;
 * band: [lower, upper] is filled.
 */
function lineChart(title, series, { band = null, note = "", zero = false, along = "epoch", step = 1 } = {}) {
  const all = [...series, ...(band ?? []).map((values) => ({ values }))].flatMap((one) => one.values).filter((value) => value !== null);
  const low = zero ? Math.min(0, ...all) : Math.min(...all), high = Math.max(...all);
  const margin = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
  const { drawing, y } = frame({ title, low: zero && low === 0 ? 0 : low - margin, high: high + margin });
  const epochs = series[0].values.length;
  const x = (epoch) => EDGES.left + (epoch / Math.max(1, epochs - 1)) * (WIDTH - EDGES.left - EDGES.right);
  for (const epoch of ticks(0, Math.max(1, epochs - 1), step === 1 ? 4 : 5).filter(Number.isInteger)) {
    drawing.append(draw("text", { x: x(epoch), y: HEIGHT - 8, "text-anchor": "middle", text: short(epoch * step) }));
  }
  const path = (values) => values.map((value, epoch) => (value === null ? null : [x(epoch), y(value)])).filter(Boolean);
  if (band) {
    const outline = [...path(band[0]), ...path(band[1]).reverse()];
    drawing.append(draw("polygon", { points: outline.map((p) => p.join()).join(" "), class: "band" }));
  }
  for (const one of series) {
    drawing.append(draw("polyline", { points: path(one.values).map((p) => p.join()).join(" "), class: one.faint ? "line faint" : "line", stroke: one.colour }));
  }
  const readout = make("p", { class: "readout" });
  const tell = (epoch) => {
    const parts = series.filter((one) => !one.faint).map((one) => {
      let at = epoch;
      while (at > 0 && one.values[at] === null) at--;
      return `${series.length > 1 ? `${one.name} ` : ""}${short(one.values[at])}`;
    });
    readout.textContent = `${along} ${short(epoch * step)}: ${parts.join(" · ")}`;
  };
  tell(epochs - 1);
  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect();
    const share = ((event.clientX - box.left) / box.width * WIDTH - EDGES.left) / (WIDTH - EDGES.left - EDGES.right);
    tell(Math.round(Math.min(1, Math.max(0, share)) * (epochs - 1)));
  });
  drawing.addEventListener("pointerleave", () => tell(epochs - 1));
  const named = series.filter((one) => !one.faint);
  return card(title, note, readout, named.length > 1 ? keyOf(named) : "", drawing);
}

/** Makes a card take the room of two. */
function wide(element) { element.classList.add("wide"); return element; }

/** A median and its middle half for each group, with a dashed line at `even`. */
function spreadChart(title, groups, spreads, { colour, even, note }) {
  const known = [...spreads.flat(), even], low = Math.min(...known), high = Math.max(...known), margin = 0.08 * (high - low) || 0.01;
  const height = 220, { drawing, y } = frame({ title, low: low - margin, high: high + margin, height, tick: (value) => percent(value, Number.isInteger(Math.round(value * 1000) / 10) ? 0 : 1) });
  const room = (WIDTH - EDGES.left - EDGES.right) / groups.length;
  drawing.append(draw("line", { x1: EDGES.left, x2: WIDTH - EDGES.right, y1: y(even), y2: y(even), class: "even" }));
  groups.forEach((group, g) => {
    const x = EDGES.left + room * (g + 0.5), [lower, middle, upper] = spreads[g];
    const spot = draw("circle", { cx: x, cy: y(middle), r: 6, fill: colour, class: "spot" }, draw("title", { text: `${group.name}: median ${percent(middle)}, middle half ${percent(lower)} to ${percent(upper)}` }));
    drawing.append(draw("line", { x1: x, x2: x, y1: y(lower), y2: y(upper), stroke: colour, class: "span" }), spot,
      draw("text", { x, y: height - 12, "text-anchor": "middle", text: group.name }), draw("text", { x, y: height - 1, "text-anchor": "middle", class: "sub", text: group.sub }));
  });
  return card(title, note, drawing);
}

/** Bars in groups. groups: [{name, sub}]; series: [{name, colour, values}] with null where nothing is known. */
function barChart(title, groups, series, note) {
  const width = Math.max(WIDTH, 70 + groups.length * Math.max(46, series.length * 16 + 14));
  const { drawing, y } = frame({ title, low: 0, high: 1, width, height: 220, tick: (value) => percent(value, 0) });
  const room = (width - EDGES.left - EDGES.right) / groups.length, each = Math.min(26, (room - 10) / series.length);
  groups.forEach((group, g) => {
    const middle = EDGES.left + room * (g + 0.5);
    series.forEach((one, s) => {
      const value = one.values[g];
      if (value === null) return;
      const left = middle + (s - series.length / 2) * each;
      const bar = draw("rect", { x: left + 1, y: y(value), width: Math.max(2, each - 2), height: Math.max(0.5, y(0) - y(value)), rx: 2, fill: one.colour });
      bar.append(draw("title", { text: `${group.name}, ${one.name}: ${percent(value)}` }));
      drawing.append(bar);
    });
    drawing.append(draw("text", { x: middle, y: 220 - 12, "text-anchor": "middle", text: shorten(group.name, Math.max(6, Math.floor(room / 6.5))) }, draw("title", { text: group.name })));
    if (group.sub) drawing.append(draw("text", { x: middle, y: 220 - 1, "text-anchor": "middle", class: "sub", text: group.sub }));
  });
  return card(title, note, keyOf(series), make("div", { class: "scroll", tabIndex: 0, role: "group", "aria-label": title }, drawing));
}

/** One horizontal bar per group, its parts side by side; parts of each row sum to 1. */
function stackChart(title, groups, series, note) {
  const rows = make("div", { class: "stacks" });
  groups.forEach((group, g) => {
    const bar = make("div", { class: "stack", role: "img", "aria-label": `${group.name}: ${series.map((one) => `${one.name} ${percent(one.values[g])}`).join(", ")}` });
    for (const one of series) {
      const part = make("span", { title: `${one.name}: ${percent(one.values[g])}`, text: one.values[g] > 0.09 ? percent(one.values[g], 0) : "" });
      part.style.flexGrow = one.values[g];
      part.style.background = one.colour;
      part.style.color = readableOn(one.colour);
      bar.append(part);
    }
    rows.append(make("span", { class: "stack-name", text: group.name, title: group.name }), bar);
  });
  return card(title, note, keyOf(series), rows);
}

function keyOf(series) {
  const key = make("ul", { class: "key inline" });
  for (const one of series) {
    const mark = make("span", { class: "dot" });
    mark.style.background = one.colour;
    key.append(make("li", {}, mark, make("span", { text: one.name })));
  }
  return key;
}

const shorten = (text, most) => (text.length <= most ? text : `${text.slice(0, most - 1)}…`);

function tableOf(head, rows, caption) {
  const table = make("table", {}, make("caption", { class: "unseen", text: caption }));
  table.append(make("thead", {}, make("tr", {}, ...head.map((text, i) => make("th", { scope: "col", class: i ? "number" : "", text })))));
  const body = make("tbody");
  for (const row of rows) {
    body.append(make("tr", { class: row.strong ? "strong" : "" },
      ...row.cells.map((text, i) => (i ? make("td", { class: "number", text }) : make("th", { scope: "row", text })))));
  }
  table.append(body);
  return make("div", { class: "scroll", tabIndex: 0, role: "group", "aria-label": caption }, table);
}
