// Drawings of dependencies, layered from left to right.

const nodeHeight = 38, gapY = 12;
const large = {width: 178, gap: 56}, small = {width: 86, gap: 18};

// levels returns the level of each node: one more than the highest level of the nodes that it needs. Cycles are cut.
function levels(nodes) {
  const found = new Map();
  const visit = (node) => {
    if (found.has(node)) {
      return found.get(node);
    }
    found.set(node, 0); // ends cycles
    let level = 0;
    for (const needed of node.needs) {
      level = Math.max(level, visit(needed) + 1);
    }
    found.set(node, level);
    return level;
  };
  nodes.forEach(visit);
  return found;
}

// layout sets the position of each node, and returns the size of the drawing. In each column, nodes are sorted by the
// mean position of the nodes that they need.
function layout(nodes, size) {
  const columns = [];
  for (const [node, level] of levels(nodes)) {
    (columns[level] = columns[level] || []).push(node);
  }
  let height = 0;
  columns.forEach((column, level) => {
    for (const node of column) {
      const ys = node.needs.map((n) => n.y).filter((y) => y !== undefined);
      node.wanted = ys.length ? ys.reduce((a, b) => a + b, 0) / ys.length : 0;
    }
    column.sort((a, b) => a.wanted - b.wanted);
    column.forEach((node, i) => {
      node.x = level * (size.width + size.gap) + 1;
      node.y = i * (nodeHeight + gapY) + 1;
    });
    height = Math.max(height, column.length * (nodeHeight + gapY) - gapY + 2);
  });
  return [Math.max(0, columns.length * (size.width + size.gap) - size.gap + 2), height];
}

function shorten(text, most) {
  return text.length > most ? text.slice(0, most - 1) + "\u2026" : text;
}

// drawGraph returns a drawing of nodes with id, needs, title, second, and optionally tone, external, active and open.
function drawGraph(nodes, label, size) {
  const [width, height] = layout(nodes, size);
  const svg = svgEl("svg", {class: "graph", width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": label});
  for (const node of nodes) {
    for (const needed of node.needs) {
      svg.append(...drawEdge(needed, node, size));
    }
  }
  const most = Math.floor(size.width / 7.2);
  for (const node of nodes) {
    const g = svgEl("g", {class: "node" + (node.external ? " external" : "") + (node.active ? " active" : ""),
      transform: `translate(${node.x} ${node.y})`, "data-id": node.id},
    svgEl("title", null, node.title + ", " + node.second + (node.needs.length ?
      ", needs " + node.needs.map((n) => n.title).join(", ") : "")),
    svgEl("rect", {width: size.width, height: nodeHeight, rx: 5}),
    svgEl("text", {x: 9, y: 16}, shorten(node.title, most)),
    svgEl("text", {x: 9, y: 31, class: node.tone ? "" : "second", "data-tone": node.tone || ""}, shorten(node.second, most + 1)));
    if (node.open) {
      setAttribute(g, "role", "button");
      setAttribute(g, "tabindex", "0");
      g.addEventListener("click", node.open);
      g.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") {
          event.preventDefault();
          node.open();
        }
      });
    }
    svg.append(g);
  }
  return svg;
}

// drawEdge draws an arrow between two nodes, to the one that needs the other.
function drawEdge(from, to, size) {
  const x1 = from.x + size.width, y1 = from.y + nodeHeight / 2, x2 = to.x - 1, y2 = to.y + nodeHeight / 2;
  const middle = Math.max(size.gap / 2, Math.abs(x2 - x1) / 2);
  return [
    svgEl("path", {class: "edge", d: `M${x1} ${y1}C${x1 + middle} ${y1} ${x2 - middle} ${y2} ${x2 - 5} ${y2}`}),
    svgEl("path", {class: "head", d: `M${x2} ${y2}l-7 -4v8z`}),
  ];
}
