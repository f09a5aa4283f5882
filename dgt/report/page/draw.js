// Small tools: elements, numbers in words, scales and ticks.

const SVG = "http://www.w3.org/2000/svg";

/** make("p", {class: "hint"}, "text", child, ...); attributes starting with "on" are listeners. */
function make(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

const byId = (id) => document.getElementById(id);
const isNumber = (value) => typeof value === "number";

/** Four digits that mean something: 0.2855, 1,234, 3.1e-7, 12.4 M. */
function words(value, unit = "") {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  let text;
  if (value === 0) text = "0";
  else if (size >= 1e12 || size < 1e-4) text = value.toExponential(2).replace("e+", "e");
  else if (size >= 1e9) text = (value / 1e9).toPrecision(4) + " G";
  else if (size >= 1e6) text = (value / 1e6).toPrecision(4) + " M";
  else if (size >= 1e4) text = Math.round(value).toLocaleString("en");
  else text = String(Number(value.toPrecision(4)));
  return unit ? `${text} ${unit}` : text;
}

function range(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (isNumber(value)) { low = Math.min(low, value); high = Math.max(high, value); }
  }
  return low <= high ? [low, high] : null;
}

/** A function from [low, high] to [from, to]; logarithmic ones need low > 0. */
function scale(low, high, from, to, log = false) {
  const place = log ? Math.log : (value) => value;
  const span = place(high) - place(low) || 1;
  return (value) => from + (to - from) * (place(value) - place(low)) / span;
}

/** About so many round numbers between low and high. */
function ticks(low, high, count, log = false) {
  if (log) {
    const decades = Math.log10(high / low);
    const steps = decades > count ? [1] : decades > 1.2 ? [1, 3] : null;
    if (steps) {
      const found = [], every = Math.max(1, Math.ceil(decades / count));
      for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += every) {
        for (const step of steps) found.push(step * 10 ** power);
      }
      return found.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
    }
  }
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(Number((k * step).toPrecision(12)));
  return found;
}

// cividis: from dark blue to yellow, the same to colour-blind eyes and in grey print
const CIVIDIS = [[0, 34, 78], [53, 69, 108], [102, 105, 112], [148, 142, 119], [200, 184, 102], [254, 232, 56]];

function shade(share) {
  const place = Math.min(Math.max(share, 0), 1) * (CIVIDIS.length - 1);
  const k = Math.min(Math.floor(place), CIVIDIS.length - 2);
  return CIVIDIS[k].map((channel, c) => Math.round(channel + (place - k) * (CIVIDIS[k + 1][c] - channel)));
}

const css = ([red, green, blue]) => `rgb(${red} ${green} ${blue})`;
const inkOn = ([red, green, blue]) => (0.3 * red + 0.59 * green + 0.11 * blue > 128 ? "#111" : "#fff");

/** The index of the entry of a sorted list that is closest to a value. */
function nearest(sorted, value) {
  let low = 0, high = sorted.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle; else high = middle;
  }
  return Math.abs(sorted[high] - value) < Math.abs(sorted[low] - value) ? high : low;
}
