// A small live chart: lines of the last few minutes, and their newest values as text.

import { element } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const POINTS = 90;

export class Chart {
  /**
   * @param {string} title
   * @param {string[]} names Of at most three lines.
   * @param {(value: number) => string} format
   */
  constructor(title, names, format) {
    this.format = format;
    this.points = names.map(() => []);
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", `0 0 ${POINTS - 1} 100`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    this.lines = names.map((_, n) => {
      const line = document.createElementNS(SVG, "polyline");
      line.setAttribute("class", `line line${n}`);
      svg.append(line);
      return line;
    });
    this.values = names.map(() => element("dd", {}, "–"));
    const legend = names.map((name, n) => element("div", {}, element("dt", { class: `line${n}` }, name), this.values[n]));
    this.node = element("figure", {}, element("figcaption", {}, title), svg, element("dl", {}, ...legend));
  }

  /** Add the newest values; null where nothing happened. */
  add(values) {
    values.forEach((value, n) => {
      this.points[n].push(value);
      if (this.points[n].length > POINTS) this.points[n].shift();
      if (value !== null) this.values[n].textContent = this.format(value);
    });
    const most = Math.max(1e-9, ...this.points.flat().filter((value) => value !== null));
    this.lines.forEach((line, n) => {
      const points = this.points[n];
      const at = (value, x) => `${x + POINTS - points.length},${98 - (94 * value) / most}`;
      line.setAttribute("points", points.map((value, x) => (value === null ? "" : at(value, x))).join(" ").trim());
    });
  }
}
