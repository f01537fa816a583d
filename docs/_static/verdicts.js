// Shows those cards of verdicts that have all words and are of the verdict, the paper and the kind.
// What is asked for is kept in the address, behind "#?", so that it can be linked to.
document.addEventListener("DOMContentLoaded", () => {
  const form = document.querySelector("form.verdict-controls");
  if (!form) return;
  const NAMES = ["words", "verdict", "paper", "kind"];
  const PLACE =
    /\b(fig|eq|sec|app|prop)(?:ure|uation|tion|endix|osition)?s?\.?\s*([a-z]?[\d.]*\d[a-z]?)/gi;
  const cards = [...document.querySelectorAll("article.verdict")];
  const texts = cards.map((card) => card.textContent);
  const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

  // "Fig. 3" is Fig. 3 and 3C, in "Fig. 2E, 3C" as well, and not Fig. 30. Other words are found
  // where one begins.
  const patterns = (typed) => {
    const query = typed.replace(/linearization times?/gi, "t*");
    const places = [...query.matchAll(PLACE)].map(
      ([, kind, number]) =>
        new RegExp(
          `\\b${kind}[a-z]*\\.?\\s*(?:[a-z\\d.]+(?:, | and ))*${escaped(number)}(?!\\.?\\d)`,
          "i",
        ),
    );
    const words = query
      .replace(PLACE, " ")
      .split(/[\s,;]+/)
      .filter(Boolean);
    return [
      ...places,
      ...words.map((word) => new RegExp(`(?<![\\p{L}\\p{N}])${escaped(word)}`, "iu")),
    ];
  };

  const show = () => {
    const wanted = patterns(form.words.value);
    let shown = 0;
    cards.forEach((card, k) => {
      card.hidden = !(
        wanted.every((pattern) => pattern.test(texts[k])) &&
        (!form.verdict.value || card.dataset.verdict === form.verdict.value) &&
        (!form.paper.value || card.dataset.paper === form.paper.value) &&
        (!form.kind.value || card.dataset.kind === form.kind.value)
      );
      shown += !card.hidden;
    });
    form.querySelector("output").textContent = `${shown} of ${cards.length} cards`;
  };

  const read = () => {
    if (location.hash && !location.hash.startsWith("#?")) {
      form.reset();
    } else {
      const asked = new URLSearchParams(location.hash.slice(2));
      for (const name of NAMES) form[name].value = asked.get(name) ?? "";
    }
    show();
  };

  form.addEventListener("input", () => {
    const asked = new URLSearchParams(
      NAMES.map((name) => [name, form[name].value]).filter(([, v]) => v),
    );
    history.replaceState(null, "", asked.size ? `#?${asked}` : "#");
    show();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("hashchange", () => {
    read();
    if (location.hash.startsWith("#?")) form.scrollIntoView();
  });
  read();
});
