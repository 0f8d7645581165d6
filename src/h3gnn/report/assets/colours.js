// Colours that colour-blind readers can tell apart, in both themes.

// Okabe and Ito's eight, then eight of Tol's muted ones; each theme has its own lightness.
const CATEGORIES = {
  light: ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#b8a500", "#7a7a7a",
    "#332288", "#882255", "#117733", "#ddcc77", "#44aa99", "#cc6677", "#999933", "#aa4499"],
  dark: ["#3d9fe0", "#f0ae2b", "#17bd8d", "#dd93bb", "#ee7733", "#8fd0f7", "#f0e442", "#a9a9a9",
    "#8c80e0", "#c05a8a", "#4fae6d", "#e5d88f", "#6fcfc0", "#e08a97", "#bcbc5c", "#c978c2"],
};
const VIRIDIS = ["#440154", "#482878", "#3e4a89", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6dcd59", "#b4de2c", "#fde725"];
const STEPS = 256;

const darkScheme = window.matchMedia("(prefers-color-scheme: dark)");
const theme = () => (darkScheme.matches ? "dark" : "light");
const cssColour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** "#rrggbb" as the three numbers that pixels and styles are made of. */
const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
/** "#rrggbb" as a pixel without its alpha. */
const pixel = (hex) => { const [r, g, b] = channels(hex); return (b << 16) | (g << 8) | r; };

/** A pixel as "#rrggbb". */
const hexOf = (value) => "#" + [value & 255, (value >> 8) & 255, (value >> 16) & 255].map((one) => one.toString(16).padStart(2, "0")).join("");

const categoryColour = (position) => CATEGORIES[theme()][position % CATEGORIES.light.length];
const RIGHT_WRONG = () => [categoryColour(0), categoryColour(4)];

/** Black or white, whichever is easier to read on a colour. */
function readableOn(colour) {
  const [r, g, b] = channels(colour).map((value) => (value / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.2 ? "#10141a" : "#ffffff";
}

/** Colour at a share from 0 to 1; the end that fades into the background is left out. */
function scaleColour(share) {
  const [from, to] = theme() === "dark" ? [0.14, 1] : [0, 0.94];
  const place = (from + Math.min(1, Math.max(0, share)) * (to - from)) * (VIRIDIS.length - 1);
  const low = Math.min(Math.floor(place), VIRIDIS.length - 2), rest = place - low;
  const a = channels(VIRIDIS[low]), b = channels(VIRIDIS[low + 1]);
  return "#" + a.map((value, i) => Math.round(value + rest * (b[i] - value)).toString(16).padStart(2, "0")).join("");
}

/** How a measure's values become shares: from its 1st to its 99th percentile, by logarithm if it is skewed. */
function scaleOf(values) {
  const known = values.filter((value) => !Number.isNaN(value)).sort();
  if (!known.length) return { low: 0, high: 1, share: () => 0, value: () => NaN, logarithmic: false };
  const at = (share) => known[Math.round(share * (known.length - 1))];
  let low = at(0.01), high = at(0.99);
  if (!(high > low)) { low = known[0]; high = known[known.length - 1]; }
  const logarithmic = known[0] >= 0 && high > 12 * Math.max(at(0.5), 1e-9);
  const bend = logarithmic ? Math.log1p : (value) => value;
  const unbend = logarithmic ? Math.expm1 : (value) => value;
  const start = bend(low), size = bend(high) - start || 1;
  return {
    low, high, logarithmic,
    share: (value) => Math.min(1, Math.max(0, (bend(value) - start) / size)),
    value: (share) => unbend(start + share * size),
  };
}

/** One pixel per node for a category or a measure; unknown values are grey. */
function inkOf(property) {
  const ink = new Uint32Array(property.values.length);
  const unknown = pixel(cssColour("--unknown"));
  if (property.names) {
    const colours = coloursOf(property).map(pixel);
    for (let i = 0; i < ink.length; i++) ink[i] = property.values[i] ? colours[property.values[i] - 1] : unknown;
    return ink;
  }
  property.scale ??= scaleOf(property.values);
  const table = Uint32Array.from({ length: STEPS }, (_, step) => pixel(scaleColour(step / (STEPS - 1))));
  for (let i = 0; i < ink.length; i++) {
    const value = property.values[i];
    ink[i] = Number.isNaN(value) ? unknown : table[Math.round(property.scale.share(value) * (STEPS - 1))];
  }
  return ink;
}

const coloursOf = (category) => (category.key === "wrong" ? RIGHT_WRONG() : category.names.map((_, i) => categoryColour(i)));
