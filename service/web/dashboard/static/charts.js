// Draws the charts of a page from the data in their region, and again whenever the region changes.
"use strict";

(() => {
  const HEIGHT = 240;
  const SUPERSCRIPT = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
  let plots = [];
  let data = null;
  // Names of the charts whose tables the reader has opened.
  const opened = new Set();

  // Formats of figures
  const plain = (value) => value.toLocaleString("en-GB", { maximumFractionDigits: 1 });
  const power = (value) => `10${String(Math.round(Math.log10(value))).replace(/./g, (letter) => SUPERSCRIPT[letter])}`;
  function figure(value) {
    if (value === 0) return "0";
    if (value >= 1e-3 && value < 1e6) return Number(value.toPrecision(4)).toLocaleString("en-GB", { maximumSignificantDigits: 4 });
    const [mantissa, exponent] = value.toExponential(2).split("e");
    return `${mantissa} × ${power(Number(`1e${exponent}`))}`;
  }
  // A share as per cent, ppm or ppb, formatted as on the pages.
  function share(value) {
    if (value === 0 || value >= 1e-4) return `${figure(100 * value)}%`;
    if (value >= 1e-7) return `${Number((1e6 * value).toPrecision(3))} ppm`;
    return value >= 1e-12 ? `${Number((1e9 * value).toPrecision(3))} ppb` : figure(value);
  }
  function span(seconds) {
    if (seconds < 1) return `${plain(seconds * 1000)} ms`;
    if (seconds < 120) return `${plain(seconds)} s`;
    if (seconds < 7200) return `${plain(seconds / 60)} min`;
    if (seconds < 172_800) return `${plain(seconds / 3600)} h`;
    return `${plain(seconds / 86_400)} d`;
  }
  const moment = (seconds) => new Date(seconds * 1000).toISOString().slice(0, data.step === "day" ? 10 : 16).replace("T", " ");

  // Scales and axes
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const decade = (value, round) => 10 ** round(Math.log10(value) + (round === Math.ceil ? -1e-9 : 1e-9));
  function logScale(columns) {
    const values = columns.flat().filter((value) => value > 0);
    let low = decade(Math.min(...values), Math.floor), high = decade(Math.max(...values), Math.ceil);
    if (low >= high) { low /= 10; }
    return { low, high };
  }
  // Powers of ten for an axis, few enough to be legible.
  function powers(low, high) {
    const first = Math.round(Math.log10(low)), last = Math.round(Math.log10(high));
    const step = Math.max(1, Math.ceil((last - first) / 6));
    const found = [];
    for (let exponent = first; exponent <= last; exponent += step) found.push(10 ** exponent);
    return found;
  }
  const axis = (more) => ({
    stroke: colour("muted"), font: "12px system-ui, sans-serif",
    grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("grid"), width: 1, size: 5 }, ...more,
  });
  const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
  function day(seconds, step) {
    const date = new Date(seconds * 1000);
    const name = `${date.getUTCDate()} ${MONTHS[date.getUTCMonth()]}`;
    if (step >= 86_400) return name;
    const clock = date.toISOString().slice(11, 16);
    return clock === "00:00" ? name : clock;
  }
  const timeAxis = () => axis({ size: 32, space: 64, values: (_, splits, index, space, step) => splits.map((value) => day(value, step)) });
  // The whole chosen period, with room for both end points.
  function timeRange() {
    const time = data.start;
    const width = data.step === "day" ? 86_400 : 3600;
    return [time[0] - 0.6 * width, time.at(-1) + 0.6 * width];
  }
  const wholeAxis = () => axis({ size: (_, labels) => 20 + 7 * Math.max(4, ...(labels ?? []).map((label) => label.length)), incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 1e7], values: (_, splits) => splits.map((value) => value.toLocaleString("en-GB")) });
  const logAxis = (scale, words) => axis({ size: 66, splits: () => powers(scale.low, scale.high), filter: (_, splits) => splits, values: (_, splits) => splits.map(words) });
  const logY = (scale) => ({ distr: 3, range: () => [scale.low, scale.high] });
  function around(_, low, high) {
    if (low === null) return [0, 1];
    // Keep small changes of a large number small: the axis covers at least a twentieth of it, from a round number on.
    const room = Math.max(1, (high - low) * 0.1, (0.05 * high - (high - low)) / 2);
    const unit = 10 ** Math.max(0, Math.floor(Math.log10(2 * room)) - 1) * 5;
    return [Math.max(0, Math.floor((low - room) / unit) * unit), Math.ceil((high + room) / unit) * unit];
  }
  const upFromZero = (_, low, high) => [0, Math.max(4, Math.ceil((high ?? 0) * 1.1))];

  const dots = (size, fill) => ({ show: true, size, fill, width: 1.5 });
  // Mark single points while they are distinguishable.
  const few = (values) => values.filter((value) => value !== null).length <= 60;
  const line = (label, name, values, more) => ({ label, stroke: colour(name), width: 2, spanGaps: true, points: few(values) ? dots(7, colour("card")) : { show: false }, ...more });
  const mark = (label, name, filled) => ({ label, stroke: colour(name), paths: () => null, points: dots(8, filled ? colour(name) : colour("card")) });

  // One description per chart: columns, series, scales, axes, and the format of its figures.
  const CHARTS = {
    flow: () => {
      const time = data.start;
      const { received, completed, failed } = data.series;
      const bars = (share, most) => uPlot.paths.bars({ size: [share, most], radius: 0.1 });
      const any = failed.some(Boolean);
      return {
        columns: [time, ...[received, completed, ...(any ? [failed] : [])].map((column) => column.map((count) => count || null))],
        shown: [time, received, completed, ...(any ? [failed] : [])],
        series: [
          { label: "Received", stroke: colour("chart-1"), width: 1, fill: `${colour("chart-1")}33`, paths: bars(0.8, 40), points: { show: false } },
          { label: "Completed", stroke: colour("chart-1"), fill: colour("chart-1"), paths: bars(0.4, 20), points: { show: false } },
          ...(any ? [mark("Failed", "bad", true)] : []),
        ],
        y: { range: upFromZero }, axes: [timeAxis(), wholeAxis()], words: plain, empty: !received.some(Boolean) && !completed.some(Boolean) && !any,
      };
    },
    time: () => {
      const time = data.start;
      const { median_seconds_to_completed: median, p95_seconds_to_completed: p95 } = data.series;
      const scale = logScale([median, p95]);
      return {
        columns: [time, median, p95],
        series: [line("Median", "chart-1", median), line("95% within", "chart-2", p95, { dash: [6, 4] })],
        y: logY(scale), axes: [timeAxis(), logAxis(scale, span)], words: span,
      };
    },
    norms: () => {
      const before = data.norms.map((one) => one.before), after = data.norms.map((one) => one.after);
      const scale = logScale([before, after]);
      // A log axis has no place for 0, so it gets a line of its own, a decade and a half below the rest.
      const zero = scale.low / 10 ** 1.5;
      const placed = (values) => values.map((value) => (value === null ? null : Math.max(value, zero)));
      const order = data.norms.map((_, at) => at + 1);
      return {
        columns: [order, placed(before), placed(after)], shown: [order, before, after],
        series: [mark("Before", "chart-2", false), mark("After", "chart-1", true)],
        x: { time: false, range: () => [0.5, order.length + 0.5] }, y: { distr: 3, range: () => [zero / 2, scale.high * 1.3] },
        axes: [
          axis({ size: 32, incrs: [1, 2, 5, 10, 20, 50, 100], values: (_, splits) => splits.map((value) => (Number.isInteger(value) ? String(value) : "")) }),
          axis({ size: 66, splits: () => [zero, ...powers(scale.low, scale.high)], filter: (_, splits) => splits, values: (_, splits) => splits.map((value) => (value === zero ? "0" : power(value))) }),
        ],
        words: figure, slopes: true, at: (index) => `Request ${data.norms[index].id.slice(0, 8)}`,
      };
    },
    bound: () => {
      const time = data.start, bound = data.series.max_distance_bound_after_relative;
      const scale = logScale([bound]);
      const placed = bound.map((value) => (value === null ? null : Math.max(value, scale.low)));
      return { columns: [time, placed], shown: [time, bound], series: [line("Largest", "chart-1", bound)], y: logY(scale), axes: [timeAxis(), logAxis(scale, share)], words: share };
    },
    live: () => whole("Live nodes", "live_nodes"),
    rank: () => whole("Rank", "rank_after"),
  };
  function whole(label, name) {
    return {
      columns: [data.start, data.series[name]],
      series: [line(label, name === "rank_after" ? "chart-3" : "chart-1", data.series[name], { paths: uPlot.paths.stepped({ align: -1 }) })],
      y: { range: around }, axes: [timeAxis(), wholeAxis()], words: plain,
    };
  }

  // Drawing
  function draw(name, plot) {
    const chart = CHARTS[name]();
    const shown = chart.shown ?? chart.columns;
    const measured = shown.slice(1).some((column) => column.some((value) => value !== null));
    if (!measured || chart.empty) {
      empty(name, plot, name === "flow" ? "No request in this period." : "Nothing was measured in this period.");
      return;
    }
    plot.replaceChildren();
    const legend = document.querySelector(`[data-legend="${name}"]`);
    const last = shown[0].length - 1;
    const showLegend = (at) => writeLegend(legend, chart, shown, at ?? newest(shown, last), chart.at);
    const instance = new uPlot({
      width: Math.max(200, plot.clientWidth), height: HEIGHT, padding: [12, 26, 0, 0],
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1e3), "Etc/UTC"),
      legend: { show: false }, cursor: { y: false, drag: { x: false, y: false }, points: { size: 8 } },
      scales: { x: chart.x ?? { range: timeRange }, y: chart.y }, axes: chart.axes, series: [{}, ...chart.series],
      hooks: { setCursor: [(u) => showLegend(u.cursor.idx)], drawClear: chart.slopes ? [slopes] : [] },
    }, chart.columns, plot);
    showLegend(null);
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", `Chart. Newest: ${legend.textContent.trim()}. The same as a table follows.`);
    plots.push({ instance, plot });
  }

  function empty(name, plot, text) {
    const note = document.createElement("div");
    note.className = "empty";
    note.textContent = text;
    plot.replaceChildren(note);
    plot.removeAttribute("role");
    plot.removeAttribute("aria-label");
    document.querySelector(`[data-legend="${name}"]`).replaceChildren();
  }

  function newest(columns, last) {
    for (let at = last; at >= 0; at -= 1) if (columns.slice(1).some((column) => column[at] !== null)) return at;
    return last;
  }

  // A line from before to after, for each request.
  function slopes(u) {
    const { ctx } = u;
    ctx.save();
    ctx.strokeStyle = colour("muted");
    ctx.globalAlpha = u.data[0].length > 60 ? 0.25 : 0.45;
    ctx.lineWidth = devicePixelRatio;
    u.data[0].forEach((x, at) => {
      if (u.data[1][at] === null || u.data[2][at] === null) return;
      const left = u.valToPos(x, "x", true);
      ctx.beginPath();
      ctx.moveTo(left, u.valToPos(u.data[1][at], "y", true));
      ctx.lineTo(left, u.valToPos(u.data[2][at], "y", true));
      ctx.stroke();
    });
    ctx.restore();
  }

  function writeLegend(list, chart, columns, at, name) {
    const items = chart.series.map((series, number) => {
      const value = columns[number + 1][at];
      return item(series, value === null || value === undefined ? "–" : chart.words(value));
    });
    const when = document.createElement("li");
    when.textContent = name ? name(at) : moment(columns[0][at]);
    list.replaceChildren(when, ...items);
  }

  function item(series, text) {
    const entry = document.createElement("li");
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const shape = document.createElementNS("http://www.w3.org/2000/svg", "circle");
    for (const [key, value] of Object.entries({ width: 12, height: 12, "aria-hidden": "true" })) svg.setAttribute(key, value);
    const fill = series.fill ?? (series.points.show ? series.points.fill : series.stroke);
    for (const [key, value] of Object.entries({ cx: 6, cy: 6, r: 4.5, fill, stroke: series.stroke, "stroke-width": 1.5 })) shape.setAttribute(key, value);
    svg.append(shape);
    const value = document.createElement("b");
    value.textContent = text;
    entry.append(svg, `${series.label} `, value);
    return entry;
  }

  function drawAll() {
    const section = document.getElementById("charts");
    for (const { instance } of plots) instance.destroy();
    plots = [];
    data = JSON.parse(section.querySelector("[data-charts]").dataset.charts);
    for (const plot of section.querySelectorAll("[data-chart]")) draw(plot.dataset.chart, plot);
    for (const details of section.querySelectorAll("details")) {
      details.open = opened.has(details.dataset.name);
      details.ontoggle = () => opened[details.open ? "add" : "delete"](details.dataset.name);
    }
    section.dataset.drawn = "true";
  }

  document.addEventListener("DOMContentLoaded", () => {
    drawAll();
    document.body.addEventListener("htmx:afterSettle", (event) => { if (event.target.id === "charts") drawAll(); });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
    addEventListener("resize", () => {
      for (const { instance, plot } of plots) instance.setSize({ width: Math.max(200, plot.clientWidth), height: HEIGHT });
    });
  });
})();
