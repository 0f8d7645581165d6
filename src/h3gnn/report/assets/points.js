// Points by hand: discs are blended into the pixels of an image, which costs the same with and without a GPU.

/** Offsets and strengths of a disc's pixels; a rim of background around it keeps neighbours apart. */
function discSprite(radius, rim, strength) {
  const reach = Math.ceil(radius + rim), sprite = [];
  for (let dy = -reach; dy <= reach; dy++) {
    for (let dx = -reach; dx <= reach; dx++) {
      const distance = Math.hypot(dx, dy);
      const cover = (edge) => Math.min(1, Math.max(0, edge - distance + 0.5));
      const core = Math.round(256 * strength * cover(radius));
      const halo = rim ? Math.round(150 * cover(radius + rim)) : 0;
      if (core || halo) sprite.push([dx, dy, core, core > 250 ? 0 : halo]);
    }
  }
  return { reach, sprite };
}

/** Mixes a pixel towards another by share / 256, red and blue in one multiplication. */
function mix(under, over, share) {
  const rest = 256 - share;
  return (((Math.imul(under & 0xff00ff, rest) + Math.imul(over & 0xff00ff, share)) >>> 8) & 0xff00ff) |
    (((Math.imul(under & 0xff00, rest) + Math.imul(over & 0xff00, share)) >>> 8) & 0xff00);
}

class PointLayer {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false, willReadFrequently: true });
  }

  resize(width, height) {
    this.canvas.width = width;
    this.canvas.height = height;
    this.image = this.context.createImageData(width, height);
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  /**
   * Draws nodes in the given order.
   * look: {ink, order, dimmed} with the first `dimmed` nodes of the order faint; place: from node to pixel.
   */
  draw(x, y, look, place, radius, paper) {
    const { pixels } = this, { width, height } = this.canvas;
    const many = x.length > 8000;
    const bright = discSprite(radius, many ? 0 : Math.min(1.2, radius / 4), many ? 0.85 : 0.95);
    const faint = discSprite(Math.max(0.7, radius * 0.8), 0, 0.9);
    pixels.fill((0xff000000 | paper) >>> 0);
    const ghost = mix(paper, pixel(cssColour("--unknown")), 70);
    this.stamp(x, y, look.order, 0, look.dimmed, null, ghost, faint, place, paper);
    this.stamp(x, y, look.order, look.dimmed, look.order.length, look.ink, 0, bright, place, paper);
    this.context.putImageData(this.image, 0, 0, 0, 0, width, height);
  }

  stamp(x, y, order, from, to, ink, oneColour, { reach, sprite }, place, paper) {
    const { pixels } = this, { width, height } = this.canvas;
    const offsets = Int32Array.from(sprite, ([dx, dy]) => dy * width + dx);
    const cores = Int32Array.from(sprite, (spot) => spot[2]), halos = Int32Array.from(sprite, (spot) => spot[3]);
    const { scale, left, top } = place;
    for (let n = from; n < to; n++) {
      const node = order[n];
      const px = (left + scale * x[node] + 0.5) | 0, py = (top + scale * y[node] + 0.5) | 0;
      if (px < reach || py < reach || px >= width - reach || py >= height - reach) continue;
      const colour = ink === null ? oneColour : ink[node], centre = py * width + px;
      for (let s = 0; s < offsets.length; s++) {
        const at = centre + offsets[s];
        if (cores[s] > 250) { pixels[at] = 0xff000000 | colour; continue; }
        const under = halos[s] ? mix(pixels[at], paper, halos[s]) : pixels[at];
        pixels[at] = 0xff000000 | mix(under, colour, cores[s]);
      }
    }
  }
}

/** Nodes in an order that lets no class cover another: the same shuffle every time. */
function shuffled(length) {
  const order = Uint32Array.from({ length }, (_, i) => i);
  let state = 1;
  for (let i = length - 1; i > 0; i--) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    const other = state % (i + 1), kept = order[i];
    order[i] = order[other];
    order[other] = kept;
  }
  return order;
}
