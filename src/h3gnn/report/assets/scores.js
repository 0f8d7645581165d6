// The scores, what the model learned, and the run.

const withSpread = (values) => {
  const known = (values ?? []).filter((value) => value !== null);
  if (!known.length) return "–";
  return known.length === 1 ? percent(known[0]) : `${(100 * mean(known)).toFixed(1)} ± ${(100 * spread(known)).toFixed(1)} %`;
};
const plainSpread = (values) => {
  const known = values.filter((value) => value !== null);
  return known.length ? `${mean(known).toFixed(3)} ± ${spread(known).toFixed(3)}` : "–";
};

function showScores(host, data) {
  host.replaceChildren();
  const { scores } = data;
  if (data.predictions) host.append(...predictionCards(data.predictions));
  if (!scores || !scores.rows.length) {
    if (data.predictions) return; byId("scores-section").hidden = true; return;
  }
  host.append(scoreTable(scores));
  if (data.other) host.append(differences(data.other));
  if (!scores.confusion) return;
  const curves = scores.rows.filter((row) => row.precision?.every((value) => value !== null) && !row.representation.startsWith("H3GNN:"));
  if (curves.length) {
    host.append(lineChart(`Precision and recall of ${scores.rare}`, curves.map((row) => ({ name: row.representation, colour: categoryColour(row.colour), values: row.precision })),
      { zero: true, along: "recall", step: 1 / (curves[0].precision.length - 1), note: `To find so large a share of the test nodes that are ${scores.rare} (across), which share of the nodes looked at is (up). Mean over splits.` }));
  }
  const series = (field) => scores.rows.map((row) => ({ name: row.representation, colour: categoryColour(row.colour), values: row[field] }));
  const bins = scores.homophilyBins, some = scores.homophilyCounts.some((number) => number > 0);
  if (some) {
    const groups = scores.homophilyCounts.map((number, i) => ({ name: `${short(bins[i])}–${short(bins[i + 1])}`, sub: count(number) }));
    host.append(barChart("Accuracy by local homophily", groups, series("byHomophily"),
      "Left: nodes whose neighbours are of other classes. Right: of their own. Test nodes of all splits, their number below each bin."));
  }
  host.append(barChart("Accuracy by class", scores.classNames.map((name, i) => ({ name, sub: count(scores.classCounts[i]) })), series("byClass"),
    "Test nodes of all splits, their number below each class."));
  if (data.bestMembers.length) host.append(bestMemberTable(data));
  host.append(confusionTable(scores));
}

function scoreTable(scores) {
  const measures = Object.keys(scores.rows[0].clustering), labelled = scores.rows[0].probe !== null, rare = labelled && scores.leading !== "accuracy";
  const probed = !labelled ? [] : rare ? [scores.leading, ...Object.keys(scores.titles).filter((name) => name !== scores.leading && name !== "majority")] : ["accuracy"];
  const head = ["representation", ...probed.map((name) => (rare ? scores.titles[name] : "linear probe")), ...measures.map((name) => (name === "accuracy" ? "k-means" : name))];
  const rows = scores.rows.map((row) => ({
    strong: row.representation === "H3GNN",
    cells: [row.representation, ...probed.map((name) => withSpread(row.secondary[name])),
      ...measures.map((name) => (name === "accuracy" ? withSpread(row.clustering[name]) : plainSpread(row.clustering[name])))],
  }));
  const words = rare ? `One class holds ${percent(majorityOf(scores.rows[0]))} of the test nodes, so accuracy hides the others. Average precision and recall at k are of ${scores.rare}; k is as many as it has test nodes. ` : "";
  return wide(card("Against raw features and the untrained encoder", words + scores.protocol, tableOf(head, rows, "Scores by representation")));
}

const withError = (value, error) => (value === null || value === undefined ? "–" : value.toFixed(3) + (error === null || error === undefined ? "" : ` ± ${error.toFixed(3)}`));

function predictionCards(found) {
  const measure = found.measure, positive = found.held_out.positive_class;
  const of = positive === null ? "" : ` Average precision, precision and recall are of ${positive}.`;
  const cards = [card("Held-out scores of predictions", `Nested cross-validation, ${count(found.labelled)} labelled nodes; ± standard error.${of}`,
    tableOf(["measure", "value"], found.scores.map((cells) => ({ cells })), "Held-out scores of predictions"))];
  if (found.contributions.length) {
    cards.push(card("What each part contributes", `Held-out ${measure} of predictions that use the parts up to each row. ${found.embedding ? `In short: ${found.embedding}.` : ""}`,
      tableOf(["uses", measure, "gain"], found.contributions.map((one, at) => ({ cells: [`${at ? "+ " : ""}${one.part}`, withError(one.score, one.error), withError(one.gain, one.gain_error)] })), "Contribution of each part")));
  }
  const important = found.importance.filter((one) => one.mean > 2 * one.standard_error).slice(0, 12);
  if (important.length) {
    cards.push(card("Which columns matter", "Permutation importance: the increase of the held-out loss when a column is shuffled.",
      tableOf(["column", "increase"], important.map((one) => ({ cells: [one.column, withError(one.mean, one.standard_error)] })), "Permutation importance")));
  }
  return cards;
}

const majorityOf = (row) => mean(row.secondary.majority.filter((value) => value !== null));

/** What differs between this run and the other one. */
function differences({ name, rows, notes }) {
  const changed = rows.length ? tableOf(["setting", "here", "there"], rows.map(([setting, ...values]) => ({ cells: [setting.replaceAll("_", " "), ...values] })), "Settings that differ") : make("p", { text: "All settings are the same." });
  return wide(card(`What differs in ${name}`, notes.join("; "), changed));
}

function bestMemberTable({ bestMembers, notes }) {
  const rows = bestMembers.map((one) => ({ cells: [one.class_name, count(one.tested), one.members.join(", "), percent(one.accuracy), signedPercent(one.margin), percent(one.whole)] }));
  return wide(card("Best member by class", notes.best_member,
    tableOf(["class", "test nodes", "best member", "accuracy", "margin to the next", "all members"], rows, "Best member by class")));
}

function confusionTable(scores) {
  const table = make("table", { class: "confusion" }, make("caption", { class: "unseen", text: "Confusion matrix: rows are classes, columns predictions" }));
  table.append(make("thead", {}, make("tr", {}, make("th", { text: "class ↓  predicted →" }),
    ...scores.classNames.map((name) => make("th", { scope: "col", text: shorten(name, 14), title: name })))));
  const body = make("tbody"), [r, g, b] = channels(categoryColour(0)), [wr, wg, wb] = channels(categoryColour(4));
  scores.confusion.forEach((row, i) => {
    const total = Math.max(1, row.reduce((sum, value) => sum + value, 0));
    body.append(make("tr", {}, make("th", { scope: "row", text: shorten(scores.classNames[i], 18), title: scores.classNames[i] }),
      ...row.map((value, j) => {
        const cell = make("td", { text: value ? count(value) : "·", title: `${scores.classNames[i]} taken for ${scores.classNames[j]}: ${count(value)} (${percent(value / total)})` });
        cell.style.background = i === j ? `rgb(${r} ${g} ${b} / ${0.6 * value / total})` : `rgb(${wr} ${wg} ${wb} / ${0.75 * value / total})`;
        return cell;
      })));
  });
  table.append(body);
  return wide(card("What H3GNN takes for what", "Test nodes of all splits. Blue: right. Orange: taken for another class; the deeper, the larger the share of the row.",
    make("div", { class: "scroll", tabIndex: 0, role: "group", "aria-label": "Confusion matrix" }, table)));
}

function showModel(host, data) {
  host.replaceChildren();
  const groups = data.categories.find((one) => one.key === "class") ?? data.categories.find((one) => one.key === "cluster");
  if (data.attention && groups) host.append(attentionByGroup(data, groups));
  if (data.attention && data.ends) host.append(attentionByPath(data));
  const measure = data.measures.find((one) => one.key === "homophily") ?? data.measures.find((one) => one.key === "degree");
  if (data.attention && measure) host.append(attentionByMeasure(data, measure));
  if (data.edgeChanges.length) host.append(edgeCard(data));
  byId("model-section").hidden = !host.children.length;
}

function attentionByGroup(data, groups) {
  const { ends } = data, tokens = data.tokens.length, kinds = ends ? ends.types : data.tokens;
  const sums = kinds.map(() => new Float64Array(groups.names.length)), sizes = groups.names.map(() => 0);
  for (let node = 0; node < data.nodes; node++) {
    const group = groups.values[node] - 1;
    if (group < 0) continue;
    sizes[group]++;
    for (let t = 0; t < tokens; t++) sums[ends ? ends.of[t] : t][group] += data.attention[node * tokens + t];
  }
  const there = groups.names.map((_, g) => g).filter((g) => sizes[g]);
  const series = kinds.map((name, k) => ({ name, colour: ends ? categoryColour(k) : tokenColour(data, k), values: there.map((g) => sums[k][g] / sizes[g]) }));
  return stackChart(`Attention, by ${groups.title}`, there.map((g) => ({ name: groups.names[g] })), series,
    ends ? "Mean share of the attention, by the type of node at the end of each path." : "Mean share of the attention that each token gets: a node's own features, and its neighbourhood hop by hop.");
}

/** The mean attention of every token, the largest first, in the colour of the type at its end. */
function attentionByPath(data) {
  const tokens = data.tokens.length, shares = new Float64Array(tokens), rows = make("div", { class: "stacks paths" });
  data.attention.forEach((share, at) => { shares[at % tokens] += share / data.nodes; });
  const most = Math.max(...shares);
  for (const t of [...shares.keys()].sort((a, b) => shares[b] - shares[a])) {
    const bar = make("span");
    bar.style.flexBasis = percent(shares[t] / most).replace(" ", "");
    bar.style.background = tokenColour(data, t);
    rows.append(make("span", { class: "stack-name", text: data.tokens[t] }), make("div", { class: "stack" }, bar), make("span", { class: "value", text: percent(shares[t]) }));
  }
  const key = keyOf(data.ends.types.map((name, k) => ({ name, colour: categoryColour(k) })));
  return card("Attention by path", "Mean over all rows. Colours: the type of node at the end of the path.", key, rows);
}

/** What describes a row besides its own columns, and what was left out. */
function showTables(host, { tables }) {
  host.replaceChildren();
  byId("tables-section").hidden = document.querySelector("[href='#tables-section']").hidden = !tables;
  if (!tables) return;
  const list = (title, note, head, rows) => {
    if (!rows.length) return;
    const made = wide(card(title, note, tableOf(head, rows.map((cells) => ({ cells })), title)));
    made.classList.add("texts");
    host.append(made);
  };
  if (!tables.relations.length && !tables.paths.length) host.append(card("Links and paths", "Where labels are of the time of their row, linked rows count in joined columns alone.", make("p", { text: "None." })));
  list(`Links among rows of ${tables.type}`, "A row refers to the other, or both link to the same row.", ["by", "links"], tables.relations.map(([by, links]) => [by, count(links)]));
  list("Paths to other tables", "Means over the rows at the end of a path describe the row at its start.", ["path", "columns"], tables.paths);
  list("Joined columns", "Computed from linked rows.", ["path", "column", "computed"], tables.joined);
  const notes = make("ul", { class: "scroll" }, ...tables.notes.map((text) => make("li", { text })));
  if (tables.notes.length) host.append(wide(card("Left out, and to know", "", notes)));
  host.lastChild.classList.add("texts");
}

function attentionByMeasure(data, measure) {
  const whole = data.measures.find((one) => one.key === "attention").values;
  const borders = measure.key === "homophily" ? [0, 0.2, 0.4, 0.6, 0.8, 1.001] : [0, 1, 2, 3, 5, 9, 17, Infinity];
  const names = measure.key === "homophily" ? ["0–0.2", "0.2–0.4", "0.4–0.6", "0.6–0.8", "0.8–1"] : ["0", "1", "2", "3–4", "5–8", "9–16", "17+"];
  const found = names.map(() => []);
  for (let node = 0; node < data.nodes; node++) {
    const bin = borders.findIndex((border, i) => measure.values[node] >= border && measure.values[node] < borders[i + 1]);
    if (bin >= 0) found[bin].push(whole[node]);
  }
  const there = names.map((_, i) => i).filter((i) => found[i].length);
  const quarters = (values) => { values.sort((a, b) => a - b); return [0.25, 0.5, 0.75].map((share) => values[Math.round(share * (values.length - 1))]); };
  return there.length < 2 ? "" : spreadChart(`Attention to ${othersOf(data)}, by ${measure.title}`, there.map((i) => ({ name: names[i], sub: count(found[i].length) })), there.map((i) => quarters(found[i])),
    { colour: categoryColour(1), even: (data.tokens.length - 2) / data.tokens.length, note: `All ${data.ends ? "paths" : "hops"} together: median and middle half; number of nodes below. Above the dashed line, ${othersOf(data)} get more than an even share.` });
}

function edgeCard(data) {
  const rows = data.edgeChanges.map((one) => ({ cells: [one.kind, count(one.edges), signedPercent(one.mean_change), percent(one.turned_down)] }));
  return card("What training did to the edges", "Change of each edge's learned weight from its start. Decreased edges have a smaller weight than at the start. Click a node on the map to see its own edges.",
    tableOf(["edges", "number", "mean change", "decreased"], rows, "Changes of edge weights"));
}

const HISTORY = [
  ["loss", "Loss", {}],
  ["effective_rank", "Effective rank", { zero: true, note: "How many dimensions the embedding really uses. A fall to almost nothing is collapse." }],
  ["masked", "Masked nodes", { zero: true }],
  ["teacher_distance", "Distance of the teacher", { zero: true, note: "‖student − teacher‖ / ‖student‖." }],
];

function showRun(host, facts, data) {
  host.replaceChildren();
  facts.replaceChildren();
  const { history } = data, members = data.members.map((one) => ({ ...one, colour: categoryColour(one.colour) }));
  const quantile = (q, models) => history[`difficulty_q${q}`]?.map((row) => meanOfRow(models ? models.map((m) => row[m]) : row));
  for (const one of history.loss ? members : []) {
    host.append(lineChart(`Loss: ${one.name}`, modelLines(history.loss, [one]),
      { band: [quantile(25, one.models), quantile(75, one.models)], note: data.notes.loss }));
  }
  for (const [key, title, options] of HISTORY) {
    if (history[key] && !(members.length && key === "loss")) host.append(lineChart(title, modelLines(history[key], members), options));
  }
  if (!members.length && quantile(50)) {
    host.append(lineChart("Difficulty of the nodes", [{ name: "median", colour: categoryColour(0), values: quantile(50) }],
      { band: [quantile(25), quantile(75)], zero: true, note: "Median and middle half. Hard nodes are masked more often." }));
  }
  if (!host.children.length) host.append(make("p", { class: "quiet", text: "No epochs were trained." }));
  const { source, sha256, repairs } = data.provenance;
  const origin = [["graph", source], ["SHA-256", sha256], ["notes on the data", data.tables ? undefined : repairs && repairs.map((repair) => repair.message)]].filter(([, value]) => value !== undefined);
  if (members.length) {
    const rows = members.map((one) => ({ cells: [one.name, one.models.join(", "), short(one.loss), short(one.rank), percent(one.share)] }));
    facts.append(wide(card("Members", data.notes.share, tableOf(["member", "models", "last loss", "effective rank", "share"], rows, "Members"))));
  }
  facts.append(card("Facts", "", definitions([...origin, ...factLines(data)])), wide(card("Settings", "", definitions(Object.entries(data.settings), "facts long"))));
}

const meanOfRow = (row) => { const known = row.filter((value) => value !== null); return known.length ? mean(known) : null; };

/** The mean over models, or each member's, with the single models faint behind it. */
function modelLines(rows, members) {
  const groups = members.length ? members : [{ name: "mean", colour: categoryColour(0), models: [...rows[0].keys()] }];
  return groups.flatMap(({ name, colour, models }) => {
    const single = models.map((m) => ({ name: `model ${m}`, colour, faint: true, values: rows.map((row) => row[m]) }));
    const average = { name, colour, values: rows.map((row) => meanOfRow(models.map((m) => row[m]))) };
    return models.length > 1 ? [...single, average] : [average];
  }).filter((line) => !members.length || line.values.some((value) => value !== null));
}

function factLines(data) {
  const named = { seconds: "seconds, last command", peak_megabytes: "peak memory, MB", feature_storage: "features stored", models_at_once: "models at once" };
  return Object.entries(data.facts).map(([name, value]) => [named[name] ?? name, typeof value === "number" ? short(value) : value]);
}

function definitions(pairs, kind = "facts") {
  const list = make("dl", { class: kind });
  for (const [name, value] of pairs) {
    const text = value === null ? "none" : Array.isArray(value) ? value.join("; ") || "none" : String(value);
    list.append(make("dt", { text: name.replaceAll("_", " ") }), make("dd", { text }));
  }
  return list;
}

function showHead(data) {
  byId("figures").textContent = Object.entries(data.figures).map(([name, value]) => `${count(value)} ${name}`).join(" · ");
  byId("shown").textContent = data.shown;
  const banner = byId("banner");
  banner.hidden = !data.collapsed;
  banner.textContent = data.collapsed;
  const headline = byId("headline");
  const tell = (name, value, beside) => headline.append(make("div", {}, make("dt", { text: name }), make("dd", { text: value }), make("dd", { class: "beside", text: beside })));
  const find = (name) => data.scores?.rows.find((row) => row.representation === name);
  const ours = find("H3GNN"), raw = find("raw features");
  const against = find(data.other?.name) ?? raw, name = data.other?.name ?? "raw features", leading = data.scores?.leading;
  if (ours?.probe && leading !== "accuracy") tell(`${data.scores.titles[leading]}${leading === "average_precision" ? ` of ${data.scores.rare}` : ""}`, withSpread(ours.secondary[leading]), `${name} ${withSpread(against?.secondary[leading])}`);
  if (ours?.probe) tell(leading === "accuracy" ? "linear probe" : "accuracy", withSpread(ours.probe), leading === "accuracy" ? `${name} ${withSpread(against?.probe)}` : `majority's share ${percent(majorityOf(ours))}`);
  if (ours?.clustering.accuracy) tell("k-means", withSpread(ours.clustering.accuracy), `${name} ${withSpread(against?.clustering.accuracy)}`);
  if (ours?.clustering.silhouette) tell("silhouette", plainSpread(ours.clustering.silhouette), `${name} ${plainSpread(against.clustering.silhouette)}`);
  if (data.facts.seconds !== undefined) tell("fitted in", `${short(data.facts.seconds)} s`, `${short(data.facts.epochs)} epochs on ${data.facts.device ?? "?"}`);
}
