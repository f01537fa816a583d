// The search: pages that have all words of a query, best first, with their best parts, in excerpts.
// What it looks through, `search_data.js`, is written by `docs/_tools/search_index.py`.
(() => {
  "use strict";
  const MOST = 3; // parts shown of a page
  const AROUND = 110; // letters of an excerpt before and behind what was found

  const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  // A word's beginning, in any case; a plural finds the singular, and spaces find underscores.
  const pattern = (words) => {
    const stems = words.map((word) => escaped(word.replace(/(?<=..[^s])s$/, "")));
    return new RegExp(`(?<![\\p{L}\\p{N}*])${stems.join("s?[\\s_-]+")}`, "giu");
  };
  const count = (text, found) => (text.match(found) ?? []).length;

  // How well a part answers; zero if neither it nor its page has all words.
  const score = (part, page, words, phrase) => {
    const [, heading, said, code] = part;
    const text = `${said} ${code}`;
    const title = page.parts[0][1];
    const all = `${title} ${heading} ${text}`;
    if (!words.every((word) => all.search(pattern([word])) >= 0)) return 0;
    const whole = pattern(words);
    const name = heading.split(".").pop().replaceAll("_", " ").toLowerCase();
    let points =
      Math.min(count(said, whole), 5) +
      Math.min(count(code, whole), 2) / 2 +
      words.filter((word) => text.search(pattern([word])) >= 0).length;
    if (heading.search(whole) >= 0)
      points += 10 + (30 * phrase.length) / Math.max(heading.length, phrase.length);
    else if (words.every((word) => heading.search(pattern([word])) >= 0)) points += 10;
    if (name === phrase || heading.toLowerCase() === phrase) points += 30;
    if (part === page.parts[0]) points += 1;
    return points;
  };

  const search = (pages, words) => {
    if (!words.length) return [];
    const phrase = words.join(" ");
    const found = pages.map((page) => {
      const best = page.parts
        .map((part) => ({ part, points: score(part, page, words, phrase) }))
        .filter(({ points }) => points > 0)
        .sort((a, b) => b.points - a.points);
      const named = page.words.some(
        (word) => word.toLowerCase() === phrase || `${word.toLowerCase()}s` === phrase,
      );
      const more = Math.min(best.slice(1).reduce((sum, { points }) => sum + points, 0) / 10, 5);
      return { page, best, points: best.length ? best[0].points + more + 100 * named : 0 };
    });
    return found.filter(({ points }) => points > 0).sort((a, b) => b.points - a.points);
  };

  const element = (name, text = "", given = {}) =>
    Object.assign(document.createElement(name), { textContent: text }, given);

  // A paragraph around the first place where the words stand together, or one of them.
  const excerpt = (text, words) => {
    const place = [words, ...words.map((word) => [word])]
      .map((some) => text.search(pattern(some)))
      .find((at) => at >= 0);
    const near = Math.max(0, (place ?? 0) - AROUND);
    const start = near && text.indexOf(" ", near) + 1;
    const cut = start + 2 * AROUND < text.length;
    const end = cut ? text.lastIndexOf(" ", start + 2 * AROUND) : text.length;
    const shown = `${start ? "… " : ""}${text.slice(start, end)}${cut ? " …" : ""}`;
    const paragraph = element("p", "", { className: "context" });
    const marks = new RegExp(words.map((word) => pattern([word]).source).join("|"), "giu");
    let last = 0;
    for (const match of shown.matchAll(marks)) {
      paragraph.append(shown.slice(last, match.index), element("mark", match[0]));
      last = match.index + match[0].length;
    }
    paragraph.append(shown.slice(last));
    return paragraph;
  };

  const show = ({ page, best }, words) => {
    const item = element("li");
    const title = page.parts[0][1];
    const href = `${page.page}.html`;
    item.append(element("a", title, { href }), element("small", ` ${page.page}`));
    for (const {
      part: [anchor, heading, said, code],
    } of best.slice(0, MOST)) {
      if (heading !== title) item.append(element("p", "", { className: "part" }));
      if (heading !== title)
        item.lastChild.append(element("a", heading, { href: `${href}#${anchor}` }));
      const spoken = words.some((word) => said.search(pattern([word])) >= 0);
      if (said || code) item.append(excerpt(spoken || !code ? said : code, words));
    }
    return item;
  };

  const query = new URLSearchParams(location.search).get("q") ?? "";
  document.querySelectorAll('input[name="q"]').forEach((input) => (input.value = query));
  const words = query
    .toLowerCase()
    .split(/[\s,;:"'`()]+/)
    .filter(Boolean);
  const found = search(window.flowlinPages, words);
  const list = element("ul", "", { className: "search" });
  list.append(...found.map((one) => show(one, words)));
  document.getElementById("search-results").append(list);
  document.querySelector(".search-summary").textContent = !words.length
    ? "Type words into the field at the side; signs as in t* count."
    : found.length === 1
      ? `One page has all words of “${query}”.`
      : `${found.length} pages have all words of “${query}”.`;
})();
