// The page: state in one place, drawn once per frame at most.

async function start() {
  const data = await readData();
  const order = shuffled(data.nodes);
  const state = {
    property: null, shown: new Set(), selected: new Set(), chosen: -1, hovered: -1, lines: [], near: [],
    look: { ink: new Uint32Array(data.nodes), order: order.slice(), dimmed: 0 },
  };
  const properties = [...data.categories, ...data.measures];
  const tip = byId("tip");
  let waiting = false;

  const allowed = (node) => !state.property?.names || !state.shown.size || state.shown.has(state.property.values[node]);
  const bright = (node) => allowed(node) && (!state.selected.size || state.selected.has(node));
  const swatch = (node) => (state.property ? `#${hex(state.look.ink[node])}` : cssColour("--unknown"));
  const hex = (value) => [value & 255, (value >> 8) & 255, (value >> 16) & 255].map((one) => one.toString(16).padStart(2, "0")).join("");
  const chosenMap = { tool: () => document.querySelector("input[name=tool]:checked").value };

  const maps = data.maps.map((told) => new MapView(told, byId("maps"), {
    ...chosenMap, onHover, onChoose, onLasso, onMove, onLetGo: () => choose(-1),
  }));

  function redraw() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; drawNow(); });
  }

  function drawNow() {
    const began = performance.now(), paper = pixel(cssColour("--paper"));
    const over = { ...state, ink: cssColour("--ink"), paper: cssColour("--paper"), wash: cssColour("--wash") };
    for (const map of maps) { map.draw(state.look, paper); map.drawOverlay(over); }
    report.frames.push(performance.now() - began);
    if (report.frames.length > 500) report.frames.shift();
  }

  /** Works out anew which nodes are faint; they are drawn first. */
  function relook() {
    const faint = [], clear = [];
    for (const node of order) (bright(node) ? clear : faint).push(node);
    state.look.order.set(faint);
    state.look.order.set(clear, faint.length);
    state.look.dimmed = faint.length;
    redraw();
  }

  function colourBy(key) {
    state.property = properties.find((one) => one.key === key) ?? null;
    state.shown.clear();
    state.look.ink = state.property ? inkOf(state.property) : new Uint32Array(data.nodes).fill(pixel(categoryColour(0)));
    showLegend(byId("legend"), state.property, state.shown, relook);
    showNode(byId("node"), data, state.chosen, goTo, swatch);
    relook();
  }

  function choose(node) {
    state.chosen = node;
    const [up, down] = [categoryColour(0), categoryColour(4)];
    state.lines = node < 0 ? [] : heardBy(data, node).map((one) => ({
      to: one.node, colour: one.change < 0 ? down : up, dash: one.change < 0 ? [4, 3] : [], width: 1 + 2 * Math.sqrt(one.weight),
    }));
    state.near = node < 0 ? [] : nearestTo(data, node).map((one) => one.node);
    showNode(byId("node"), data, node, goTo, swatch);
    redraw();
  }

  /** Chooses a node and brings it into sight. */
  function goTo(node) {
    for (const map of maps) if (!map.sees(node)) map.centreOn(node);
    choose(node);
  }

  function onMove(map, change) {
    for (const one of byId("linked").checked ? maps : [map]) change(one);
    hideTip();
    redraw();
  }

  function onHover(map, event) {
    const node = event === -1 ? -1 : map.nodeAt(event.offsetX, event.offsetY, bright);
    if (node !== state.hovered) { state.hovered = node; redraw(); }
    if (node < 0) hideTip();
    else showTip(node, event.clientX, event.clientY);
  }

  function onChoose(map, event) {
    const node = event ? map.nodeAt(event.offsetX, event.offsetY, bright)
      : map.nodeAt(map.overlay.clientWidth / 2, map.overlay.clientHeight / 2, bright, Infinity);
    choose(node);
  }

  function onLasso(map, polygon, more) {
    const found = map.inside(polygon, allowed);
    select(more ? [...state.selected, ...found] : found);
  }

  function select(nodes) {
    state.selected = new Set(nodes);
    const number = state.selected.size, class_ = data.categories.find((one) => one.key === "class") ?? data.categories[0];
    byId("clear").disabled = byId("download").disabled = number === 0;
    byId("selected").textContent = number ? `${count(number)} ${number === 1 ? "node" : "nodes"} selected${class_ ? `: ${composition(class_, state.selected)}` : ""}.` : "No nodes selected.";
    relook();
  }

  function showTip(node, x, y) {
    tip.replaceChildren(make("strong", { text: data.ids[node] }));
    const facts = make("dl", { class: "facts" });
    for (const [name, value] of attributesOf(data, node)) facts.append(make("dt", { text: name }), make("dd", { text: value }));
    tip.append(facts);
    tip.hidden = false;
    const box = tip.getBoundingClientRect(), room = document.documentElement;
    tip.style.left = `${Math.max(4, Math.min(x + 16, room.clientWidth - box.width - 8))}px`;
    tip.style.top = `${Math.max(4, y + 16 + box.height > room.clientHeight ? y - box.height - 12 : y + 16)}px`;
  }

  function hideTip() { tip.hidden = true; state.hovered = -1; }

  fillColours(byId("colour"), data);
  byId("colour").addEventListener("change", (event) => colourBy(event.target.value));
  for (const tool of document.querySelectorAll("input[name=tool]")) {
    tool.addEventListener("change", () => byId("maps").classList.toggle("lasso", chosenMap.tool() === "lasso"));
  }
  byId("zoom-in").addEventListener("click", () => onMove(maps[0], (map) => map.zoomBy(1.5)));
  byId("zoom-out").addEventListener("click", () => onMove(maps[0], (map) => map.zoomBy(1 / 1.5)));
  byId("reset").addEventListener("click", () => { for (const map of maps) map.reset(); redraw(); });
  byId("clear").addEventListener("click", () => select([]));
  byId("download").addEventListener("click", () => saveText("selected-nodes.txt", [...state.selected].sort((a, b) => a - b).map((node) => data.ids[node])));
  byId("select-view").addEventListener("click", () => select([...order].filter((node) => allowed(node) && maps[0].sees(node))));
  listenToSearch(byId("search"), byId("matches"), data, goTo);
  const fit = () => { for (const map of maps) map.resize(); redraw(); };
  new ResizeObserver(fit).observe(byId("maps"));
  const paintAll = () => {
    colourBy(byId("colour").value);
    choose(state.chosen);
    showModel(byId("model"), data);
    showScores(byId("scores"), data);
    showRun(byId("history"), byId("facts"), data);
  };
  darkScheme.addEventListener("change", paintAll);

  const report = { data, maps, state, frames: [], position: (map, node) => maps[map].position(node), redraw };
  window.report = report;
  showHead(data);
  if (maps.length < 2) byId("linked").parentElement.hidden = true;
  for (const map of maps) map.resize();
  colourBy(byId("colour").value);
  choose(-1);
  drawNow();
  performance.mark("map-drawn");
  document.documentElement.dataset.ready = "true";
  showModel(byId("model"), data);
  showScores(byId("scores"), data);
  showRun(byId("history"), byId("facts"), data);
}

function fillColours(select, data) {
  const group = (label, properties) => {
    if (properties.length) select.append(make("optgroup", { label }, ...properties.map((one) => make("option", { value: one.key, text: one.title }))));
  };
  group("Groups", data.categories);
  group("Graph and training", data.measures.filter((one) => !one.key.startsWith("attention")));
  group("What the node lives by", data.measures.filter((one) => one.key.startsWith("attention")));
  if (!select.children.length) select.append(make("option", { value: "", text: "nothing" }));
}

/** The three largest groups among some nodes, with their shares. */
function composition(category, nodes) {
  const counts = new Map();
  for (const node of nodes) counts.set(category.values[node], (counts.get(category.values[node]) ?? 0) + 1);
  const largest = [...counts].sort((a, b) => b[1] - a[1]);
  const told = largest.slice(0, 3).map(([value, number]) => `${value ? category.names[value - 1] : "unknown"} ${percent(number / nodes.size, 0)}`);
  return told.join(", ") + (largest.length > 3 ? ", …" : "");
}

/** A button for each group that shows it alone, or the scale of a measure over its histogram. */
function showLegend(host, property, shown, changed) {
  host.replaceChildren();
  if (!property) return;
  if (!property.names) { host.append(scaleLegend(property)); return; }
  const counts = new Array(property.names.length + 1).fill(0), colours = coloursOf(property);
  for (const value of property.values) counts[value]++;
  property.names.forEach((name, i) => {
    if (!counts[i + 1]) return;
    const mark = make("span", { class: "dot" });
    mark.style.background = colours[i];
    const button = make("button", { type: "button", class: "chip", "aria-pressed": "false", title: "Show these alone" },
      mark, make("span", { text: name }), make("span", { class: "value", text: count(counts[i + 1]) }));
    button.addEventListener("click", () => {
      if (shown.has(i + 1)) shown.delete(i + 1); else shown.add(i + 1);
      button.setAttribute("aria-pressed", String(shown.has(i + 1)));
      changed();
    });
    host.append(button);
  });
  if (counts[0]) host.append(make("span", { class: "chip plain" }, make("span", { class: "dot unknown" }), make("span", { text: `unknown ${count(counts[0])}` })));
}

function scaleLegend(property) {
  const { scale } = property, bins = 40, counts = new Array(bins).fill(0);
  let unknown = 0;
  for (const value of property.values) {
    if (Number.isNaN(value)) unknown++;
    else counts[Math.min(bins - 1, Math.floor(scale.share(value) * bins))]++;
  }
  const most = Math.max(...counts, 1);
  const bars = make("div", { class: "histogram", role: "img", "aria-label": `${property.title}, from ${short(scale.low)} to ${short(scale.high)}` });
  counts.forEach((number, i) => {
    const bar = make("span", { title: `about ${short(scale.value((i + 0.5) / bins))}: ${count(number)} nodes` });
    bar.style.height = `${6 + 30 * Math.sqrt(number / most)}px`;
    bar.style.background = scaleColour((i + 0.5) / bins);
    bars.append(bar);
  });
  const ends = make("div", { class: "ends" }, ...[0, 0.5, 1].map((share) => make("span", { text: short(scale.value(share)) })));
  const notes = [scale.logarithmic ? "logarithmic" : "", unknown ? `${count(unknown)} unknown, grey` : ""].filter(Boolean).join(" · ");
  return make("div", { class: "scale" }, bars, ends, make("span", { class: "quiet", text: notes }));
}

function listenToSearch(input, list, data, go) {
  const folded = data.ids.map((id) => id.toLowerCase());
  let active = -1, found = [];
  const close = () => { list.hidden = true; active = -1; input.setAttribute("aria-expanded", "false"); input.removeAttribute("aria-activedescendant"); };
  const take = (node) => { input.value = data.ids[node]; close(); go(node); };
  const mark = () => [...list.children].forEach((item, i) => {
    item.setAttribute("aria-selected", String(i === active));
    if (i === active) { item.scrollIntoView({ block: "nearest" }); input.setAttribute("aria-activedescendant", item.id); }
  });
  input.addEventListener("input", () => {
    found = search(folded, input.value);
    list.replaceChildren(...found.map((node, i) => {
      const item = make("li", { role: "option", id: `match-${i}`, text: data.ids[node] });
      item.addEventListener("pointerdown", (event) => { event.preventDefault(); take(node); });
      return item;
    }));
    if (!found.length && input.value) list.append(make("li", { class: "quiet", text: "no node has this in its id" }));
    active = -1;
    list.hidden = !input.value;
    input.setAttribute("aria-expanded", String(!list.hidden));
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && found.length) { event.preventDefault(); take(found[Math.max(0, active)]); }
    if (event.key === "Escape") close();
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && found.length) { event.preventDefault(); active = (active + step + found.length) % found.length; mark(); }
  });
  input.addEventListener("blur", close);
}

/** Nodes whose id is the text, then those that begin with it, then those that contain it: twelve at most. */
function search(folded, text) {
  const sought = text.trim().toLowerCase(), ranked = [[], [], []];
  if (!sought) return [];
  for (let node = 0; node < folded.length; node++) {
    const at = folded[node].indexOf(sought);
    if (at < 0) continue;
    const rank = folded[node] === sought ? 0 : at === 0 ? 1 : 2;
    if (ranked[rank].length < 12) ranked[rank].push(node);
  }
  return ranked.flat().slice(0, 12);
}

function saveText(name, lines) {
  const address = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "text/plain" }));
  const link = make("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

start().catch((error) => {
  const banner = byId("banner");
  banner.hidden = false;
  banner.textContent = `This page could not be drawn: ${error.message}`;
  throw error;
});
