"""What Sphinx does not see in the built pages: fails with a list, one line for each fault.

    python docs/_tools/check_site.py site

- a public name that no page documents;
- a link within the site to a page, a file or a heading that is not there;
- a picture, a script, a style sheet or a font from outside, or one that is not there.
"""

import inspect
import pathlib
import re
import sys
import urllib.parse
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser

import flowlin as fl

MODULES = (fl, fl.theory, fl.tasks, fl.measures, fl.plot)
LOADED = {"img", "script", "source", "iframe", "video"}
URL = re.compile(r"url\(\s*['\"]?([^'\")]+)")
OUTSIDE = re.compile(r"(?:https?:)?//")


def public_names() -> Iterator[str]:
    """The names that users see, modules aside, such as "flowlin.theory.modes"."""
    for module in MODULES:
        for name in dir(module):
            if not name.startswith("_") and not inspect.ismodule(getattr(module, name)):
                yield f"{module.__name__}.{name}"


def documented(site: pathlib.Path) -> set[str]:
    """The names in the inventory of the built pages."""
    # Four lines that say what it is, then compressed lines of "name domain:role ...".
    packed = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    return {line.split(" ")[0] for line in zlib.decompress(packed).decode().splitlines()}


class Page(HTMLParser):
    """What a page links to, what it loads, and what may be linked to in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = URL.findall(" ".join(re.findall(r"<style.*?</style>", text, re.S)))
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and given.get("rel") not in ("canonical", "author", "license"):
            self.loads.append(given["href"])
        if tag in LOADED and "src" in given:
            self.loads.append(given["src"])


def target(page: pathlib.Path, link: str) -> tuple[pathlib.Path, str]:
    """The file that a link on a page leads to, and the place in it; none of "#?a=b", a query."""
    path, _, fragment = link.partition("#")
    fragment = fragment.partition("?")[0]
    path = urllib.parse.unquote(path.split("?")[0])
    return ((page.parent / path).resolve() if path else page), urllib.parse.unquote(fragment)


def faults_of_page(file: pathlib.Path, pages: dict[pathlib.Path, Page]) -> Iterator[str]:
    """What is wrong with a page's links and with what it loads."""
    page = pages[file]
    for link in page.loads:
        if OUTSIDE.match(link):
            yield f"loads {link} from outside"
    for link in [*page.links, *page.loads]:
        if re.match(r"[a-z]+:|//", link):
            continue
        path, fragment = target(file, link)
        if not path.exists():
            yield f"{link} is not there"
        elif fragment and path in pages and fragment not in pages[path].ids:
            yield f"{link} has no such place"


def faults_of_style(file: pathlib.Path) -> Iterator[str]:
    """What is wrong with the fonts and pictures that a style sheet loads."""
    for link in URL.findall(file.read_text()):
        if link.startswith(("data:", "#")):
            continue
        if OUTSIDE.match(link) or not target(file, link)[0].exists():
            yield f"loads {link}, which is outside or is not there"


def faults(site: pathlib.Path) -> Iterator[str]:
    """Everything that is wrong with a built site."""
    known = documented(site)
    yield from (f"{name} is not documented" for name in public_names() if name not in known)
    pages = {path.resolve(): Page(path.read_text()) for path in site.rglob("*.html")}
    for file in sorted(pages):
        for fault in dict.fromkeys(faults_of_page(file, pages)):
            yield f"{file.relative_to(site.resolve())}: {fault}"
    for file in sorted(site.rglob("*.css")):
        yield from (f"{file.relative_to(site)}: {fault}" for fault in faults_of_style(file))


def main() -> int:
    """The command line."""
    found = list(faults(pathlib.Path(sys.argv[1])))
    print("\n".join([*found, f"{len(found)} faults in the built pages"]))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
