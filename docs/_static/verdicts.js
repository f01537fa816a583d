// Shows those rows of the table of verdicts that have all words and are of the verdict, paper, kind.
document.addEventListener("DOMContentLoaded", () => {
  const form = document.querySelector("form.verdict-controls");
  if (!form) return;
  const rows = [...document.querySelectorAll("table.verdicts tbody tr")];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const show = () => {
    const words = form.words.value.toLowerCase().split(/\s+/);
    const verdict = form.verdict.value;
    const paper = form.paper.value;
    const kind = form.kind.value;
    let shown = 0;
    rows.forEach((row, k) => {
      row.hidden = !(
        words.every((word) => texts[k].includes(word)) &&
        (!verdict || row.dataset.verdict === verdict) &&
        (!paper || row.dataset.paper === paper) &&
        (!kind || row.dataset.kind === kind)
      );
      shown += !row.hidden;
    });
    form.querySelector("output").textContent = `${shown} of ${rows.length} rows`;
  };
  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  show();
});
