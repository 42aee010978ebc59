"""Mutations of programs, with libcst: flags and what stands around them, in other shapes that are still Python."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar, cast

import libcst as cst

__all__ = ["ARCHS", "TREES", "TreeMutation"]

TreeMutation = Callable[[cst.Module, random.Random, Sequence[str]], "cst.Module | None"]
"""From a module, and other sources to take from, to another one; None where there is nothing to change."""

_Node = TypeVar("_Node", bound=cst.CSTNode)

ARCHS: Final = (
    *("50", "60", "61", "70", "72", "75", "80", "86", "87", "89", "90", "90a", "100", "100a", "100f", "103", "103a"),
    *("103f", "110", "120", "120a", "120f", "121"),
)
_ODD_ARCHS: Final = (*ARCHS, "13", "86a", "9.0", "999", "90b", "{n}", "XX")

_FLAG = re.compile(r"gencode|generate-code|gpu-architecture|arch|code=|sm_|compute_|std=")
_CODE = re.compile(r"(sm|compute|lto)_(\d+[af]?)")
_WRAPS: Final = (
    "if x:\n    HERE\n",
    "if x:\n    y = 1\nelse:\n    HERE\n",
    "if x:\n    y = 1\nelif z:\n    HERE\n",
    "if False:\n    HERE\n",
    "if torch.version.cuda >= '12.8':\n    # newer\n    HERE\n    # end\n",
    "try:\n    HERE\nexcept E:\n    y = 1\n",
    "try:\n    y = 1\nexcept E:\n    HERE\n",
    "try:\n    y = 1\nfinally:\n    HERE\n",
    "def f(flags=()):\n    HERE\n",
    "def f(flags=()):\n    'Docs.'\n    HERE\n    return flags\n",
    "async def f():\n    HERE\n",
    "class C(B):\n    HERE\n",
    "class Build(BuildExtension):\n    def build_extensions(self):\n        HERE\n        super().build_extensions()\n",
    "with open(x) as f:\n    HERE\n",
    "for n in range(3):\n    HERE\n",
    "while x:\n    HERE\n    break\n",
    "match x:\n    case 1:\n        HERE\n",
    "@d\ndef f():\n    HERE\n",
)
_AROUND_LITERAL: Final = (
    *("({0} if x else '')", "({0} if x else {0})", "(x and {0})", "(x or {0})", "({0})", "[{0}]", "({0},)", "str({0})"),
    *("{0}.strip()", "({0} + y)", "({0} + '')", "('%s' % {0})", "helper({0})", "print({0})", "(lambda: {0})"),
    *("(y := {0})", "'{{}}'.format({0})", "{0}.split(',')", "{{{0}: 1}}", "{{1: {0}}}", "x[{0}]", "(x == {0})"),
    "(  # why\n  {0}\n)",
)
_AROUND_LIST: Final = (
    *(
        "[{0}]",
        "({0} + [])",
        "([x] + {0})",
        "({0} + {0})",
        "list({0})",
        "tuple({0})",
        "[*{0}]",
        "(*{0},)",
        "sorted({0})",
    ),
    *("({0} if x else [])", "{0}[1:]", "{{'nvcc': {0}, 'cxx': []}}", "[y for y in {0}]", "' '.join({0})", "({0} * 2)"),
    *(
        "set({0})",
        "helper({0})",
        "(lambda: {0})()",
        "[{0}, {0}]",
        "dict(nvcc={0})",
        "f(*{0})",
        "os.environ.get('X', {0})",
    ),
    *("CUDAExtension('a', ['a.cu'], extra_compile_args={{'nvcc': {0}}})", "subprocess.run({0})", "(x or {0})"),
    *("({0} if x else {0})", "([] if x else {0})", "(y if {0} else x)", "('-O3', *{0}, *({0} if x else ()))"),
    *("sum([{0}, {0}], [])", "sum([[x], {0}], {0})", "itertools.chain({0}, [])", "chain.from_iterable([{0}, ({0})])"),
)
_BLANKS: Final = (" ", " ", "  ", "\n    ", "\t", " \n", "\r\n", " \\\n")
_SPLITS: Final = (
    "{0}.split()",
    "{0}.split()",
    "{0}.split(' ')",
    "{0}.split(',')",
    "shlex.split({0})",
    "({0}).split()[1:]",
)
_RECEIVERS: Final = ("g", "self.flags", 'args["nvcc"]', "args['nvcc']", "f()", "a.b.c", "(f)", "flags[0]")
_METHODS: Final = ("append", "extend", "remove", "add", "insert", "count", "push")
_NAMES: Final = (
    *("flags", "args", "load", "print", "list", "append", "extend", "setup", "subprocess", "os", "run", "x", "join"),
    *("COMMON_NVCC_FLAGS", "get_arch_list", "TORCH_CUDA_ARCH_LIST", "exec", "write", "_compile", "get", "split", "re"),
)
_COMMENTS: Final = ("# c", "#", "# -gencode arch=compute_80,code=sm_80", "# 'it's", "# noqa", "# \N{SNOWMAN}", '# """')
_QUOTES: Final = ('"', "'", '"""', "'''")
_PREFIXES: Final = ("", "", "r", "R", "u", "f", "b", "rb", "fr", "F")
_OPTIONS: Final = ("-gencode", "--generate-code", "-arch", "--gpu-architecture", "-code", "--gpu-code", "-march", "--x")


def _walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(reversed(current.children))


def _pick(module: cst.Module, rng: random.Random, kind: type[_Node], test: Callable[[_Node], bool]) -> _Node | None:
    found = [node for node in _walk(module) if isinstance(node, kind) and test(node)]
    return rng.choice(found) if found else None


def _literal(module: cst.Module, rng: random.Random) -> cst.SimpleString | None:
    """Pick a string that is no part of a concatenation: mostly one that has to do with archs."""
    any_of_them = rng.random() < 0.1
    parts = {id(part) for node in _walk(module) if isinstance(node, cst.ConcatenatedString) for part in node.children}

    def fits(node: cst.SimpleString) -> bool:
        return id(node) not in parts and (any_of_them or _FLAG.search(node.value) is not None)

    return _pick(module, rng, cst.SimpleString, fits)


def _sequence(module: cst.Module, rng: random.Random) -> cst.List | cst.Tuple | None:
    """Pick a list or tuple with a flag in it."""

    def holds_flags(node: cst.BaseExpression) -> bool:
        return isinstance(node, cst.List | cst.Tuple) and _FLAG.search(module.code_for_node(node)) is not None

    return cast("cst.List | cst.Tuple | None", _pick(module, rng, cst.BaseExpression, holds_flags))


def _block(module: cst.Module, rng: random.Random) -> cst.Module | cst.IndentedBlock | None:
    """Pick a block: mostly one in which a statement has a flag."""
    any_of_them = rng.random() < 0.2

    def fits(node: cst.CSTNode) -> bool:
        if not isinstance(node, cst.Module | cst.IndentedBlock) or not node.body:
            return False
        return any_of_them or any(_FLAG.search(module.code_for_node(line)) for line in node.body)

    return cast("cst.Module | cst.IndentedBlock | None", _pick(module, rng, cst.CSTNode, fits))


def _put(module: cst.Module, old: cst.CSTNode, new: cst.CSTNode) -> cst.Module:
    return cast("cst.Module", new if old is module else module.deep_replace(old, new))


def _place(
    block: cst.Module | cst.IndentedBlock, module: cst.Module, rng: random.Random
) -> tuple[list[cst.BaseStatement], int]:
    """Return the statements of a block and the index of one, mostly of one with a flag."""
    body = list(block.body)
    flags = [index for index, line in enumerate(body) if _FLAG.search(module.code_for_node(line))]
    return body, rng.choice(flags) if flags and rng.random() < 0.8 else rng.randrange(len(body))


def _wrap_statements(module: cst.Module, rng: random.Random, _: Sequence[str]) -> cst.Module | None:
    block = _block(module, rng)
    if block is None:
        return None
    body, index = _place(block, module, rng)
    count = rng.randint(1, 4)
    wrap = cst.parse_statement(rng.choice(_WRAPS))
    inside = [node for node in _walk(wrap) if isinstance(node, cst.IndentedBlock)]
    for suite in inside:
        at = [number for number, line in enumerate(suite.body) if _is_here(line)]
        if at:
            lines = [*suite.body[: at[0]], *body[index : index + count], *suite.body[at[0] + 1 :]]
            wrap = cast("cst.BaseCompoundStatement", wrap.deep_replace(suite, suite.with_changes(body=lines)))
    return _put(module, block, block.with_changes(body=[*body[:index], wrap, *body[index + count :]]))


def _is_here(line: cst.CSTNode) -> bool:
    match line:
        case cst.SimpleStatementLine(body=[cst.Expr(value=cst.Name(value="HERE"))]):
            return True
    return False


def _wrap_literal(module: cst.Module, rng: random.Random, _: Sequence[str]) -> cst.Module | None:
    node = _literal(module, rng)
    if node is None:
        return None
    return _put(module, node, cst.parse_expression(rng.choice(_AROUND_LITERAL).format(module.code_for_node(node))))


def _wrap_list(module: cst.Module, rng: random.Random, _: Sequence[str]) -> cst.Module | None:
    node = _sequence(module, rng)
    if node is None:
        return None
    return _put(module, node, cst.parse_expression(rng.choice(_AROUND_LIST).format(module.code_for_node(node))))


def _other_quotes(module: cst.Module, rng: random.Random, _: Sequence[str]) -> cst.Module | None:
    node = _literal(module, rng)
    if node is None:
        return None
    raw, quote = node.raw_value, rng.choice(_QUOTES)
    if quote in raw or raw.endswith(quote[0]) or ("\n" in raw and len(quote) == 1):
        return None
    return _put(module, node, cst.parse_expression(f"{rng.choice(_PREFIXES)}{quote}{raw}{quote}"))


def _escaped(module: cst.Module, rng: random.Random, _: Sequence[str]) -> cst.Module | None:
    node = _literal(module, rng)
    if node is None or not node.raw_value:
        return None
    raw, place = node.raw_value, rng.randrange(len(node.raw_value))
    new = rng.choice(
        (f"\\x{ord(raw[place]) % 256:02x}", "\\\n", "\\d", "\\N{DIGIT NINE}", "\\\\", f"\\{node.quote[0]}")
    )
    value = f"{node.prefix}{node.quote}{raw[:place]}{new}{raw[place + 1 :]}{node.quote}"
    return _put(module, node, cst.SimpleString(value))


def _concatenated(module: cst.Module, rng: random.Random, _: Sequence[str]) -> cst.Module | None:
    node = _literal(module, rng)
    if node is None:
        return None
    place = rng.randint(0, len(node.raw_value))
    parts = [
        f"{node.prefix}{node.quote}{part}{node.quote}" for part in (node.raw_value[:place], node.raw_value[place:])
    ]
    between = rng.choice((" ", "", "\n  ", "  # first half\n", " f'' ", " + ", "\n  + ", " + ''  # half\n + "))
    return _put(module, node, cst.parse_expression(f"({between.join(parts)})"))


def _placeholder(module: cst.Module, rng: random.Random, _: Sequence[str]) -> cst.Module | None:
    node = _literal(module, rng)
    if node is None or "b" in node.prefix.lower() or "u" in node.prefix.lower():
        return None
    raw, place = node.raw_value, rng.randint(0, len(node.raw_value))
    hole = rng.choice(("{x}", "{n!r}", "{{}}", "{x:>2}", "{n.y}"))
    return _put(module, node, cst.parse_expression(f"f{node.quote}{raw[:place]}{hole}{raw[place:]}{node.quote}"))


def _comments(module: cst.Module, rng: random.Random, _: Sequence[str]) -> cst.Module | None:
    """Put comments at the ends of lines, above statements and between elements."""
    share = rng.choice((0.1, 0.4, 0.9))

    class Add(cst.CSTTransformer):
        def leave_TrailingWhitespace(  # noqa: N802 - libcst's name
            self, _: cst.TrailingWhitespace, updated_node: cst.TrailingWhitespace
        ) -> cst.TrailingWhitespace:
            if rng.random() > share:
                return updated_node
            return updated_node.with_changes(comment=cst.Comment(rng.choice(_COMMENTS)))

        def leave_SimpleStatementLine(  # noqa: N802 - libcst's name
            self, _: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
        ) -> cst.SimpleStatementLine:
            if rng.random() > share:
                return updated_node
            above = cst.EmptyLine(indent=rng.random() < 0.8, comment=cst.Comment(rng.choice(_COMMENTS)))
            return updated_node.with_changes(leading_lines=[*updated_node.leading_lines, above])

        def leave_Element(self, _: cst.Element, updated_node: cst.Element) -> cst.Element:  # noqa: N802 - libcst's name
            if rng.random() > share or not isinstance(updated_node.comma, cst.Comma):
                return updated_node
            first = cst.TrailingWhitespace(comment=cst.Comment(rng.choice(_COMMENTS)))
            lines = [cst.EmptyLine(comment=cst.Comment(rng.choice(_COMMENTS)))] if rng.random() < 0.3 else []
            gap = cst.ParenthesizedWhitespace(first, lines, indent=True, last_line=cst.SimpleWhitespace("  "))
            return updated_node.with_changes(comma=updated_node.comma.with_changes(whitespace_after=gap))

    return module.visit(Add())


def _elements(module: cst.Module, rng: random.Random, _: Sequence[str]) -> cst.Module | None:
    """Duplicate, remove, orphan, swap or reverse the elements of a list of flags."""
    node = _sequence(module, rng)
    if node is None or not node.elements:
        return None
    elements = list(node.elements)
    index = rng.randrange(len(elements))
    match rng.randrange(5):
        case 0:
            elements[index:index] = [item.deep_clone() for item in elements[index : index + rng.randint(1, 2)]]
        case 1:
            del elements[index : index + rng.choice((1, 1, 2))]
        case 2:
            other = rng.randrange(len(elements))
            elements[index], elements[other] = elements[other], elements[index]
        case 3:
            elements.reverse()
        case _:
            elements.insert(index, cst.Element(cst.parse_expression(rng.choice(('"-O3"', "x", "f'{x}'", "None", "1")))))
    if isinstance(node, cst.Tuple) and not elements:
        return None
    return _put(module, node, node.with_changes(elements=elements))


def _statements(module: cst.Module, rng: random.Random, _: Sequence[str]) -> cst.Module | None:
    """Duplicate, remove or swap statements."""
    block = _block(module, rng)
    if block is None:
        return None
    body, index = _place(block, module, rng)
    match rng.randrange(4):
        case 0:
            body[index:index] = [line.deep_clone() for line in body[index : index + rng.randint(1, 2)]]
        case 1 | 2:
            del body[index : index + rng.choice((1, 1, 2, 3))]
        case _:
            other = rng.randrange(len(body))
            body[index], body[other] = body[other], body[index]
    return _put(module, block, block.with_changes(body=body))


def _alone(module: cst.Module, rng: random.Random, _: Sequence[str]) -> cst.Module | None:
    """Keep a few statements of a module only: most fixtures have several shapes, and the worst one decides."""
    flags = [line for line in module.body if _FLAG.search(module.code_for_node(line))]
    if not flags:
        return None
    chosen = {id(line) for line in rng.sample(flags, min(len(flags), rng.randint(1, 2)))}
    return module.with_changes(body=[line for line in module.body if id(line) in chosen or rng.random() < 0.3])


def _renamed(module: cst.Module, rng: random.Random, _: Sequence[str]) -> cst.Module | None:
    node = _pick(module, rng, cst.Name, lambda _: True)
    if node is None:
        return None
    return _put(module, node, node.with_changes(value=rng.choice(_NAMES)))


def _other_archs(module: cst.Module, rng: random.Random, _: Sequence[str]) -> cst.Module | None:
    """Put other archs into literals: with suffixes, PTX, several codes, and some that do not exist."""
    archs = _ODD_ARCHS if rng.random() < 0.1 else ARCHS
    for _number in range(rng.randint(1, 4)):
        node = _pick(module, rng, cst.SimpleString, lambda node: _CODE.search(node.value) is not None)
        if node is None:
            return None
        arch = rng.choice(archs)
        codes = (f"sm_{arch}", f"compute_{arch}", f"[sm_{arch},compute_{arch}]", f"[sm_{arch},sm_{rng.choice(ARCHS)}]")
        value = _CODE.sub(lambda match: f"{match[1]}_{arch}", node.value)  # noqa: B023 - used at once
        if rng.random() < 0.4:
            value = re.sub(r"code=sm_\w+", f"code={rng.choice(codes)}", value)
        module = _put(module, node, node.with_changes(value=value))
    return module


def _receivers(module: cst.Module, rng: random.Random, _: Sequence[str]) -> cst.Module | None:
    node = _pick(module, rng, cst.Attribute, lambda node: node.attr.value in ("append", "extend"))
    if node is None:
        return None
    if rng.random() < 0.6:
        receiver = rng.choice(_RECEIVERS)
        old = module.code_for_node(node.value)
        whole = re.sub(rf"(?<![\w.]){re.escape(old)}(?=\.(?:append|extend)\()", lambda _: receiver, module.code)
        return (
            cst.parse_module(whole) if rng.random() < 0.5 else _put(module, node.value, cst.parse_expression(receiver))
        )
    return _put(module, node, node.with_changes(attr=cst.Name(rng.choice(_METHODS))))


def _appended(module: cst.Module, rng: random.Random, _: Sequence[str]) -> cst.Module | None:
    """Append the elements of a list one by one, or insert them, in statements of their own behind it."""
    block = _block(module, rng)
    node = _sequence(module, rng)
    if block is None or node is None:
        return None
    body, index = _place(block, module, rng)
    words = [module.code_for_node(element.value) for element in node.elements if isinstance(element, cst.Element)]
    call = rng.choice(("append(", "append(", "insert(0, "))
    lines = [
        cst.parse_statement(f"flags.{call}{word})\n") for word in (words if call == "append(" else reversed(words))
    ]
    return _put(module, block, block.with_changes(body=[*body[: index + 1], *lines, *body[index + 1 :]]))


def _split(module: cst.Module, rng: random.Random, _: Sequence[str]) -> cst.Module | None:
    """Have the elements of a list split from one literal."""
    node = _sequence(module, rng)
    if node is None:
        return None
    words = [element.value.raw_value for element in node.elements if isinstance(element.value, cst.SimpleString)]
    blank, quote = rng.choice(_BLANKS), rng.choice(_QUOTES)
    around = rng.choice(("", "", blank))
    text = (
        around + "".join(word + rng.choice((blank, blank, " ")) for word in words[:-1]) + "".join(words[-1:]) + around
    )
    if len(quote) == 1 and "\n" in text.replace("\\\n", ""):
        quote *= 3
    literal = f"{rng.choice(('', '', 'r', 'u'))}{quote}{text}{quote}"
    return _put(module, node, cst.parse_expression(rng.choice(_SPLITS).format(literal)))


def _looped(module: cst.Module, rng: random.Random, _: Sequence[str]) -> cst.Module | None:
    """Add the elements of a list two by two, in a loop of their own behind it."""
    block = _block(module, rng)
    node = _sequence(module, rng)
    if block is None or node is None:
        return None
    body, index = _place(block, module, rng)
    words = [module.code_for_node(element.value) for element in node.elements]
    pairs = [f"[{', '.join(words[start : start + 2])}]" for start in range(0, len(words), 2)]
    add = rng.choice(("f += pair", "f += pair", "f.extend(pair)", "f.append(pair)", "f += pair; n += 1"))
    opening, closing = rng.choice(("[]", "()", "  "))
    loop = cst.parse_statement(f"for pair in {opening}{', '.join(pairs)},{closing}:\n    {add}\n")
    return _put(module, block, block.with_changes(body=[*body[: index + 1], loop, *body[index + 1 :]]))


def _joined_lines(module: cst.Module, rng: random.Random, _: Sequence[str]) -> cst.Module | None:
    """Put statements onto one line, or behind the colon of an `if`."""
    block = _block(module, rng)
    if block is None:
        return None
    body, index = _place(block, module, rng)
    run = body[index : index + rng.randint(1, 4)]
    simple = [line for line in run if isinstance(line, cst.SimpleStatementLine)]
    if not simple or len(simple) < len(run):
        return None
    parts = [part.with_changes(semicolon=cst.MaybeSentinel.DEFAULT) for line in simple for part in line.body]
    joined: cst.BaseStatement = simple[0].with_changes(body=parts)
    if rng.random() < 0.4:
        joined = cst.If(test=cst.Name("x"), body=cst.SimpleStatementSuite(parts), leading_lines=simple[0].leading_lines)
    return _put(module, block, block.with_changes(body=[*body[:index], joined, *body[index + len(run) :]]))


def _other_layout(module: cst.Module, rng: random.Random, _: Sequence[str]) -> cst.Module | None:
    """Lay a list out anew: on one line, one element a line, a few a line, with and without a last comma."""
    node = _sequence(module, rng)
    if node is None or not node.elements:
        return None
    words = [module.code_for_node(element.with_changes(comma=cst.MaybeSentinel.DEFAULT)) for element in node.elements]
    before, between, after = rng.choice(
        (
            ("", ",", ""),
            (" ", " , ", " "),
            ("\n    ", ",\n    ", "\n"),
            ("\n    ", ",\n    ", ",\n"),
            ("\n    ", ",  # c\n    ", ",  # c\n"),
            ("  # c\n    ", ",\n\n    # c\n    ", "\n    # c\n"),
            ("\n", ", ", ",\n"),
            ("", ",\n  ", ""),
            ("\n    ", "\n    , ", "\n"),
            ("", ", \\\n  ", ""),
        )
    )
    text = before + "".join(
        word + (rng.choice((between, between, between, ", ")) if index < len(words) - 1 else after)
        for index, word in enumerate(words)
    )
    opening, closing = ("[", "]") if isinstance(node, cst.List) or len(words) < 2 else ("(", ")")
    return _put(module, node, cst.parse_expression(f"{opening}{text}{closing}"))


def _other_spelling(module: cst.Module, rng: random.Random, _: Sequence[str]) -> cst.Module | None:
    """Write a flag in two words instead of one, in one instead of two, or with another option."""
    node = _sequence(module, rng)
    if node is None:
        return None
    code = module.code_for_node(node)
    match rng.randrange(4):
        case 0:
            new = re.sub(r"-gencode=", '-gencode", "', code, count=rng.choice((0, 1)))
        case 1:
            new = re.sub(r"""(["'])-gencode\1,\s*\1""", r"\1-gencode=", code, count=rng.choice((0, 1)))
        case 2:
            new = re.sub(r"""(?<=["'])--?[a-z-]+(?=["'=])""", rng.choice(_OPTIONS), code, count=rng.choice((0, 1)))
        case _:
            new = re.sub(r"-gencode=arch=compute_\w+,code=sm_", "-arch=sm_", code, count=rng.choice((0, 1)))
    return _put(module, node, cst.parse_expression(new))


def _transplanted(module: cst.Module, rng: random.Random, others: Sequence[str]) -> cst.Module | None:
    """Put statements of another file into this one."""
    other = cst.parse_module(rng.choice(others))
    block = _block(module, rng)
    if block is None or not other.body:
        return None
    lines, start = _place(other, other, rng)
    body, index = _place(block, module, rng)
    new = [*body[:index], *lines[start : start + rng.randint(1, 3)], *body[index:]]
    return _put(module, block, block.with_changes(body=new))


TREES: Final[dict[str, TreeMutation]] = {
    "statements wrapped": _wrap_statements,
    "literal wrapped": _wrap_literal,
    "list wrapped": _wrap_list,
    "other quotes": _other_quotes,
    "escaped": _escaped,
    "concatenated": _concatenated,
    "placeholder": _placeholder,
    "comments added": _comments,
    "elements moved": _elements,
    "statements moved": _statements,
    "few statements": _alone,
    "renamed": _renamed,
    "other archs": _other_archs,
    "other receiver": _receivers,
    "appended": _appended,
    "split": _split,
    "looped": _looped,
    "lines joined": _joined_lines,
    "other layout": _other_layout,
    "other spelling": _other_spelling,
    "transplanted": _transplanted,
}
