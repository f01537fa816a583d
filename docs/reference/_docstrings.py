"""A Sphinx extension: docstrings are Markdown, and signatures read as they stand in the source.

The docstrings that autodoc finds are read by MyST, as the pages are. What they name in backticks,
as in `fl.StepClock` or `Solution.error`, becomes a link where the reference has it. Annotations are
the source's, `Float[Array, "P H"]` and not what Python makes of it; what only runs make, such as a
`Trajectory`, is shown without the signature of its constructor.
"""

import ast
import functools
import inspect
import re
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from docutils import nodes
from docutils.utils import new_document
from myst_parser.sphinx_ import Parser
from sphinx import addnodes
from sphinx.util.docutils import SphinxDirective

import flowlin as fl

ROOMS = ("", "theory", "tasks", "measures", "plot")


@functools.cache
def public() -> dict[str, dict[str, Any]]:
    """By room, "" for `flowlin` itself, the public names and what they are."""
    found = {}
    for room in ROOMS:
        module = getattr(fl, room) if room else fl
        things = {name: getattr(module, name) for name in dir(module) if name[0] != "_"}
        found[room] = {k: v for k, v in things.items() if not isinstance(v, ModuleType)}
    return found


@functools.cache
def derived() -> list[str]:
    """Modules and classes behind the public ones whose docstrings are a derivation, shown too."""
    page = Path(__file__).with_name("derivations.md").read_text()
    return re.findall(r"<!-- \.\. auto\w+:: (\S+)", page)


@functools.cache
def targets(home: str) -> dict[str, str]:
    """What docstrings of a room write in backticks, and the full name of what is meant by it.

    Bare names of functions count with an underscore only: `loss` and `modes` are arguments too.
    """
    found = {name: name for name in derived()}
    for room, things in sorted(public().items(), key=lambda item: item[0] == home):
        for name, thing in things.items():
            path = f"{room}.{name}".lstrip(".")
            whole = f"flowlin.{path}"
            bare = inspect.isclass(thing) or ("_" in name and room in ("", home))
            words = {path, f"fl.{path}", whole} - ({name} if not bare else set())
            found |= dict.fromkeys(words | ({name} if bare else set()), whole)
            if inspect.isclass(thing):
                methods = [k for k, v in vars(thing).items() if k[0] != "_" and inspect.getdoc(v)]
                found |= {f"{name}.{method}": f"{whole}.{method}" for method in methods}
    return found


class MarkdownDocstring(SphinxDirective):
    """What autodoc is given in place of a docstring: its Markdown, as this directive's content."""

    has_content = True
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The docstring's nodes, with links."""
        source, _ = self.get_source_info()
        document = new_document(source, self.state.document.settings)
        Parser().parse("\n".join(self.content), document)
        known = targets(self.arguments[0].strip("-"))
        for literal in list(document.findall(nodes.literal)):
            if whole := known.get(literal.astext().removesuffix("()")):
                link = addnodes.pending_xref(
                    "", refdomain="py", reftype="obj", reftarget=whole, refexplicit=True,
                    refdoc=self.env.docname, refwarn=True,
                )  # fmt: skip
                literal.replace_self(link)
                link += literal
        link_lead_paper(document, self.env.docname)
        return document.children


def link_lead_paper(document: nodes.Element, page: str) -> None:
    """Lead from the words "lead paper" to its entry among the references."""
    for text in list(document.findall(nodes.Text)):
        if isinstance(text.parent, (nodes.literal, nodes.literal_block, nodes.reference)):
            continue
        parts: list[nodes.Node] = []
        for k, part in enumerate(re.split(r"([Ll]ead\s+paper)", text.astext())):
            if k % 2:
                link = addnodes.pending_xref(
                    "", nodes.inline("", part, classes=["std", "std-ref"]), refdomain="std",
                    reftype="ref", reftarget="lead-paper", refexplicit=True, refdoc=page,
                    refwarn=True,
                )  # fmt: skip
                parts.append(link)
            elif part:
                parts.append(nodes.Text(part))
        if len(parts) > 1:
            text.parent.replace(text, parts)


def docstring(app, what, name, thing, options, lines) -> None:
    """Hand a docstring on as Markdown."""
    if not any(lines):
        return
    room = name.split(".")[1] if name.split(".")[1] in ROOMS else ""
    content = [f"   {line}" for line in lines]
    lines[:] = [f".. markdown-docstring:: -{room}", "", *content, ""]


class Annotations(ast.NodeTransformer):
    """Annotations as they are shown: public names with links, shapes without padding, no TypeVars.

    - `names`: what a function's module knows.
    """

    def __init__(self, names: dict[str, Any]):
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """A public class by its full name, of which the last part is shown."""
        if isinstance(self.names.get(node.id), TypeVar):
            return ast.Name("Self")
        whole = targets("").get(node.id)
        return node if whole is None else ast.parse(f"~{whole}", mode="eval").body

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        """A quoted name without quotes, a shape without padding."""
        if isinstance(node.value, str) and node.value in targets(""):
            return self.visit_Name(ast.Name(node.value))
        return ast.Constant(node.value.strip() if isinstance(node.value, str) else node.value)


def shown(annotation: ast.expr | None, names: dict[str, Any]) -> ast.expr | None:
    """An annotation of the source as it is shown."""
    return annotation and Annotations(names).visit(annotation)


def source(thing: Any) -> Any:
    """The syntax tree of a function or a class."""
    return ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(thing)))).body[0]


def of_function(function: Any, bound: bool) -> tuple[str, str | None]:
    """Its arguments and what it returns, as in the source; without `self` where it is bound."""
    tree, names = source(function), inspect.unwrap(function).__globals__
    for node in ast.walk(tree.args):
        if isinstance(node, ast.arg):
            node.annotation = shown(node.annotation, names)
    static = any(ast.unparse(one) == "staticmethod" for one in tree.decorator_list)
    if bound and not static:
        del (tree.args.posonlyargs or tree.args.args)[0]
    returns = tree.returns and ast.unparse(shown(tree.returns, names))
    return f"({ast.unparse(tree.args)})", returns


def of_class(kind: type) -> str:
    """The arguments of its constructor, written out or a dataclass's; nothing for results."""
    if "**Arguments:**" not in (inspect.getdoc(kind) or ""):
        return ""
    body = source(kind).body
    if any(isinstance(node, ast.FunctionDef) and node.name == "__init__" for node in body):
        return of_function(vars(kind)["__init__"], bound=True)[0]
    fields = {ast.unparse(n.target): n for n in body if isinstance(n, ast.AnnAssign)}
    texts = []
    for parameter in inspect.signature(kind).parameters.values():
        node = fields[parameter.name]
        if parameter.kind == parameter.KEYWORD_ONLY and "*" not in texts:
            texts.append("*")
        text = f"{parameter.name}: {ast.unparse(shown(node.annotation, {}))}"
        value = node.value
        if isinstance(value, ast.Call):  # eqx.field(default=...)
            value = next((word.value for word in value.keywords if word.arg == "default"), value)
        required = parameter.default is parameter.empty
        texts.append(text if required else f"{text} = {ast.unparse(value)}")
    return f"({', '.join(texts)})"


def signature(app, what, name, thing, options, arguments, returns):
    """That of a function, a method or a class as in the source; none where autodoc has none."""
    if arguments is None:
        return None
    if what in ("class", "exception"):
        return of_class(thing), None
    if what in ("function", "method"):
        return of_function(thing, bound=what == "method")
    return None


def short_arrays(app, document) -> None:
    """The one annotation that autodoc takes from the running Python, a property's, cut short."""
    for name in document.findall(addnodes.desc_signature):
        for text in list(name.findall(nodes.Text)):
            if text.startswith("jaxlib._jax."):
                text.parent.replace(text, nodes.Text(text.removeprefix("jaxlib._jax.")))


def setup(app) -> dict[str, Any]:
    """Enter the extension."""
    app.add_directive("markdown-docstring", MarkdownDocstring)
    app.connect("autodoc-process-docstring", docstring)
    app.connect("autodoc-process-signature", signature)
    app.connect("doctree-read", short_arrays)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
