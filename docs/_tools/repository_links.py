"""A relative link from a page to a file of the repository that is no page hands out that file.

So such a link works on a code host as well as on the built pages.
"""

import pathlib
import re

from sphinx.application import Sphinx

LINK = re.compile(r"(?<!!)(\[[^][]*\]\()((?!\w+:)[^)#\s]+)\)")


def hand_out(app: Sphinx, page: str, content: list[str]) -> None:
    """Mark the links of a page that lead to a file outside of `docs`, or to one that draws."""
    docs = pathlib.Path(app.srcdir).resolve()

    def mark(match: re.Match[str]) -> str:
        path = (docs / page).parent.joinpath(match[2]).resolve()
        page_like = path.is_relative_to(docs) and not path.is_relative_to(docs / "_figures")
        return f"{match[1]}path:{match[2]})" if path.is_file() and not page_like else match[0]

    content[0] = LINK.sub(mark, content[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's door."""
    app.connect("source-read", hand_out)
    return {"parallel_read_safe": True}
