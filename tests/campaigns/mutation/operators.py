"""Small breaks of a source file, one at a time: what a slip of the pen would do to it.

What lives here: which breaks there are and how one is applied to a syntax tree. What does not:
which tests should see them (``table``), running those (``run``).

Left alone: annotations, decorators, docstrings, imports, and all that only words an error.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_ORDER: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_TWINS = {
    "min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum",
    "maximum": "minimum", "amin": "amax", "amax": "amin", "argmin": "argmax", "argmax": "argmin",
    "floor": "ceil", "ceil": "floor", "startswith": "endswith", "endswith": "startswith",
    "log2": "log", "cumsum": "sum", "union": "intersection",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """One break: the node it changes, by its number in ``ast.walk``, and how.

    ``key`` names it without a line number, so that it keeps its name while code moves.
    """

    key: str
    first_line: int
    last_line: int
    in_function: bool
    node: int
    change: int

    def rank(self, seed: str) -> str:
        """Return a number, as text, that orders mutants at random but always the same way."""
        return hashlib.sha256(f"{seed} {self.key}".encode()).hexdigest()


def mutants_of(source: str) -> list[Mutant]:
    """Return every break of a file, in order, each with a name of its own."""
    tree = ast.parse(source)
    where = {id(node): number for number, node in enumerate(ast.walk(tree))}
    found: list[Mutant] = []
    names: dict[str, int] = {}
    for node, path, in_function in _sites(tree, "", in_function=False):
        for change, (label, _) in enumerate(_changes(node)):
            key = f"{path or 'module'}: {label}"
            names[key] = names.get(key, 0) + 1
            key += f" #{names[key]}" if names[key] > 1 else ""
            line, last = node.lineno, node.end_lineno or node.lineno  # type: ignore[attr-defined]
            if isinstance(node, ast.If | ast.While | ast.IfExp):
                line, last = node.test.lineno, node.test.end_lineno or node.test.lineno
            found.append(Mutant(key, line, last, in_function, where[id(node)], change))
    return found


def broken(source: str, mutant: Mutant) -> ast.Module:
    """Return the syntax tree of the file with this one break in it."""
    tree = ast.parse(source)
    target = next(node for number, node in enumerate(ast.walk(tree)) if number == mutant.node)
    made = _changes(target)[mutant.change][1]()

    class Put(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return ast.copy_location(made, node) if node is target else self.generic_visit(node)

    return ast.fix_missing_locations(Put().visit(tree))


def _sites(node: ast.AST, path: str, *, in_function: bool) -> Iterator[tuple[ast.AST, str, bool]]:
    """Yield the nodes that may be changed, with the name of the function around each."""
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        yield node, path, in_function
        return
    if isinstance(node, ast.Call) and _wording(node):
        return
    if _is_docstring(node) or _is_skipped(node):
        return
    if hasattr(node, "lineno"):
        yield node, path, in_function
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params", "bases"):
            continue
        if isinstance(node, ast.AnnAssign | ast.Assign) and _is_alias(node):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST):
                continue
            inner, deep = path, in_function
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inner = f"{path}.{child.name}".lstrip(".")
            if name == "body" and isinstance(node, ast.FunctionDef | ast.Lambda):
                deep = True
            yield from _sites(child, inner, in_function=deep)


def _changes(node: ast.AST) -> list[tuple[str, Callable[[], ast.AST]]]:
    """Return what can be done to a node: how to call it, and the node to put in its place."""
    made = list(_of_expression(node)) if isinstance(node, ast.expr) else list(_of_statement(node))
    return [(label, lambda new=new: new) for label, new in made]  # type: ignore[misc]


def _of_statement(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.If | ast.While):
        yield from _of_test(node, "if" if isinstance(node, ast.If) else "while")
    elif isinstance(node, ast.Raise):
        yield f"drop {_text(node)}", ast.Pass()
    elif isinstance(node, ast.Break):
        yield "break → continue", ast.Continue()
    elif isinstance(node, ast.Continue):
        yield "continue → break", ast.Break()
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield f"{_text(node)} → return None", ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield f"drop {_text(node)}", ast.Pass()
    elif isinstance(node, ast.AugAssign):
        yield f"drop {_text(node)}", ast.Pass()
        if type(node.op) in _ARITHMETIC:
            new = _with(node, op=_ARITHMETIC[type(node.op)]())
            yield f"{_text(node)} → {_text(new)}", new
    elif isinstance(node, ast.comprehension):
        return


def _of_expression(node: ast.expr) -> Iterator[tuple[str, ast.AST]]:
    before = _text(node)
    for new in _new_expressions(node):
        yield f"{before} → {_text(new)}", new
    if isinstance(node, ast.IfExp):
        yield from _of_test(node, "if")
    elif isinstance(node, ast.Call) and _name_of(node) not in ("field", "cast", "Option"):
        for at, keyword in enumerate(node.keywords):
            if keyword.arg is not None:
                rest = node.keywords[:at] + node.keywords[at + 1 :]
                label = f"drop {keyword.arg}={_text(keyword.value)} of {_text(node.func)}()"
                yield label, _with(node, keywords=rest)


def _new_expressions(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Compare):
        for at, operator in enumerate(node.ops):
            for other in _ORDER[type(operator)]:
                yield _with(node, ops=[*node.ops[:at], other(), *node.ops[at + 1 :]])
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        if not _is_text(node.left) and not _is_text(node.right):
            yield _with(node, op=_ARITHMETIC[type(node.op)]())
    elif isinstance(node, ast.BoolOp):
        yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        for at in range(len(node.values)):
            rest = node.values[:at] + node.values[at + 1 :]
            yield rest[0] if len(rest) == 1 else _with(node, values=rest)
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
        yield node.operand
    elif isinstance(node, ast.Constant):
        yield from _new_constants(node.value)
    elif isinstance(node, ast.Call):
        name = _name_of(node)
        if name in _TWINS and isinstance(node.func, ast.Attribute | ast.Name):
            field = "attr" if isinstance(node.func, ast.Attribute) else "id"
            yield _with(node, func=_with(node.func, **{field: _TWINS[name]}))
        if name == "sorted" and not node.keywords:
            yield _with(node, func=ast.Name("list", ast.Load()))
    elif isinstance(node, ast.Slice):
        if node.lower is not None:
            yield _with(node, lower=None)
        if node.upper is not None:
            yield _with(node, upper=None)
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
        for at, part in enumerate(node.generators):
            if part.ifs:
                rest = [*node.generators]
                rest[at] = _with(part, ifs=[])
                yield _with(node, generators=rest)


def _new_constants(value: object) -> Iterator[ast.expr]:
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield ast.Constant(value + 1)
        yield ast.Constant(value - 1)
    elif isinstance(value, float):
        yield ast.Constant(value * 2 if value else 1.0)


def _of_test(node: ast.If | ast.While | ast.IfExp, word: str) -> Iterator[tuple[str, ast.AST]]:
    """The condition always holds, or never; a loop that never ends is left to the others."""
    text = _text(node.test)
    if not isinstance(node, ast.While):
        yield f"{word} {text} → {word} True", _with(node, test=ast.Constant(True))
    yield f"{word} {text} → {word} False", _with(node, test=ast.Constant(False))


def _with(node: ast.AST, **fields: object) -> ast.AST:  # type: ignore[misc]
    old = {name: getattr(node, name) for name in node._fields if hasattr(node, name)}
    return ast.copy_location(type(node)(**{**old, **fields}), node)


def _text(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 90 else f"{text[:60]}…{text[-29:]}"


def _name_of(node: ast.Call) -> str:
    func = node.func
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")


def _wording(node: ast.Call) -> bool:
    """Whether a call only makes an error or a message: its words are not under test here."""
    name = _name_of(node)
    return name.endswith(("Error", "Warning")) or name in ("TypeVar", "getLogger", "cast", "warn")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_skipped(node: ast.AST) -> bool:
    """Whether a block is for type checkers, or for a script: that is run as a file of its own."""
    names = ("TYPE_CHECKING", "__name__ == '__main__'")
    return isinstance(node, ast.If) and ast.unparse(node.test) in names


def _is_alias(node: ast.AnnAssign | ast.Assign) -> bool:
    """Whether a statement names a type: ``__all__`` and aliases are no behaviour."""
    target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
    value = node.value
    return (
        (isinstance(target, ast.Name) and target.id == "__all__")
        or (isinstance(node, ast.AnnAssign) and "TypeAlias" in ast.unparse(node.annotation))
        or (
            isinstance(value, ast.Subscript)
            and _text(value).startswith(("Callable[", "Annotated["))
        )
    )
