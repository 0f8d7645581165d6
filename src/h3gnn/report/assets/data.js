// What the page carries: one gzip stream of a description and typed arrays.

const KINDS = { uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array };
const UNKNOWN = { uint8: 255, uint16: 65535 };

/** Returns the description with every packed array opened in place. */
async function readData() {
  const text = atob(document.getElementById("data").textContent);
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  const opened = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const buffer = await new Response(opened).arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  const data = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  return openArrays(data, buffer, 8 + length);
}

function openArrays(data, buffer, start) {
  const whole = (stored) => new KINDS[stored.kind](buffer, start + stored.at, stored.length);
  const scaled = (stored) => {
    const steps = whole(stored), values = new Float32Array(steps.length), unknown = UNKNOWN[stored.kind];
    for (let i = 0; i < steps.length; i++) values[i] = steps[i] === unknown ? NaN : stored.low + steps[i] * stored.step;
    return values;
  };
  data.nodes = data.ids.length;
  for (const map of data.maps) { map.x = scaled(map.x); map.y = scaled(map.y); }
  for (const one of data.categories) { one.values = whole(one.values); }
  for (const one of data.measures) { one.step = one.values.step; one.values = scaled(one.values); }
  const ends = data.tables?.ends ?? [], types = [...new Set(ends)];
  data.ends = types.length > 1 ? { types, of: ends.map((name) => types.indexOf(name)) } : null;
  if (data.attention) { data.attention = scaled(data.attention); data.measures.push(...attentionMeasures(data)); }
  if (data.nearest) {
    data.nearest.nodes = whole(data.nearest.nodes);
    data.nearest.similarity = scaled(data.nearest.similarity);
  }
  if (data.neighbors) {
    for (const name of ["crow", "sources", "total"]) data.neighbors[name] = whole(data.neighbors[name]);
    for (const name of ["weight", "change"]) data.neighbors[name] = scaled(data.neighbors[name]);
  }
  return data;
}

/** The share of attention that a node's neighbours get, all hops together, and that of each token. */
function attentionMeasures(data) {
  const tokens = data.tokens.length, own = data.tokens.filter((name) => name.startsWith("own")).length;
  const share = (from, to) => Float32Array.from({ length: data.nodes }, (_, node) => {
    let sum = 0;
    for (let t = from; t < to; t++) sum += data.attention[node * tokens + t];
    return sum;
  });
  return [{ key: "attention", title: `attention to ${othersOf(data)}`, values: share(own, tokens) },
    ...data.tokens.map((name, t) => ({ key: `attention-${t}`, title: `attention: ${name}`, values: share(t, t + 1) }))];
}

const othersOf = (data) => (data.tables ? "linked rows" : "neighbours");

/** Makes an element; text is set as text, so nothing in it is read as markup. */
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") element.className = value;
    else if (name === "text") element.textContent = value;
    else if (name in element && !name.startsWith("aria")) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

const byId = (id) => document.getElementById(id);
const count = (number) => number.toLocaleString("en-US");
const percent = (share, digits = 1) => (share === null || Number.isNaN(share) ? "–" : `${(100 * share).toFixed(digits)} %`);
const signedPercent = (share) => `${share < 0 ? "−" : "+"}${Math.abs(100 * share).toFixed(1)} %`;

/** A number as short as it can be read. */
function short(value) {
  if (value === null || Number.isNaN(value)) return "–";
  if (Number.isInteger(value)) return count(value);
  const size = Math.abs(value);
  return size >= 1000 ? count(Math.round(value)) : size >= 100 ? value.toFixed(1) : String(Number(value.toPrecision(3)));
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const spread = (values) => Math.sqrt(mean(values.map((value) => (value - mean(values)) ** 2)));
