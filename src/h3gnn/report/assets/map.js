// The two maps: moving, zooming, hovering and the lasso, together or each on its own.

const NEAR = 14;
const SMALLEST_ZOOM = 0.5, LARGEST_ZOOM = 200;

class MapView {
  /** map: {title, x, y}; listeners: onHover, onChoose, onLasso, onMove, tool(). */
  constructor(map, host, listeners) {
    Object.assign(this, { x: map.x, y: map.y, title: map.title, listeners });
    this.view = { x: 0, y: 0, zoom: 1 };
    this.pointers = new Map();
    this.lasso = null;
    this.canvas = make("canvas", { class: "points", "aria-hidden": "true" });
    this.overlay = make("canvas", {
      class: "overlay", tabIndex: 0, role: "application",
      "aria-label": `Map of the nodes: ${map.title}. Arrow keys move, plus and minus zoom, 0 shows everything, Enter chooses the node at the centre, Escape lets go.`,
    });
    this.frame = make("figure", { class: "map" }, make("figcaption", { text: map.title }),
      make("div", { class: "plot" }, this.canvas, this.overlay));
    host.append(this.frame);
    this.layer = new PointLayer(this.canvas);
    this.listen();
  }

  resize() {
    const box = this.canvas.parentElement.getBoundingClientRect();
    const ratio = Math.min(2, window.devicePixelRatio || 1);
    const width = Math.max(1, Math.round(box.width * ratio)), height = Math.max(1, Math.round(box.height * ratio));
    this.ratio = ratio;
    if (this.canvas.width !== width || this.canvas.height !== height || !this.layer.image) {
      this.layer.resize(width, height);
      this.overlay.width = width;
      this.overlay.height = height;
    }
  }

  /** From coordinates to canvas pixels: left + scale · x, top + scale · y. */
  get place() {
    const { width, height } = this.canvas;
    const scale = 0.47 * Math.min(width, height) * this.view.zoom;
    return { scale, left: width / 2 - scale * this.view.x, top: height / 2 - scale * this.view.y };
  }

  get radius() {
    const nodes = this.x.length;
    const base = nodes <= 250 ? 5 : nodes <= 1200 ? 3.6 : nodes <= 5000 ? 2.6 : nodes <= 20000 ? 1.7 : 1.25;
    return this.ratio * Math.min(9, base * Math.max(0.8, this.view.zoom ** 0.4));
  }

  draw(look, paper) { this.layer.draw(this.x, this.y, look, this.place, this.radius, paper); }

  /** Where a node is, in pixels of the window. */
  position(node) {
    const { scale, left, top } = this.place, box = this.overlay.getBoundingClientRect();
    return { x: box.left + (left + scale * this.x[node]) / this.ratio, y: box.top + (top + scale * this.y[node]) / this.ratio };
  }

  nodeAt(px, py, allowed, within = NEAR) {
    const { scale, left, top } = this.place;
    const x = (px * this.ratio - left) / scale, y = (py * this.ratio - top) / scale;
    let best = -1, least = ((within * this.ratio) / scale) ** 2;
    for (let i = 0; i < this.x.length; i++) {
      const distance = (this.x[i] - x) ** 2 + (this.y[i] - y) ** 2;
      if (distance < least && allowed(i)) { least = distance; best = i; }
    }
    return best;
  }

  moveBy(dx, dy) {
    const { scale } = this.place;
    this.view.x -= (dx * this.ratio) / scale;
    this.view.y -= (dy * this.ratio) / scale;
  }

  /** Zooms so that the point of the canvas at (px, py) stays where it is. */
  zoomBy(factor, px = this.overlay.clientWidth / 2, py = this.overlay.clientHeight / 2) {
    const before = this.place;
    const x = (px * this.ratio - before.left) / before.scale, y = (py * this.ratio - before.top) / before.scale;
    this.view.zoom = Math.min(LARGEST_ZOOM, Math.max(SMALLEST_ZOOM, this.view.zoom * factor));
    const after = this.place;
    this.view.x += x - (px * this.ratio - after.left) / after.scale;
    this.view.y += y - (py * this.ratio - after.top) / after.scale;
  }

  centreOn(node) { this.view.x = this.x[node]; this.view.y = this.y[node]; }

  reset() { this.view = { x: 0, y: 0, zoom: 1 }; }

  sees(node) {
    const { scale, left, top } = this.place;
    const px = left + scale * this.x[node], py = top + scale * this.y[node];
    return px >= 0 && py >= 0 && px <= this.canvas.width && py <= this.canvas.height;
  }

  listen() {
    const surface = this.overlay;
    surface.addEventListener("pointerdown", (event) => this.press(event));
    surface.addEventListener("pointermove", (event) => this.drag(event));
    surface.addEventListener("pointerup", (event) => this.release(event));
    surface.addEventListener("pointercancel", (event) => this.release(event));
    surface.addEventListener("pointerleave", () => { if (!this.pointers.size) this.listeners.onHover(this, -1); });
    surface.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.listeners.onMove(this, (map) => map.zoomBy(Math.exp(-event.deltaY * 0.0016), event.offsetX, event.offsetY));
    }, { passive: false });
    surface.addEventListener("dblclick", (event) =>
      this.listeners.onMove(this, (map) => map.zoomBy(2, event.offsetX, event.offsetY)));
    surface.addEventListener("keydown", (event) => this.key(event));
  }

  press(event) {
    this.overlay.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
    this.start = { x: event.offsetX, y: event.offsetY, moved: false };
    if (this.listeners.tool() === "lasso" && this.pointers.size === 1) this.lasso = [[event.offsetX, event.offsetY]];
    else this.lasso = null;
  }

  drag(event) {
    const before = this.pointers.get(event.pointerId);
    if (!before) { this.listeners.onHover(this, event); return; }
    const now = { x: event.offsetX, y: event.offsetY };
    if (Math.hypot(now.x - this.start.x, now.y - this.start.y) > 3) this.start.moved = true;
    if (this.lasso) {
      this.lasso.push([now.x, now.y]);
      this.listeners.onMove(this, () => {});
    } else if (this.pointers.size === 2) {
      const other = [...this.pointers.entries()].find(([id]) => id !== event.pointerId)[1];
      const factor = Math.hypot(now.x - other.x, now.y - other.y) / Math.max(1, Math.hypot(before.x - other.x, before.y - other.y));
      this.listeners.onMove(this, (map) => {
        map.moveBy((now.x - before.x) / 2, (now.y - before.y) / 2);
        map.zoomBy(factor, (now.x + other.x) / 2, (now.y + other.y) / 2);
      });
    } else {
      this.listeners.onMove(this, (map) => map.moveBy(now.x - before.x, now.y - before.y));
    }
    this.pointers.set(event.pointerId, now);
  }

  release(event) {
    if (!this.pointers.delete(event.pointerId)) return;
    const lasso = this.lasso;
    this.lasso = null;
    if (lasso && this.start.moved) this.listeners.onLasso(this, lasso, event.shiftKey);
    else if (!this.start.moved && event.type === "pointerup") this.listeners.onChoose(this, event);
  }

  key(event) {
    const step = 40, { onMove } = this.listeners;
    const actions = {
      ArrowLeft: () => onMove(this, (map) => map.moveBy(step, 0)),
      ArrowRight: () => onMove(this, (map) => map.moveBy(-step, 0)),
      ArrowUp: () => onMove(this, (map) => map.moveBy(0, step)),
      ArrowDown: () => onMove(this, (map) => map.moveBy(0, -step)),
      "+": () => onMove(this, (map) => map.zoomBy(1.3)),
      "=": () => onMove(this, (map) => map.zoomBy(1.3)),
      "-": () => onMove(this, (map) => map.zoomBy(1 / 1.3)),
      0: () => onMove(this, (map) => map.reset()),
      Enter: () => this.listeners.onChoose(this, null),
      Escape: () => this.listeners.onLetGo(),
    };
    if (actions[event.key] && !event.ctrlKey && !event.metaKey) { event.preventDefault(); actions[event.key](); }
  }

  /** Which nodes lie inside a polygon of the canvas. */
  inside(polygon, allowed) {
    const { scale, left, top } = this.place;
    const corners = polygon.map(([px, py]) => [(px * this.ratio - left) / scale, (py * this.ratio - top) / scale]);
    const found = [];
    for (let i = 0; i < this.x.length; i++) if (allowed(i) && contains(corners, this.x[i], this.y[i])) found.push(i);
    return found;
  }

  /** Draws what lies over the points: lines to neighbours, rings, the lasso. */
  drawOverlay(state) {
    const context = this.overlay.getContext("2d"), { scale, left, top } = this.place;
    context.clearRect(0, 0, this.overlay.width, this.overlay.height);
    const at = (node) => [left + scale * this.x[node], top + scale * this.y[node]];
    const unit = this.ratio, ring = this.radius + 2.5 * unit;
    for (const line of state.lines) {
      context.beginPath();
      context.moveTo(...at(state.chosen));
      context.lineTo(...at(line.to));
      context.setLineDash(line.dash.map((length) => length * unit));
      context.strokeStyle = line.colour;
      context.lineWidth = line.width * unit;
      context.stroke();
    }
    context.setLineDash([]);
    const circle = (node, radius, colour, width) => {
      context.beginPath();
      context.arc(...at(node), radius, 0, 2 * Math.PI);
      context.strokeStyle = colour;
      context.lineWidth = width * unit;
      context.stroke();
    };
    for (const node of state.near) circle(node, ring - unit, state.ink, 1.2);
    if (state.chosen >= 0) { circle(state.chosen, ring + unit, state.paper, 4.5); circle(state.chosen, ring + unit, state.ink, 2.4); }
    if (state.hovered >= 0) { circle(state.hovered, ring, state.paper, 3.5); circle(state.hovered, ring, state.ink, 1.6); }
    if (this.lasso) {
      context.beginPath();
      this.lasso.forEach(([px, py]) => context.lineTo(px * unit, py * unit));
      context.closePath();
      context.fillStyle = state.wash;
      context.fill();
      context.setLineDash([5 * unit, 4 * unit]);
      context.strokeStyle = state.ink;
      context.lineWidth = 1.4 * unit;
      context.stroke();
      context.setLineDash([]);
    }
  }
}

/** Whether a point lies inside a polygon: a ray to the right crosses its border an odd number of times. */
function contains(corners, x, y) {
  let odd = false;
  for (let i = 0, j = corners.length - 1; i < corners.length; j = i++) {
    const [ax, ay] = corners[i], [bx, by] = corners[j];
    if (ay > y !== by > y && x < ((bx - ax) * (y - ay)) / (by - ay) + ax) odd = !odd;
  }
  return odd;
}
