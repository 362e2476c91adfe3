"""The settings of Sphinx for the documentation site, which `make docs` builds into build/docs."""

import redlatch

project = "redlatch"
author = "The redlatch developers"
project_copyright = "The redlatch developers"
version = release = redlatch.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["conf.py"]

# Every reference must lead somewhere. `make docs` makes each warning an error.
nitpicky = True

# The anchors of headings are those of a code host, so "page.md#heading" works in both places.
myst_heading_anchors = 4

html_theme = "furo"
html_title = f"redlatch {release}"
html_show_copyright = False
html_copy_source = False
# A block without a language is output or a shell command.
highlight_language = "none"
