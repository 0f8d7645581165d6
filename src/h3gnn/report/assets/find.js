// Finding nodes: the legend that shows groups alone, a filter beside it, and a search in ids and texts.

/** A filter that lets every node pass. */
const noFilter = (property) => ({ property, shown: new Set(), low: -Infinity, high: Infinity });

/** Whether a node is in one of the groups shown, or its number between the two. */
function passes({ property, shown, low = -Infinity, high = Infinity }, node) {
  if (!property) return true;
  const value = property.values[node];
  if (property.names) return !shown.size || shown.has(value);
  const near = (property.step ?? 0) / 2 + 1e-6 * Math.abs(value); // numbers are kept in steps
  return (low === -Infinity && high === Infinity) || (value + near >= low && value - near <= high);
}

function showFilter(host, filter, changed) {
  const { property } = filter;
  host.hidden = !property;
  host.replaceChildren();
  if (!property) return;
  host.append(make("span", { class: "quiet", text: property.names ? "Only" : "Only from" }));
  if (property.names) groupButtons(host, property, filter.shown, changed);
  else {
    const bound = (side, words) => {
      const input = make("input", { type: "number", step: "any", placeholder: words, "aria-label": `${property.title}, ${words}` });
      input.addEventListener("input", () => { filter[side] = input.value === "" ? (side === "low" ? -Infinity : Infinity) : Number(input.value); changed(); });
      return make("span", { class: "field" }, input);
    };
    host.append(bound("low", "lowest"), make("span", { class: "quiet", text: "to" }), bound("high", "highest"));
  }
  host.append(make("span", { class: "quiet", id: "passing", role: "status" }));
}

/** A button for each group that shows it alone, or the scale of a measure over its histogram. */
function showLegend(host, property, shown, changed) {
  host.replaceChildren();
  if (!property) return;
  if (!property.names) { host.append(scaleLegend(property)); return; }
  groupButtons(host, property, shown, changed);
}

function groupButtons(host, property, shown, changed) {
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
  const searched = [{ words: data.names }, ...data.texts], known = data.names.length + data.texts.length;
  const texts = known ? data.ids.map((_, node) => searched.map(({ words }) => words[node]).filter(Boolean).join(" · ")) : [];
  const foldedTexts = texts.map((words) => words.toLowerCase());
  let active = -1, found = [];
  const close = () => { list.hidden = true; active = -1; input.setAttribute("aria-expanded", "false"); input.removeAttribute("aria-activedescendant"); };
  const take = (node) => { input.value = data.ids[node]; close(); go(node); };
  const mark = () => [...list.children].forEach((item, i) => {
    item.setAttribute("aria-selected", String(i === active));
    if (i === active) { item.scrollIntoView({ block: "nearest" }); input.setAttribute("aria-activedescendant", item.id); }
  });
  input.addEventListener("input", () => {
    found = search(folded, foldedTexts, input.value);
    list.replaceChildren(...found.map((node, i) => {
      const item = make("li", { role: "option", id: `match-${i}`, text: data.ids[node] });
      if (texts[node]) item.append(make("div", { class: "quiet", text: shorten(texts[node], 90) }));
      item.addEventListener("pointerdown", (event) => { event.preventDefault(); take(node); });
      return item;
    }));
    if (!found.length && input.value) list.append(make("li", { class: "quiet", text: `no node has this in its id${texts.length ? " or its texts" : ""}` }));
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

/** Nodes whose id is the text, begins with it, contains it, then those whose words do: twelve at most. */
function search(folded, texts, text) {
  const sought = text.trim().toLowerCase(), ranked = [[], [], [], []];
  if (!sought) return [];
  for (let node = 0; node < folded.length; node++) {
    const at = folded[node].indexOf(sought);
    const rank = at < 0 ? (texts[node]?.includes(sought) ? 3 : -1) : folded[node] === sought ? 0 : at === 0 ? 1 : 2;
    if (rank >= 0 && ranked[rank].length < 12) ranked[rank].push(node);
  }
  return ranked.flat().slice(0, 12);
}
