"""What the two texts of a hot module declare: its .py file, and the .pxd (or .pyx) file with its types."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]

# The names of a function's parameters, in order, and whether each has a default. A parameter that is not positional has
# its stars, or a "*" before it.
Parameters = list[tuple[str, bool]]


@dataclass
class Declared:
    """The functions and classes of one file.

    Attributes:
        functions: the parameters of each function and method ("Class.method") that Python code can call.
        internal: the same for those that only C code can call.
        visible: for each class, the fields that Python code can see.
        bases: for each class, the names of its bases.
    """

    functions: dict[str, Parameters] = field(default_factory=dict)
    internal: dict[str, Parameters] = field(default_factory=dict)
    visible: dict[str, set[str]] = field(default_factory=dict)
    bases: dict[str, list[str]] = field(default_factory=dict)


def differences(text: Declared, types: Declared, all_texts: list[Declared], all_types: list[Declared]) -> list[str]:
    """Return in which respects the .pxd file of a module differs from its text.

    Each is a parameter, a default or a field that Python code sees in one build and not in the other.

    Args:
        text: what the .py file declares.
        types: what the .pxd file declares.
        all_texts: the .py files of all hot modules, for the fields of bases.
        all_types: the .pxd files of all hot modules.
    """
    found = different_parameters(text, types.functions | types.internal)
    for cls in types.visible:
        ours, theirs = _with_bases(text, cls, all_texts), _with_bases(types, cls, all_types)
        found += [f"{cls}.{name}: the text has no such field" for name in theirs - ours]
        found += [f"{cls}.{name}: not public in the types" for name in ours - theirs if not name.startswith("_")]
    found += [f"{name}: cdef, so Python cannot call it" for name in types.internal if is_public(name)]
    return sorted(found)


def different_parameters(text: Declared, functions: dict[str, Parameters]) -> list[str]:
    """Return the functions whose parameters are not those of the text."""
    return [
        f"{name}: {parameters}, but in the text {text.functions.get(name)}"
        for name, parameters in functions.items()
        if parameters != text.functions.get(name)
    ]


def is_public(name: str) -> bool:
    """Return whether a function or method has a public name."""
    return not name.rpartition(".")[2].startswith("_")


def _with_bases(found: Declared, cls: str, library: list[Declared]) -> set[str]:
    """Return the fields of a class that Python code can see, with those that it inherits."""
    fields = set(found.visible[cls])
    for base in found.bases[cls]:
        homes = [each for each in (found, *library) if base in each.visible]
        fields |= _with_bases(homes[0], base, library) if homes else set()
    return fields


# --- Cython ------------------------------------------------------------------------------------------

CLASS = re.compile(r"cdef class (\w+)(?:\((\w+)\))?:")
FUNCTION = re.compile(r"(def|cpdef|cdef) [^(=]*?(\w+)\((.*)\)[^()]*$")
FIELD = re.compile(r"cdef (public |readonly )?[^(=:,]*?(\w+)$")


@cache
def of_cython(name: str, suffix: str = ".pxd") -> Declared:
    """Read what the .pxd or .pyx file of a module declares; nothing if there is no such file.

    Cython's own parser is not used, because it is not installed for the tests. So this reads only the style of these
    files: one field in a line, four spaces before the members of a class.
    """
    path = (ROOT / "ext/redlatch/_c" / name.replace(".", "/")).with_suffix(suffix)
    return read_cython(path.read_text()) if path.exists() else Declared()


def read_cython(text: str) -> Declared:
    found, owner = Declared(), None
    for line in _logical_lines(text):
        head = line.strip()
        indent = len(line) - len(line.lstrip())
        if indent == 0 and not head.startswith("@"):
            match = CLASS.match(head)
            owner = match[1] if match else None
            if match:
                found.bases[match[1]] = [match[2]] if match[2] else []
                found.visible[match[1]] = set()
                continue
        if indent != (4 if owner else 0):
            continue
        if match := FUNCTION.match(head):
            functions = found.internal if match[1] == "cdef" else found.functions
            functions[f"{owner}.{match[2]}" if owner else match[2]] = _cython_parameters(match[3])
        elif owner and (match := FIELD.match(head)):
            found.visible[owner] |= {match[2]} if match[1] else set()
        elif owner and head != "pass" and not head.startswith("@"):
            raise ValueError(f"{owner}: {head!r} is neither a function nor one field")
    return found


def _logical_lines(text: str) -> list[str]:
    """Return the lines without docstrings and comments; a line with an open bracket continues on the next one."""
    lines: list[str] = []
    for line in re.sub(r'"""(?s:.*?)"""', "", text).splitlines():
        line = line.partition("#")[0].rstrip()
        if lines and lines[-1].count("(") > lines[-1].count(")"):
            lines[-1] += " " + line.strip()
        elif line:
            lines.append(line)
    return lines


def _cython_parameters(text: str) -> Parameters:
    given = [each.strip() for each in text.split(",") if each.strip()]
    return [(each.partition("=")[0].removesuffix(" not None").split()[-1].lstrip("*"), "=" in each) for each in given]


# --- Python ------------------------------------------------------------------------------------------


@cache
def of_python(name: str) -> Declared:
    """Read what the .py file of a module declares."""
    return read_python((ROOT / "src/redlatch" / name.replace(".", "/")).with_suffix(".py").read_text())


def read_python(text: str) -> Declared:
    found = Declared()
    for node in ast.parse(text).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.functions[node.name] = _python_parameters(node.args)
        elif isinstance(node, ast.ClassDef):
            found.bases[node.name] = [base.id for base in node.bases if isinstance(base, ast.Name)]
            found.visible[node.name] = _fields(node)
            for member in node.body:
                if isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef)) and not _is_property(member):
                    found.functions[f"{node.name}.{member.name}"] = _python_parameters(member.args)
    return found


def _is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "property" for each in function.decorator_list)


def _python_parameters(given: ast.arguments) -> Parameters:
    places = [*given.posonlyargs, *given.args]
    first_default = len(places) - len(given.defaults)
    found = [(each.arg, place >= first_default) for place, each in enumerate(places)]
    if given.vararg:
        found.append((f"*{given.vararg.arg}", False))
    elif given.kwonlyargs:
        found.append(("*", False))
    found += [(each.arg, value is not None) for each, value in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    if given.kwarg:
        found.append((f"**{given.kwarg.arg}", False))
    return found


def _fields(node: ast.ClassDef) -> set[str]:
    """Return the names in the `__slots__` of a class, and those that its methods assign to `self`."""
    found = {
        inner.attr
        for inner in ast.walk(node)
        if isinstance(inner, ast.Attribute)
        and isinstance(inner.ctx, ast.Store)
        and isinstance(inner.value, ast.Name)
        and inner.value.id == "self"
    }
    for member in node.body:
        if isinstance(member, ast.Assign) and [ast.unparse(target) for target in member.targets] == ["__slots__"]:
            found |= set(ast.literal_eval(member.value))
    return found
