// Draws the figures `.walk`: sides of all pairs of a unit and a sample over time, flow and descent.
// What it draws is in `walk_data.js`; `docs/_figures/walks.py` says how it is written.
(() => {
  "use strict";
  const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const NAMES = ["off", "sliding", "on"];
  const STARS = { open: "flow, open", closed: "flow, closed", descent: "descent" };
  const LEFT = 52; // of the planes and of the axis of time, in px
  const RIGHT = 12;
  const LEAST = 200; // width of a figure, in px

  const numbers = (text, width) => {
    const found = [];
    for (let k = 0; k < text.length; k += width) {
      let value = 0;
      for (let j = k; j < k + width; j += 1) value = 64 * value + DIGITS.indexOf(text[j]);
      found.push(value);
    }
    return found;
  };

  // A run as it is written, with `sides(tick)`, `gates[frame]` and curves of counts.
  const unpack = (run, frames, ticks, loss) => {
    const pairs = run.samples * run.units;
    const initial = numbers(run.initial, 1);
    const events = (run.events.length / 5) | 0;
    const times = numbers(run.events.slice(0, 3 * events), 3);
    const changes = numbers(run.events.slice(3 * events), 2);
    const sides = (tick) => {
      const now = Uint8Array.from(initial);
      for (let k = 0; k < events && times[k] <= tick; k += 1)
        now[(changes[k] / 3) | 0] = changes[k] % 3;
      return now;
    };
    const last = Math.round((run.descent[0] / run.end) * frames * ticks);
    const gates = [];
    let place = 0;
    for (let frame = 0; frame <= frames + 1; frame += 1) {
      const flow = sides(frame > frames ? last : frame * ticks);
      const on = flow.map((side) => (side === 2 ? 1 : 0));
      let bit = 0;
      for (let pair = 0; pair < pairs; pair += 1) {
        if (flow[pair] !== 1) continue;
        on[pair] = (DIGITS.indexOf(run.gates[place + ((bit / 6) | 0)]) >> (5 - (bit % 6))) & 1;
        bit += 1;
      }
      place += Math.ceil(bit / 6);
      const others = numbers(run.gates.slice(place, place + 2), 2)[0];
      numbers(run.gates.slice(place + 2, place + 2 + 2 * others), 2).forEach((pair) => {
        on[pair] = 1 - on[pair];
      });
      place += 2 + 2 * others;
      gates.push(on);
    }
    const curves = { open: [], closed: [] }; // [tick, units that are on for every sample]
    let previous = -1;
    [0, ...times].forEach((tick) => {
      if (tick === previous) return;
      previous = tick;
      const now = sides(tick);
      curves.open.push([tick, linear(run, now, 2).filter(Boolean).length]);
      curves.closed.push([tick, linear(run, now, 1).filter(Boolean).length]);
    });
    const losses = numbers(run.losses, 2).map((value) => value / loss);
    const [low, high] = [numbers(run.low, 2), numbers(run.high, 2)];
    return { ...run, sides, gates, curves, losses, low, high };
  };

  // Which units are at `least` or above for every sample.
  const linear = (run, sides, least) =>
    Array.from({ length: run.units }, (_, unit) => {
      for (let sample = 0; sample < run.samples; sample += 1)
        if (sides[sample * run.units + unit] < least) return false;
      return true;
    });

  const element = (name, given = {}, text = "") => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(given)) made.setAttribute(key, value);
    made.textContent = text;
    return made;
  };

  // A plane of cells, units along x and samples along y, with a row of marks above.
  class Plane {
    constructor(svg, run, width) {
      const cell = (width - LEFT - RIGHT) / run.units;
      const row = Math.min(14, Math.max(9, 112 / run.samples));
      const top = 12;
      const height = top + row * run.samples + 2;
      svg.replaceChildren();
      svg.setAttribute("height", height);
      this.cells = [];
      this.marks = Array.from({ length: run.units }, (_, unit) => {
        const x = LEFT + unit * cell;
        return svg.appendChild(
          element("rect", {
            x: x + 0.5,
            y: 1,
            width: Math.max(cell - 1, 1),
            height: 7,
            class: "none",
          }),
        );
      });
      for (let sample = 0; sample < run.samples; sample += 1)
        for (let unit = 0; unit < run.units; unit += 1) {
          const place = { x: LEFT + unit * cell, y: top + sample * row, width: cell, height: row };
          this.cells.push(svg.appendChild(element("rect", { ...place, class: "off" })));
        }
      svg.append(
        element("rect", {
          x: LEFT,
          y: top,
          width: cell * run.units,
          height: row * run.samples,
          class: "frame",
        }),
        element("text", { x: LEFT - 6, y: top + 10, class: "end" }, "1"),
        element("text", { x: LEFT - 6, y: top + row * run.samples - 1, class: "end" }, run.samples),
        element(
          "text",
          {
            transform: `translate(${LEFT - 26},${top + (row * run.samples) / 2}) rotate(-90)`,
            class: "middle",
          },
          "sample",
        ),
      );
    }

    show(classes, marks) {
      const set = (rect, name) =>
        rect.getAttribute("class") !== name && rect.setAttribute("class", name);
      this.cells.forEach((rect, k) => set(rect, classes[k]));
      this.marks.forEach((rect, k) => set(rect, marks[k]));
    }
  }

  // Shares of linear units over time, with every t*; below them the loss.
  class Timeline {
    constructor(svg, run, width, frames, ticks) {
      const [top, high, gap, low] = [16, 130, 14, 46];
      const bottom = top + high + gap + low;
      const x = (tick) => LEFT + (tick / (frames * ticks)) * (width - LEFT - RIGHT);
      const y = (count) => top + high * (1 - count / run.units);
      svg.replaceChildren();
      svg.setAttribute("height", bottom + 36);
      const add = (name, given, text) => svg.appendChild(element(name, given, text));
      const line = (x1, y1, x2, y2, name) => add("line", { x1, y1, x2, y2, class: name });
      const label = (at, height, text, name) =>
        add("text", { x: at, y: height, class: name }, text);
      [0, 0.5, 1].forEach((share) => {
        line(LEFT, y(share * run.units), width - RIGHT, y(share * run.units), "grid");
        label(LEFT - 6, y(share * run.units) + 4, share, "end");
      });
      const edge = (heights) =>
        heights.flatMap((count, k) => [
          [x(k * ticks), y(count)],
          [x((k + 1) * ticks), y(count)],
        ]);
      add("polygon", {
        points: [...edge(run.high), ...edge(run.low).reverse()].join(" "),
        class: "band",
      });
      for (const [name, curve] of Object.entries(run.curves)) {
        const steps = curve.map(([tick, count], k) =>
          k ? `H${x(tick)}V${y(count)}` : `M${x(tick)},${y(count)}`,
        );
        add("path", { d: `${steps.join("")}H${x(frames * ticks)}`, class: name });
      }
      for (const [name, turn] of [
        ["descent", 1],
        ["open", 1],
        ["closed", -1],
      ]) {
        const [at, share] = [
          x((run[name][0] / run.end) * frames * ticks),
          y(run[name][1] * run.units),
        ];
        line(at, share, at, top + high, `star ${name}`);
        add("path", {
          d: `M${at - 6},${share + 5 * turn}h12l-6,${-10 * turn}z`,
          class: `mark ${name}`,
        });
      }
      const floor = bottom;
      const fall = run.losses.map((share, k) => `${x(k * ticks)},${floor - low * share}`);
      line(LEFT, floor, width - RIGHT, floor, "axis");
      line(LEFT, top + high, width - RIGHT, top + high, "axis");
      add("polyline", { points: fall.join(" "), class: "loss" });
      label(LEFT - 6, floor - low + 8, run.start.toPrecision(2), "end");
      label(LEFT - 6, floor + 1, "0", "end");
      for (let t = 0; t <= run.end; t += 5) {
        line(
          x((t / run.end) * frames * ticks),
          floor,
          x((t / run.end) * frames * ticks),
          floor + 4,
          "axis",
        );
        label(x((t / run.end) * frames * ticks), floor + 17, t, "middle");
      }
      label((LEFT + width - RIGHT) / 2, floor + 32, "flow time t (units of τ)", "middle");
      const upright = (height, text) =>
        add("text", { transform: `translate(11,${height}) rotate(-90)`, class: "middle" }, text);
      upright(top + high / 2, "share of units");
      upright(floor - low / 2, "loss");
      this.cursor = line(0, top - 6, 0, floor, "cursor");
      this.place = x;
    }

    show(tick) {
      for (const end of ["x1", "x2"]) this.cursor.setAttribute(end, this.place(tick));
    }
  }

  class Figure {
    constructor(root, data) {
      this.root = root;
      this.data = data;
      this.form = root.querySelector("form");
      this.runs = new Map();
      this.wide = 0;
      this.tick = Math.round((data.runs[0].open[0] / data.runs[0].end) * data.frames * data.ticks);
      const named = (key) => [...new Set(data.runs.map((run) => run[key]))];
      for (const key of ["task", "c", "seed"])
        this.form[key].replaceChildren(...named(key).map((value) => new Option(value, value)));
      this.form.c.value = "1";
      this.form.time.max = data.frames;
      this.form.addEventListener("submit", (event) => event.preventDefault());
      this.form.addEventListener("input", (event) => {
        if (event.target === this.form.time) this.go(this.form.time.value * data.ticks);
        else this.build();
      });
      this.form.play.addEventListener("click", () => (this.timer ? this.stop() : this.play()));
      root
        .querySelectorAll("[data-star]")
        .forEach((button) =>
          button.addEventListener("click", () => this.goToStar(button.dataset.star)),
        );
      new ResizeObserver(() => this.build(true)).observe(root.querySelector(".walk-planes"));
      this.build();
      this.goToStar("open");
    }

    get run() {
      const { task, c, seed } = this.form;
      const found = this.data.runs.find(
        (run) => `${run.task},${run.c},${run.seed}` === `${task.value},${c.value},${seed.value}`,
      );
      if (!this.runs.has(found)) {
        const { frames, ticks, loss } = this.data;
        this.runs.set(found, unpack(found, frames, ticks, loss));
      }
      return this.runs.get(found);
    }

    build(resized = false) {
      // While a page is hidden or printed there may be hardly any width.
      const width = Math.max(this.root.querySelector(".walk-planes").clientWidth, LEAST);
      if (resized && width === this.wide) return;
      this.wide = width;
      const svg = (name) => this.root.querySelector(`svg.${name}`);
      this.flow = new Plane(svg("flow"), this.run, width);
      this.descent = new Plane(svg("descent"), this.run, width);
      this.timeline = new Timeline(
        svg("timeline"),
        this.run,
        width,
        this.data.frames,
        this.data.ticks,
      );
      for (const [name, text] of Object.entries(STARS)) {
        const [time] = this.run[name];
        this.root.querySelector(`[data-star="${name}"]`).textContent =
          `${text}: t* = ${time.toPrecision(3)}`;
      }
      this.go(this.tick, resized ? this.frame : undefined);
    }

    go(tick, frame = Math.floor(tick / this.data.ticks)) {
      const { run } = this;
      this.frame = frame;
      this.tick = tick;
      const sides = run.sides(tick);
      const gates = run.gates[frame];
      const [open, closed] = [linear(run, sides, 2), linear(run, sides, 1)];
      const mine = linear(run, gates, 1);
      const count = (units) => units.filter(Boolean).length;
      this.flow.show(
        [...sides].map((side) => NAMES[side]),
        open.map((yes, k) => (yes ? "open" : closed[k] ? "closed" : "none")),
      );
      this.descent.show(
        [...gates].map((gate) => NAMES[2 * gate]),
        mine.map((yes) => (yes ? "descent" : "none")),
      );
      this.timeline.show(tick);
      const t = (tick / this.data.ticks / this.data.frames) * run.end;
      const { time } = this.form;
      time.value = tick / this.data.ticks;
      const shown = {
        t: t.toFixed(2),
        loss: (run.losses[Math.floor(tick / this.data.ticks)] * run.start).toFixed(3),
        units: run.units,
        open: count(open),
        closed: count(closed),
        sliding: sides.filter((side) => side === 1).length,
        descent: count(mine),
      };
      this.root.querySelectorAll("[data-shown]").forEach((place) => {
        place.textContent = shown[place.dataset.shown];
      });
      time.setAttribute(
        "aria-valuetext",
        `t = ${shown.t}: of ${run.units} units ${shown.open} open, ${shown.closed} closed, ` +
          `${shown.descent} in descent`,
      );
    }

    goToStar(name) {
      const { frames, ticks } = this.data;
      const exact = (this.run[name][0] / this.run.end) * frames * ticks;
      this.stop();
      this.go(Math.ceil(exact), name === "descent" ? frames + 1 : undefined);
    }

    play() {
      const { frames, ticks } = this.data;
      if (this.tick >= frames * ticks) this.tick = 0;
      this.form.play.textContent = "Pause";
      this.timer = setInterval(() => {
        const next = Math.min(Math.floor(this.tick / ticks) + 1, frames);
        this.go(next * ticks);
        if (next === frames) this.stop();
      }, 80);
    }

    stop() {
      clearInterval(this.timer);
      this.timer = undefined;
      this.form.play.textContent = "Play";
    }
  }

  document.addEventListener("DOMContentLoaded", () =>
    document
      .querySelectorAll("figure.walk")
      .forEach((root) => new Figure(root, window.flowlinWalks)),
  );
})();
