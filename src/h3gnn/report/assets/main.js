// The page: state in one place, drawn once per frame at most.

const KEPT_FRAMES = 500;

class Report {
  constructor(data) {
    this.data = data;
    this.order = shuffled(data.nodes);
    this.properties = [...data.categories, ...data.measures];
    this.state = {
      property: null, shown: new Set(), filter: noFilter(null), selected: new Set(), chosen: -1, hovered: -1, lines: [], near: [],
      look: { ink: new Uint32Array(data.nodes), order: this.order.slice(), dimmed: 0 },
    };
    this.frames = [];
    this.waiting = false;
    this.allowed = (node) => passes(this.state, node) && passes(this.state.filter, node);
    this.bright = (node) => this.allowed(node) && (!this.state.selected.size || this.state.selected.has(node));
    this.swatch = (node) => (this.state.property ? hexOf(this.state.look.ink[node]) : cssColour("--unknown"));
    this.goTo = (node) => this.bringIntoSight(node);
    const listeners = {
      tool: () => document.querySelector("input[name=tool]:checked").value,
      onHover: (map, event) => this.hover(map, event),
      onChoose: (map, event) => this.chooseAt(map, event),
      onLasso: (map, polygon, more) => this.lasso(map, polygon, more),
      onMove: (map, change) => this.move(map, change),
      onLetGo: () => this.choose(-1),
    };
    this.maps = data.maps.map((one) => new MapView(one, byId("maps"), listeners));
  }

  /** Where a node is in the window, on the given map. */
  position(map, node) { return this.maps[map].position(node); }

  redraw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.drawNow(); });
  }

  drawNow() {
    const began = performance.now(), paper = pixel(cssColour("--paper"));
    const over = { ...this.state, ink: cssColour("--ink"), paper: cssColour("--paper"), wash: cssColour("--wash") };
    for (const map of this.maps) { map.draw(this.state.look, paper); map.drawOverlay(over); }
    this.frames.push(performance.now() - began);
    if (this.frames.length > KEPT_FRAMES) this.frames.shift();
  }

  /** Works out anew which nodes are faint; they are drawn first. */
  relook() {
    const faint = [], clear = [], { look } = this.state;
    for (const node of this.order) (this.bright(node) ? clear : faint).push(node);
    look.order.set(faint);
    look.order.set(clear, faint.length);
    look.dimmed = faint.length;
    this.redraw();
  }

  colourBy(key) {
    const { state } = this;
    state.property = this.properties.find((one) => one.key === key) ?? null;
    state.shown.clear();
    state.look.ink = state.property ? inkOf(state.property) : new Uint32Array(this.data.nodes).fill(pixel(categoryColour(0)));
    showLegend(byId("legend"), state.property, state.shown, () => this.relook());
    showNode(byId("node"), this.data, state.chosen, this.goTo, this.swatch);
    this.relook();
  }

  filterBy(key) {
    const { state } = this;
    state.filter = noFilter(this.properties.find((one) => one.key === key) ?? null);
    const changed = () => {
      this.relook();
      if (state.filter.property) byId("passing").textContent = `${count(this.order.filter((node) => passes(state.filter, node)).length)} of ${count(this.data.nodes)} nodes`;
    };
    showFilter(byId("filter-values"), state.filter, changed);
    changed();
  }

  choose(node) {
    const { state, data } = this, [up, down] = [categoryColour(0), categoryColour(4)];
    state.chosen = node;
    state.lines = node < 0 ? [] : neighborsOf(data, node).map((one) => ({
      to: one.node, colour: one.change < 0 ? down : up, dash: one.change < 0 ? [4, 3] : [], width: 1 + 2 * Math.sqrt(Math.abs(one.weight)),
    }));
    state.near = node < 0 ? [] : nearestTo(data, node).map((one) => one.node);
    showNode(byId("node"), data, node, this.goTo, this.swatch);
    this.redraw();
  }

  bringIntoSight(node) {
    for (const map of this.maps) if (!map.sees(node)) map.centreOn(node);
    this.choose(node);
  }

  move(map, change) {
    for (const one of byId("linked").checked ? this.maps : [map]) change(one);
    this.hideTip();
    this.redraw();
  }

  hover(map, event) {
    const node = event === -1 ? -1 : map.nodeAt(event.offsetX, event.offsetY, this.bright);
    if (node !== this.state.hovered) { this.state.hovered = node; this.redraw(); }
    if (node < 0) this.hideTip();
    else this.showTip(node, event.clientX, event.clientY);
  }

  /** Chooses the node under the pointer, or without one the node nearest to the centre. */
  chooseAt(map, event) {
    const { clientWidth, clientHeight } = map.overlay;
    this.choose(event ? map.nodeAt(event.offsetX, event.offsetY, this.bright) : map.nodeAt(clientWidth / 2, clientHeight / 2, this.bright, Infinity));
  }

  lasso(map, polygon, more) {
    const found = map.inside(polygon, this.allowed);
    this.select(more ? [...this.state.selected, ...found] : found);
  }

  select(nodes) {
    this.state.selected = new Set(nodes);
    const number = this.state.selected.size, groups = this.data.categories.find((one) => one.key === "class") ?? this.data.categories[0];
    byId("clear").disabled = byId("download").disabled = number === 0;
    const made = groups && number ? `: ${composition(groups, this.state.selected)}` : "";
    byId("selected").textContent = number ? `${count(number)} ${number === 1 ? "node" : "nodes"} selected${made}.` : "No nodes selected.";
    this.relook();
  }

  download() {
    const chosen = [...this.state.selected].sort((a, b) => a - b);
    saveText("selected-nodes.txt", chosen.map((node) => this.data.ids[node]));
  }

  showTip(node, x, y) {
    const tip = byId("tip"), facts = make("dl", { class: "facts" });
    for (const [name, value] of attributesOf(this.data, node)) facts.append(make("dt", { text: name }), make("dd", { text: value }));
    tip.replaceChildren(make("strong", { text: labelOf(this.data, node) }), facts);
    tip.hidden = false;
    const box = tip.getBoundingClientRect(), room = document.documentElement;
    tip.style.left = `${Math.max(4, Math.min(x + 16, room.clientWidth - box.width - 8))}px`;
    tip.style.top = `${Math.max(4, y + 16 + box.height > room.clientHeight ? y - box.height - 12 : y + 16)}px`;
  }

  hideTip() { byId("tip").hidden = true; this.state.hovered = -1; }

  /** Draws all that does not move: again when the theme changes. */
  showSections() {
    showModel(byId("model"), this.data);
    showTables(byId("tables"), this.data);
    showScores(byId("scores"), this.data);
    showRun(byId("history"), byId("facts"), this.data);
  }

  listen() {
    const on = (id, kind, action) => byId(id).addEventListener(kind, action);
    on("colour", "change", (event) => this.colourBy(event.target.value));
    on("filter", "change", (event) => this.filterBy(event.target.value));
    on("zoom-in", "click", () => this.move(this.maps[0], (map) => map.zoomBy(1.5)));
    on("zoom-out", "click", () => this.move(this.maps[0], (map) => map.zoomBy(1 / 1.5)));
    on("reset", "click", () => { for (const map of this.maps) map.reset(); this.redraw(); });
    on("clear", "click", () => this.select([]));
    on("download", "click", () => this.download());
    on("select-view", "click", () => this.select([...this.order].filter((node) => this.allowed(node) && this.maps[0].sees(node))));
    for (const tool of document.querySelectorAll("input[name=tool]")) {
      tool.addEventListener("change", () => byId("maps").classList.toggle("lasso", tool.value === "lasso"));
    }
    listenToSearch(byId("search"), byId("matches"), this.data, this.goTo);
    new ResizeObserver(() => { for (const map of this.maps) map.resize(); this.redraw(); }).observe(byId("maps"));
    darkScheme.addEventListener("change", () => {
      this.colourBy(byId("colour").value);
      this.choose(this.state.chosen);
      this.showSections();
    });
  }
}

async function start() {
  const report = new Report(await readData());
  window.report = report;
  showHead(report.data);
  fillProperties(byId("colour"), report.data);
  fillProperties(byId("filter"), report.data, "everything");
  byId("linked").parentElement.hidden = report.maps.length < 2;
  report.listen();
  for (const map of report.maps) map.resize();
  report.colourBy(byId("colour").value);
  report.drawNow();
  performance.mark("map-drawn");
  document.documentElement.dataset.ready = "true";
  report.showSections();
}

/** The properties as options in groups; `none` is the option that stands for no property. */
function fillProperties(select, data, none = "") {
  const group = (label, properties) => {
    if (properties.length) select.append(make("optgroup", { label }, ...properties.map((one) => make("option", { value: one.key, text: one.title }))));
  };
  const own = (one) => one.key.startsWith("own_"), attention = (one) => one.key.startsWith("attention");
  if (none) select.append(make("option", { value: "", text: none }));
  group("Groups", data.categories.filter((one) => !own(one)));
  group("Your columns", [...data.categories, ...data.measures].filter(own));
  group("Graph and training", data.measures.filter((one) => !own(one) && !attention(one)));
  group("What the node lives by", data.measures.filter(attention));
  if (!select.children.length) select.append(make("option", { value: "", text: "nothing" }));
}

/** The three largest groups among some nodes, with their shares. */
function composition(category, nodes) {
  const counts = new Map();
  for (const node of nodes) counts.set(category.values[node], (counts.get(category.values[node]) ?? 0) + 1);
  const largest = [...counts].sort((a, b) => b[1] - a[1]);
  const listed = largest.slice(0, 3).map(([value, number]) => `${value ? category.names[value - 1] : "unknown"} ${percent(number / nodes.size, 0)}`);
  return listed.join(", ") + (largest.length > 3 ? " and others" : "");
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
