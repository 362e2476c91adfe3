"""The settings of Sphinx for the documentation site, which `make docs` builds into build/docs."""

import re
from typing import Any

import redlatch

project = "redlatch"
version = release = redlatch.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["conf.py"]

# Every reference must lead somewhere. `make docs` makes each warning an error.
nitpicky = True
nitpick_ignore_regex = [
    # Other projects, whose inventories a build without a network cannot read.
    ("py:class", r"(asyncio|collections|redis|threading)\..*"),
    # What all locks have in common has no entry of its own.
    ("py:class", r"redlatch\.locks\..*"),
]

# The anchors of headings are those of a code host, so "page.md#heading" works in both places.
myst_heading_anchors = 4

# The options of `make linkcheck`. A site may be slow, or refuse for a moment.
linkcheck_timeout = 20
linkcheck_retries = 3
linkcheck_workers = 2

# Messages keep their quotes and dots, so that a search finds them as they are in a log.
smartquotes = False

# A block without a language is output or a shell command.
highlight_language = "none"

autodoc_class_signature = "mixed"
autodoc_member_order = "bysource"
napoleon_use_ivar = True
python_display_short_literal_types = True
# A longer signature gets a line for each argument.
maximum_signature_line_length = 100

html_theme = "furo"
html_title = f"redlatch {release}"
html_show_copyright = False
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["tables.css"]

IN_BACKTICKS = re.compile(r"(?<![`:])`([^`]+)`(?!`)")


def link_names(app: Any, what: str, name: str, described: Any, options: Any, lines: list[str]) -> None:
    """Make links of those names in backticks of a docstring that are public, and code of all others."""
    owner = name.split(".")[1]

    def link(found: re.Match[str]) -> str:
        word = found[1]
        for path in (word, f"{owner}.{word}"):
            first, _, member = path.partition(".")
            if first in redlatch.__all__ and (not member or callable(getattr(getattr(redlatch, first), member, None))):
                return f":py:obj:`{word} <redlatch.{path}>`"
        return f"``{word}``"

    lines[:] = [IN_BACKTICKS.sub(link, line) for line in lines]


def find_public(app: Any, env: Any, node: Any, content: Any) -> Any:
    """Resolve the name that a public class has in its own module: it is documented under the package's name."""
    module, _, name = node.get("reftarget", "").rpartition(".")
    if module.startswith("redlatch.") and name in redlatch.__all__:
        domain = env.get_domain("py")
        return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", f"redlatch.{name}", node, content)
    return None


def setup(app: Any) -> None:
    """Sphinx calls this."""
    app.connect("autodoc-process-docstring", link_names)
    app.connect("missing-reference", find_public)
