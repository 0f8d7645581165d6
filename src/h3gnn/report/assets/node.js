// One node: what is known about it, its nearest nodes, and its neighbours in the graph.

const MOST_LISTED = 24;

/** The name of a node's value of a category, or null. */
const nameOf = (category, node) => (category.values[node] ? category.names[category.values[node] - 1] : null);

/** The name of a node before its id. */
const labelOf = (data, node) => (data.names[node] ? `${data.names[node]} · ${data.ids[node]}` : data.ids[node]);

/** What a person reads about a node: pairs of name and value. */
function attributesOf(data, node) {
  const own = (one) => one.key.startsWith("own_"), sorted = (all) => [...all.filter(own), ...all.filter((one) => !own(one))];
  const pairs = data.texts.filter(({ words }) => words[node]).map(({ title, words }) => [title, words[node]]);
  const known = new Set(data.texts.map((one) => one.title)); // in full
  pairs.push(...sorted(data.categories).filter((one) => !known.has(one.title)).map((one) => [one.title, nameOf(one, node) ?? "unknown"]));
  for (const one of sorted(data.measures)) {
    if (!one.key.startsWith("attention")) pairs.push([one.title, short(one.values[node])]);
    else if (one.key === "attention") pairs.push([one.title, percent(one.values[node])]);
  }
  return pairs;
}

/** Neighbours of a node: learned weight and its change from the start, the weakest change last. */
function neighborsOf(data, node) {
  if (!data.neighbors) return [];
  const found = [];
  for (let e = data.neighbors.crow[node]; e < data.neighbors.crow[node + 1]; e++) {
    found.push({ node: data.neighbors.sources[e], weight: data.neighbors.weight[e], change: data.neighbors.change[e] });
  }
  return found.sort((a, b) => b.change - a.change);
}

/** The nearest nodes in the embedding. */
function nearestTo(data, node) {
  if (!data.nearest) return [];
  const { count: each, nodes, similarity } = data.nearest;
  return Array.from({ length: each }, (_, k) => ({ node: nodes[node * each + k], similarity: similarity[node * each + k] }));
}

/** Fills the panel. `go` chooses another node, `swatch` gives a node's colour. */
function showNode(panel, data, node, go, swatch) {
  panel.replaceChildren();
  if (node < 0) { panel.append(...hints(data)); return; }
  const head = make("div", { class: "node-head" }, make("span", { class: "dot" }), make("h3", { text: labelOf(data, node) }));
  head.firstChild.style.background = swatch(node);
  const facts = make("dl", { class: "facts" });
  for (const [name, value] of attributesOf(data, node)) {
    facts.append(make("dt", { text: name }), make("dd", { text: value }));
  }
  panel.append(head, facts);
  if (data.attention) panel.append(attentionOf(data, node));
  const neighbors = neighborsOf(data, node);
  if (data.neighbors) panel.append(neighborList(data, node, neighbors, go, swatch));
  const near = nearestTo(data, node);
  if (near.length) {
    panel.append(make("h4", { text: "Nearest in the embedding" }),
      listOf(near, ({ node: other, similarity }) => [nodeButton(data, other, go, swatch), make("span", { class: "value", text: similarity.toFixed(2) })], "cosine similarity"));
  }
}

function hints(data) {
  const ways = [
    "Click a node, or find it by id, to see its neighbours and the nodes most similar to it.",
    "Drag to move, scroll or pinch to zoom. With the lasso, drag around nodes to select them.",
    "With the keyboard: Tab to a map, arrows to move, + and − to zoom, Enter for the node at the centre.",
    "Click a name in the legend to see its nodes alone.",
  ];
  if (data.attention) ways.push(`Colour by attention to see which nodes depend on their own features and which on ${othersOf(data)}.`);
  return [make("h3", { text: "No node chosen" }), make("ul", { class: "hints" }, ...ways.map((text) => make("li", { text })))];
}

function attentionOf(data, node) {
  const tokens = data.tokens.length;
  const shares = data.tokens.map((_, t) => data.attention[node * tokens + t]);
  const bar = make("div", { class: "stack", role: "img", "aria-label": data.tokens.map((name, t) => `${name} ${percent(shares[t])}`).join(", ") });
  const key = make("ul", { class: "key" });
  const order = [...shares.keys()];
  if (data.ends) order.sort((a, b) => shares[b] - shares[a]);
  order.forEach((t, rank) => {
    const name = data.tokens[t], part = make("span", { title: `${name}: ${percent(shares[t])}` });
    part.style.flexGrow = shares[t];
    part.style.background = tokenColour(data, t);
    bar.append(part);
    if (rank >= MOST_TOKENS) return;
    const mark = make("span", { class: "dot" });
    mark.style.background = part.style.background;
    key.append(make("li", {}, mark, make("span", { text: name }), make("span", { class: "value", text: percent(shares[t]) })));
  });
  if (tokens > MOST_TOKENS) key.append(make("li", { class: "quiet", text: `and ${tokens - MOST_TOKENS} others` }));
  return make("div", {}, make("h4", { text: "Attention" }), bar, key);
}

const TOKEN_COLOURS = [0, 5, 1, 4, 3, 2, 6, 7], MOST_TOKENS = 10;

/** The colour of a token; of paths to several types that of the type at the end. */
const tokenColour = ({ ends }, t) => categoryColour(ends ? ends.of[t] : TOKEN_COLOURS[t % TOKEN_COLOURS.length]);

function neighborList(data, node, neighbors, go, swatch) {
  const total = data.neighbors.total[node], learned = data.edgeChanges.length, down = neighbors.filter((one) => one.change < 0).length;
  const box = make("div", {}, make("h4", { text: "Neighbours in the graph" }));
  if (!neighbors.length) { box.append(make("p", { class: "quiet", text: total ? "None of its neighbours is on this page." : "It has no neighbours." })); return box; }
  const counted = total > neighbors.length ? `${count(neighbors.length)} of ${count(total)} neighbours are on this page; ` : `${count(total)} ${total === 1 ? "neighbour" : "neighbours"}; `;
  box.append(make("p", { class: "quiet", text: `${counted}${learned ? `${count(down)} decreased in training. On the map: solid lines increased, dashed lines decreased` : "their weights are fixed"}; rings mark the nearest in the embedding.` }));
  const shown = neighbors.length > MOST_LISTED ? [...neighbors.slice(0, MOST_LISTED / 2), ...neighbors.slice(-MOST_LISTED / 2)] : neighbors;
  box.append(listOf(shown, (one) => [
    nodeButton(data, one.node, go, swatch),
    learned ? make("span", { class: `change ${one.change < 0 ? "down" : "up"}`, text: `${one.change < 0 ? "▼" : "▲"} ${signedPercent(one.change)}` }) : "",
    make("span", { class: "value", text: one.weight.toFixed(2) }),
  ], learned ? "change in training, learned weight" : "weight"));
  if (shown.length < neighbors.length) box.append(make("p", { class: "quiet", text: `${learned ? `The ${MOST_LISTED} most changed` : MOST_LISTED} of ${count(neighbors.length)} are listed.` }));
  return box;
}

function listOf(items, cells, columns) {
  return make("div", {}, make("p", { class: "columns", text: columns }), make("ul", { class: "nodes" }, ...items.map((item) => make("li", {}, ...cells(item)))));
}

function nodeButton(data, node, go, swatch) {
  const mark = make("span", { class: "dot" });
  mark.style.background = swatch(node);
  const button = make("button", { type: "button", class: "link", title: labelOf(data, node) }, mark, make("span", { text: labelOf(data, node) }));
  button.addEventListener("click", () => go(node));
  return button;
}
