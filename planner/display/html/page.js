(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const text = (number) => data.texts[number];

  const scaled = (value, size, units, digits) => {
    let unit = 0;
    while (unit < units.length - 1 && value >= size - 0.05) { value /= size; unit += 1; }
    return `${unit === 0 ? Math.round(value) : digits(value)} ${units[unit]}`;
  };
  const bytes = (value) => scaled(value, 1000, ["B", "KB", "MB", "GB", "TB"], (v) => v.toFixed(2));
  const time = (value) => scaled(value, 1000, ["ns", "us", "ms", "s"], (v) => String(Number(v.toPrecision(3))));
  const number = (value) => value.toLocaleString("en-US");

  // Names are only ever set as text.
  const element = (tag, content, ...children) => {
    const made = document.createElement(tag);
    if (content) made.textContent = content;
    made.append(...children);
    return made;
  };

  const charts = new Map();

  class Chart {
    constructor(figure) {
      this.data = data.charts[figure.dataset.chart];
      this.plot = figure.querySelector(".plot");
      this.cursor = figure.querySelector(".cursor");
      this.readout = figure.querySelector(".readout");
      this.plot.addEventListener("pointermove", (event) => this.point(event));
      this.plot.addEventListener("pointerdown", (event) => this.point(event));
      this.plot.addEventListener("keydown", (event) => this.key(event));
      this.show(this.data.peak);
    }

    point(event) {
      const box = this.plot.getBoundingClientRect();
      this.show(Math.floor(((event.clientX - box.left) / box.width) * this.data.columns.length));
    }

    key(event) {
      const last = this.data.columns.length - 1;
      const page = Math.max(1, Math.round(last / 20));
      const to = {
        ArrowRight: this.at + 1, ArrowUp: this.at + 1, ArrowLeft: this.at - 1, ArrowDown: this.at - 1,
        PageUp: this.at + page, PageDown: this.at - page, Home: 0, End: last, p: this.data.peak,
      }[event.key];
      if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      this.show(to);
    }

    // The column that holds a step.
    find(step) {
      return this.data.columns.findIndex((column) => column[1] >= step);
    }

    show(column) {
      const { columns, kinds, count } = this.data;
      this.at = Math.min(columns.length - 1, Math.max(0, column));
      const [first, last, step, run, op, type, path, made, tensors, held] = columns[this.at];
      const total = held.reduce((sum, value) => sum + value, 0);
      const among = last > first ? `, the highest of ${number(first)} to ${number(last)}` : "";
      const where = `step ${number(step)} of ${number(count)}${among}: ${text(run)} of ${text(op)}`;
      this.cursor.hidden = false;
      this.cursor.style.left = `${(100 * (this.at + 0.5)) / columns.length}%`;
      this.plot.setAttribute("aria-valuenow", step);
      this.plot.setAttribute("aria-valuetext", `${where}, ${bytes(total)}`);
      const parts = element("ul");
      held.forEach((value, position) => {
        if (!value) return;
        const swatch = element("i");
        swatch.className = `k${kinds[position]}`;
        parts.append(element("li", "", swatch, `${data.kinds[kinds[position]]} ${bytes(value)}`));
      });
      const names = made.map(([name, size]) => `${text(name)} ${bytes(size)}`);
      if (tensors > made.length) names.push(`${tensors - made.length} more`);
      const verb = text(run) === "backward" ? "gradients given" : "tensors made";
      this.readout.replaceChildren(
        element("p", "", element("b", bytes(total)), ` at ${where} (${text(type)})`),
        parts,
        element("p", text(path) ? `module ${text(path)}` : ""),
        element("p", names.length ? `${verb}: ${names.join(", ")}` : ""),
      );
    }
  }

  for (const figure of document.querySelectorAll("[data-chart]")) charts.set(figure.dataset.chart, new Chart(figure));

  const MOST_HITS = 50;
  const fates = ["kept", "recomputed", "freed in the forward or after it"];
  const about = (...parts) => parts.filter(Boolean).join(", ");
  const entries = [
    ...data.ops.map(([name, type, path, step, forward, backward, runs]) => ({
      name: text(name), step, words: `${text(name)} ${text(type)} ${text(path)}`.toLowerCase(),
      about: () => about(`op ${text(type)}`, text(path), `step ${number(step)}`, `forward ${time(forward)}`,
        `backward ${time(backward)}`, runs ? `recomputed ${runs === 1 ? "once" : `${runs} times`}` : "not recomputed"),
    })),
    ...data.tensors.map(([name, size, fate, path, step]) => ({
      name: text(name), step, words: `${text(name)} ${text(path)}`.toLowerCase(),
      about: () => about("tensor", bytes(size), fates[fate], text(path), `made in step ${number(step)}`),
    })),
  ];
  const search = document.getElementById("search");
  const count = document.getElementById("count");
  const hits = document.getElementById("hits");
  const out = data.left_out ? ` ${number(data.left_out)} are not in this page: the smallest.` : "";

  const find = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = words.length ? entries.filter((entry) => words.every((word) => entry.words.includes(word))) : [];
    count.textContent = words.length
      ? `${number(found.length)} of ${number(entries.length)} ops and tensors` +
        (found.length > MOST_HITS ? `, the first ${MOST_HITS} are shown.` : ".") + out
      : "";
    hits.replaceChildren(...found.slice(0, MOST_HITS).map((entry) => {
      const button = element("button", "", element("span", entry.name), element("small", entry.about()));
      button.type = "button";
      button.addEventListener("click", () => go(entry.step));
      return element("li", "", button);
    }));
  };

  // Moves the plan's charts to a step and the eye to the one that is seen.
  const go = (step) => {
    for (const key of ["plan-total", "plan-activations"]) {
      const chart = charts.get(key);
      chart.show(chart.find(step));
      if (chart.plot.offsetParent) chart.plot.focus();
    }
  };

  search.addEventListener("input", find);
  search.addEventListener("keydown", (event) => {
    const first = hits.querySelector("button");
    if (event.key === "Enter" && first) first.click();
    if (event.key === "Escape") { search.value = ""; find(); }
  });
})();
