// Small charts of recent values.

const sampleCount = 60;

// Ring holds the newest values. A missing value is NaN.
class Ring {
  constructor() {
    this.values = new Float32Array(sampleCount).fill(NaN);
    this.end = 0;
  }

  push(value) {
    this.values[this.end] = value;
    this.end = (this.end + 1) % sampleCount;
  }

  last() {
    return this.values[(this.end + sampleCount - 1) % sampleCount];
  }

  // ordered returns the values, oldest first.
  ordered() {
    return [...this.values.subarray(this.end), ...this.values.subarray(0, this.end)];
  }
}

// newSpark returns a chart of the given size, and a function that draws the values of a ring.
function newSpark(width, height) {
  const area = svgEl("path", {class: "area"});
  const line = svgEl("path");
  const svg = svgEl("svg", {
    class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true",
  }, area, line);
  const draw = (ring) => {
    const [stroke, fill] = ring ? sparkPaths(ring.ordered(), width, height) : ["", ""];
    setAttribute(line, "d", stroke);
    setAttribute(area, "d", fill);
  };
  return {svg, draw};
}

// sparkPaths returns the paths of the line and of the area below it. Missing values leave a gap.
function sparkPaths(values, width, height) {
  const top = Math.max(...values.filter((v) => !Number.isNaN(v)), 0) || 1;
  const step = width / (values.length - 1);
  const pad = 1.5;
  let stroke = "";
  let fill = "";
  let from = -1;
  for (let i = 0; i <= values.length; i++) {
    if (i < values.length && !Number.isNaN(values[i])) {
      const y = height - pad - (values[i] / top) * (height - 2 * pad);
      const point = (i * step).toFixed(1) + " " + y.toFixed(1);
      if (from < 0) {
        from = i;
        stroke += "M" + point;
        fill += `M${(i * step).toFixed(1)} ${height}L${point}`;
      } else {
        stroke += "L" + point;
        fill += "L" + point;
      }
    } else if (from >= 0) {
      // A single value has no area.
      fill = i - from === 1 ? fill.slice(0, fill.lastIndexOf("M")) : fill + `L${((i - 1) * step).toFixed(1)} ${height}Z`;
      from = -1;
    }
  }
  return [stroke, fill];
}
