// Runs the script of a report under node, with as much of a document as it uses, and prints what a user would see.
// Usage: node page_dom.js PAGE WORDS
"use strict";
const { readFileSync } = require("node:fs");
const { runInNewContext } = require("node:vm");

class Element {
  constructor(tag) { Object.assign(this, { tag, children: [], listeners: {}, attributes: {}, style: {}, dataset: {}, value: "" }); }
  get textContent() { return this.children.map((c) => (typeof c === "string" ? c : c.textContent)).join(""); }
  set textContent(text) { this.children = [String(text)]; }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  addEventListener(name, run) { this.listeners[name] = run; }
  click() { this.listeners.click(); }
  focus() {}
  getBoundingClientRect() { return { left: 0, width: 100 }; }
  querySelector(selector) { return this.parts?.[selector] ?? this.find(selector); }
  find(tag) {
    for (const child of this.children) {
      if (typeof child === "string") continue;
      const found = child.tag === tag ? child : child.find(tag);
      if (found) return found;
    }
    return null;
  }
}

const [page, words] = process.argv.slice(2);
const html = readFileSync(page, "utf-8");
const [, json] = html.match(/<script type="application\/json" id="data">([^]*?)<\/script>/);
const [, script] = html.match(/<script>([^]*?)<\/script>/);
const figures = [...html.matchAll(/data-chart="([^"]*)"/g)].map(([, key]) => {
  const figure = new Element("figure");
  figure.dataset.chart = key;
  figure.parts = { ".plot": new Element("div"), ".cursor": new Element("i"), ".readout": new Element("div") };
  return figure;
});
const ids = { data: new Element("script"), search: new Element("input"), count: new Element("p"), hits: new Element("ul") };
ids.data.textContent = json;
const document = {
  getElementById: (id) => ids[id],
  querySelectorAll: () => figures,
  createElement: (tag) => new Element(tag),
};
runInNewContext(script, { document });

const { ".plot": plot, ".readout": readout } = figures[0].parts;
const press = (key) => { plot.listeners.keydown({ key, preventDefault() {} }); return plot.attributes["aria-valuetext"]; };
const seen = { charts: figures.map((figure) => figure.dataset.chart), peak: plot.attributes["aria-valuetext"] };
seen.home = press("Home");
seen.right = press("ArrowRight");
seen.left = press("ArrowLeft");
seen.end = press("End");
seen.p = press("p");
plot.listeners.pointermove({ clientX: 0 });
seen.pointed = readout.textContent;
ids.search.value = words;
ids.search.listeners.input();
seen.count = ids.count.textContent;
seen.hit = ids.hits.querySelector("button")?.textContent ?? "";
press("End");
ids.search.listeners.keydown({ key: "Enter" });
seen.found = readout.textContent;
console.log(JSON.stringify(seen));
