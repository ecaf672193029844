// The page of the service. Texts from elsewhere are only ever set as text.
"use strict";
const $ = (id) => document.getElementById(id);
const networks = { a: null, b: null };
// Numbers of the last calls: what arrives late must not replace what a later call has shown.
const calls = { show: 0, operators: 0 };

function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "rect", "line", "polyline"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") node.addEventListener("click", value);
    else node.setAttribute(name, value);
  }
  node.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return node;
}

function seconds(value) {
  for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["us", 1e-6]]) {
    if (value >= size || unit === "us") return `${Number((value / size).toPrecision(3))} ${unit}`;
  }
}
// A line does not end between a number and its unit.
const percent = (ratio) => `${(100 * ratio).toFixed(1)}\u00a0%`;
const date = (at) => (at ? new Date(1000 * at).toISOString().slice(0, 16).replace("T", " ") : "");
const isMeasured = (answer) => answer.source !== "prediction";

function headers(more = {}) {
  const key = $("key").value;
  return key ? { ...more, Authorization: `Bearer ${key}` } : more;
}

async function call(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: headers(options.headers) });
  } catch {
    throw new Error("The service does not answer.");
  }
  const content = await response.json();
  if (response.status === 401) $("key-field").hidden = false;
  if (!response.ok) throw new Error(content.error);
  return content;
}
const post = (path, body) =>
  call(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

function say(text, bad = false) {
  $("said").textContent = text;
  $("said").className = bad ? "bad" : "";
}

async function attempt(work) {
  try {
    await work();
  } catch (error) {
    say(error.message, true);
  }
}

async function read(slot, file) {
  say(`Reading ${file.name} …`);
  const found = await call(`v1/networks?name=${encodeURIComponent(file.name.slice(-200))}`, {
    method: "POST", headers: { "Content-Type": "application/octet-stream" }, body: file });
  networks[slot] = { ...found, answers: (await post("v1/compare", { key: found.key })).answers };
  say(`${file.name}: ${networks[slot].answers.length} platforms are known.`);
  await show();
}

async function refresh(slot) {
  const found = networks[slot];
  if (found) found.answers = (await post("v1/compare", { key: found.key })).answers;
}

function bar(answer, most) {
  const svg = make("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" });
  const at = (value) => Math.min(100, (100 * value) / most);
  const kind = isMeasured(answer) ? "measured" : "predicted";
  svg.append(make("rect", { class: `bar ${kind}`, x: 0, y: 2, width: at(answer.value), height: 6 }));
  svg.append(make("line", { class: "interval", "vector-effect": "non-scaling-stroke", x1: at(answer.low),
    x2: at(answer.high), y1: 5, y2: 5 }));
  return svg;
}

// Dots are lines without a length, so that they stay round however wide the picture is.
const dot = (x, y, kind) => make("line", { class: `dot ${kind}`, "vector-effect": "non-scaling-stroke",
  x1: x, x2: x, y1: y, y2: y });

function plot(points, label, limit = null) {
  const svg = make("svg", { class: "plot", viewBox: "0 0 100 30", preserveAspectRatio: "none", role: "img",
    "aria-label": label });
  const first = Math.min(...points.map(({ x }) => x)), span = Math.max(...points.map(({ x }) => x)) - first;
  const most = 1.1 * Math.max(...points.flatMap(({ y, before }) => [y, before ?? 0]), limit ?? 0) || 1;
  const across = (x) => (span ? 3 + (94 * (x - first)) / span : 50), up = (y) => 30 - (29 * y) / most;
  if (limit !== null) svg.append(make("line", { class: "limit", "vector-effect": "non-scaling-stroke", x1: 0, x2: 100,
    y1: up(limit), y2: up(limit) }));
  svg.append(make("polyline", { "vector-effect": "non-scaling-stroke",
    points: points.map(({ x, y }) => `${across(x)},${up(y)}`).join(" ") }));
  for (const { x, y, before, kind } of points) {
    if (before !== undefined) svg.append(dot(across(x), up(before), "ring"), dot(across(x), up(before), "hole"));
    svg.append(dot(across(x), up(y), kind));
  }
  return svg;
}

const counted = (count, thing) => `${count} ${thing}${count === 1 ? "" : "s"}`;

const row = (name, picture, text) => make("div", { class: "row" }, make("div", {}, name),
  make("div", { class: "bars" }, picture, make("div", { class: "figure" }, text)));

const KNOWS = { GraphPredictor: "networks", KernelPredictors: "kernels" };

// As the farm: a quarter longer than at best is another speed.
const DRIFTS = 1.25;

function driftOf({ platform, points, campaigns, slower }) {
  const last = points[points.length - 1];
  const text = `${seconds(last.reference)} on ${date(last.at)}, ${percent(slower - 1)} longer than at best, in ` +
    `${counted(campaigns, "campaign")} since ${date(points[0].at)}${slower > DRIFTS ? ": it drifts" : ""}`;
  const dots = points.map((point) => ({ x: point.at, y: point.slower, kind: point.slower > DRIFTS ? "bad" : "usual" }));
  return row(platform, plot(dots, `${platform}: ${text}`, DRIFTS), text);
}

function historyOf(name, versions) {
  const now = versions.find((item) => item.is_current) ?? versions[versions.length - 1];
  const text = `version ${now.number} has learned from ${now.n_networks}, and is off by ${percent(now.errors.all)} on ` +
    `${now.n_held_out} others; ${counted(versions.length, "version")} so far`;
  const dots = versions.map((item) => ({ x: item.n_records, y: item.errors.all, before: item.errors.before,
    kind: item.is_current ? "usual" : "old" }));
  return row(name, plot(dots, `${name}: ${text}`), text);
}

function orNothing(parts) {
  return parts.length ? parts : [make("p", {}, "There is nothing yet.")];
}

function told(answer) {
  const text = `${seconds(answer.value)} (${seconds(answer.low)} to ${seconds(answer.high)}), `;
  if (!isMeasured(answer)) return `${text}predicted by ${answer.predictor}`;
  const repeats = answer.repeatability === null ? "" : `, repeatability ${percent(answer.repeatability)}`;
  return `${text}measured ${date(answer.at)}${repeats}`;
}

// Those that are measured here come first.
async function knownPlatforms() {
  return (await all("v1/platforms")).sort((one, other) => other.measures - one.measures);
}

async function show() {
  const number = ++calls.show;
  const slots = Object.keys(networks).filter((slot) => networks[slot]);
  $("networks").replaceChildren(...slots.map((slot) => {
    const { name, operators, macs, params, key } = networks[slot];
    return make("p", {}, make("strong", {}, name), ` ${operators} operators, ${(macs / 1e6).toPrecision(3)} M ` +
      `multiply-adds, ${(params / 1e6).toPrecision(3)} M parameters, key ${key}`);
  }));
  const platforms = (await knownPlatforms()).filter(({ id, measures }) =>
    measures || slots.some((slot) => networks[slot].answers.some((answer) => answer.platform === id)));
  if (number !== calls.show) return;
  const answers = slots.flatMap((slot) => networks[slot].answers);
  const most = Math.max(...answers.map((answer) => answer.high), 0) || 1;
  $("chart").replaceChildren(...platforms.map(({ id, measures }) => {
    const bars = slots.flatMap((slot) => {
      const answer = networks[slot].answers.find(({ platform }) => platform === id);
      const name = slots.length > 1 ? `${networks[slot].name}: ` : "";
      const parts = answer ? [bar(answer, most), make("div", { class: "figure" }, name + told(answer))]
        : [make("div", { class: "figure" }, `${name}not known`)];
      if (measures && !(answer && isMeasured(answer))) {
        parts.push(make("button", { type: "button", onclick: () => attempt(() => measure(slot, id)) },
          slots.length > 1 ? `Measure ${networks[slot].name}` : "Measure"));
      }
      return parts;
    });
    return make("div", { class: "row" }, make("div", {}, id), make("div", { class: "bars" }, ...bars));
  }));
  $("chart-figure").hidden = !platforms.length;
  const asked = (await all("v1/predictors")).filter(({ kind }) => kind === "GraphPredictor");
  if (number !== calls.show) return;
  const explained = new Set(asked.flatMap((predictor) => predictor.platforms));
  showPlatforms(answers.map((answer) => answer.platform).filter((platform) => explained.has(platform)));
}

function showPlatforms(ids) {
  const select = $("operators-platform"), before = select.value;
  select.replaceChildren(...[...new Set(ids)].map((id) => make("option", {}, id)));
  if (ids.includes(before)) select.value = before;
  $("operators-part").hidden = !ids.length;
  if (ids.length) showOperators();
}

async function showOperators() {
  const platform = encodeURIComponent($("operators-platform").value), number = ++calls.operators;
  const parts = [];
  for (const found of Object.values(networks).filter(Boolean)) {
    try {
      const { operators } = await call(`v1/operators?key=${found.key}&platform=${platform}&most=10`);
      parts.push(table(["operator", "what", "latency", "share"], operators.map((item) =>
        [item.name, item.op_key, seconds(item.seconds), percent(item.share)]), found.name));
    } catch (error) {
      parts.push(make("p", {}, `${found.name}: ${error.message}`));
    }
  }
  if (number === calls.operators) $("operators").replaceChildren(...parts);
}

async function measure(slot, platform) {
  const { key, name } = networks[slot];
  const found = await post("v1/query", { key, platform, measure: "always" });
  if (found.job) await follow(found.job, name, platform);
  await refresh(slot);
  await show();
}

async function follow(job, name, platform) {
  const shown = make("progress", { max: 1, value: 0, "aria-label": `Measuring ${name} on ${platform}` });
  const part = make("div", {}, make("p", {}, `Measuring ${name} on ${platform}`), shown);
  $("measuring").append(part);
  try {
    const last = await events(job.id, (state) => { shown.value = state.progress; });
    if (last.state !== "done") throw new Error(last.error || `The measurement was ${last.state}.`);
    say(`${name} on ${platform}: ${told(last.answer)}`);
  } finally {
    part.remove();
  }
}

async function events(id, tell) {
  const response = await fetch(`v1/jobs/${encodeURIComponent(id)}/events`, { headers: headers() });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "", last = null;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return last || call(`v1/jobs/${encodeURIComponent(id)}`);
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      last = JSON.parse(part.split("\n").find((line) => line.startsWith("data: ")).slice(6));
      tell(last);
    }
  }
}

async function all(path) {
  const items = [];
  for (let offset = 0; offset !== null;) {
    const page = await call(`${path}?offset=${offset}`);
    items.push(...page.items);
    offset = page.next;
  }
  return items;
}

function table(titles, rows, caption = "") {
  const head = make("tr", {}, ...titles.map((title) => make("th", { scope: "col" }, title)));
  const isNumber = (cell) => /^\d[\d.e+-]* ?(us|ms|s|%)?$/.test(String(cell));
  const body = rows.map((row) => make("tr", {}, ...row.map((cell) =>
    make("td", { class: isNumber(cell ?? "") ? "number" : String(cell ?? "").length < 17 ? "short" : "" }, cell ?? ""))));
  const parts = [make("thead", {}, head), make("tbody", {}, ...body)];
  if (caption) parts.unshift(make("caption", {}, caption));
  return make("div", { class: "scroll" }, rows.length ? make("table", {}, ...parts) : make("p", {}, "There is nothing yet."));
}

let following = null;
async function records(more = false) {
  const section = $("records"), platform = $("records-platform");
  const words = new URLSearchParams({ limit: 50 });
  if (platform.value) words.set("platform", platform.value);
  if (more && following) words.set("after", following);
  const page = await call(`v1/records?${words}`);
  following = page.next;
  section.querySelector(".more").hidden = !following;
  const shown = table(["key", "platform", "kind", "measured (UTC)", "latency"], page.items.map((item) =>
    [item.digest, item.platform, item.kind, date(item.at), item.latency === null ? "" : seconds(item.latency)]));
  const list = section.querySelector(".list");
  if (more) list.append(shown); else list.replaceChildren(shown);
}

const pages = {
  ask: async () => {},
  platforms: async () => {
    $("platforms").querySelector(".list").replaceChildren(table(["platform", "measured here"],
      (await knownPlatforms()).map((item) => [item.id, item.measures ? "yes" : "no"])));
    const drifts = (await all("v1/drift")).filter(({ points }) => points.length);
    $("drift").replaceChildren(...orNothing(drifts.map(driftOf)));
    $("workers").replaceChildren(table(["worker", "platform", "state", "reference networks", "why"],
      (await all("v1/workers")).map((item) => [item.name, item.platform, item.state,
        `${percent(item.slower - 1)} longer than at best`, item.reason])));
  },
  records: async () => {
    const ids = (await all("v1/platforms")).map((item) => make("option", {}, item.id));
    $("records-platform").replaceChildren(make("option", { value: "" }, "all"), ...ids);
    await records();
  },
  jobs: async () => $("jobs").querySelector(".list").replaceChildren(table(
    ["network", "platform", "state", "begun (UTC)", "what came of it"], (await all("v1/jobs")).map((job) =>
      [job.name, job.platform, job.state, date(job.created), job.answer ? told(job.answer) : job.error]))),
  predictors: async () => {
    $("predictors").querySelector(".list").replaceChildren(table(["predictor", "of", "platforms"],
      (await all("v1/predictors")).map((item) => [item.name, KNOWS[item.kind] ?? item.kind, item.platforms.join(", ")])));
    const versions = await all("v1/predictors/versions"), names = [...new Set(versions.map(({ name }) => name))];
    $("history").replaceChildren(...orNothing(names.map((name) =>
      historyOf(name, versions.filter((item) => item.name === name)))));
    $("versions").replaceChildren(table(
      ["predictor", "version", "fitted (UTC)", "learned from", "error held out", "version before", "answers"],
      versions.map((item) => [item.name, item.number, date(item.at), item.n_networks, percent(item.errors.all),
        item.errors.before === undefined ? "" : percent(item.errors.before), item.is_current ? "yes" : "no"])));
  },
};

async function turn() {
  const name = location.hash.slice(1) in pages ? location.hash.slice(1) : "ask";
  for (const section of document.querySelectorAll("main > section")) section.hidden = section.id !== name;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  say("");
  await attempt(pages[name]);
}

for (const slot of ["a", "b"]) {
  const drop = $(`drop-${slot}`), file = $(`file-${slot}`);
  file.addEventListener("change", () => file.files.length && attempt(() => read(slot, file.files[0])));
  drop.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    if (event.dataTransfer.files.length) attempt(() => read(slot, event.dataTransfer.files[0]));
  });
}
$("operators-platform").addEventListener("change", showOperators);
$("records-platform").addEventListener("change", () => attempt(() => records()));
document.querySelector("#records .more").addEventListener("click", () => attempt(() => records(true)));
$("key").value = sessionStorage.getItem("key") || "";
$("key").addEventListener("change", () => { sessionStorage.setItem("key", $("key").value); attempt(turn); });
window.addEventListener("hashchange", turn);
turn();
