"""Imports go downward only; each heavy library has one importer; only the command line prints or exits."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "archpatch"

#: A unit is a folder or a module at the top of the package; a higher level may import any lower one.
LEVELS = {
    "errors": 0,
    "arch": 1,
    "rewrite": 2,
    "recipes": 2,
    "wheels": 2,
    "storage": 2,
    "builder": 3,
    "wheelhouse": 3,
    "kernel_cache": 4,
    "config_readers": 4,
    "config": 5,
    "crew": 4,
    "jobs": 5,
    "keys": 6,
    "making": 6,
    "pipeline": 7,
    "nox": 8,
    "cli": 8,
    "__init__": 9,
    "__main__": 10,
}

#: Library -> the units that may import it.
IMPORTERS = {"libcst": {"rewrite"}, "click": {"cli", "__main__"}, "rich": {"cli", "__main__"}}

MAY_PRINT = {"cli", "__main__"}
PRINT_OR_EXIT = {"print", "exit", "quit", "sys.exit", "os._exit", "SystemExit"}


@dataclass(frozen=True)
class Module:
    """One source file: its unit, its dotted parts below the root, and its tree."""

    path: Path
    root: Path
    unit: str
    parts: tuple[str, ...]
    tree: ast.Module

    @classmethod
    def read(cls, path: Path, root: Path) -> Module:
        parts = path.relative_to(root).with_suffix("").parts
        return cls(path, root, parts[0], parts, ast.parse(path.read_bytes()))

    def at(self, node: ast.AST, message: str) -> str:
        return f"{self.path.relative_to(self.root.parent)}:{getattr(node, 'lineno', 0)}: {message}"


def imported(module: Module) -> Iterator[tuple[ast.AST, str]]:
    """Yield every dotted name that a module imports, also inside functions; `from a import b` yields `a.b`."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # For a package's __init__ as for a module, one dot is the folder that the file is in.
            base = [module.root.name, *module.parts[: len(module.parts) - node.level]] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node, f"{prefix}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from ((node, arg.value) for arg in node.args[:1] if is_text(arg))


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def unit_of(name: str, root: Path) -> str | None:
    """Return the unit of `root` that the dotted `name` lies in, None for what is outside of it."""
    first, *rest = name.split(".")
    if first != root.name:
        return None
    # The version is a constant of the package itself, and everyone may record it.
    if rest == ["__version__"]:
        return None
    is_unit = bool(rest) and ((root / rest[0]).is_dir() or (root / f"{rest[0]}.py").is_file())
    return rest[0] if is_unit else "__init__"


def wrong_imports(module: Module) -> Iterator[str]:
    level = LEVELS[module.unit]
    for node, name in imported(module):
        library = name.split(".")[0]
        if module.unit not in IMPORTERS.get(library, {module.unit}):
            yield module.at(node, f"{module.unit} imports {library}")
        unit = unit_of(name, module.root)
        if unit is not None and unit != module.unit and LEVELS.get(unit, -1) >= level:
            yield module.at(node, f"{module.unit} imports {unit}")


def is_main_guard(node: ast.AST) -> bool:
    """Whether this is `if __name__ == "__main__":`, the part of a script that another interpreter runs."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"


def library_nodes(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        if not is_main_guard(child):
            yield from library_nodes(child)


def prints_and_exits(module: Module) -> Iterator[str]:
    if module.unit in MAY_PRINT:
        return
    for node in library_nodes(module.tree):
        names: list[str] = []
        if isinstance(node, ast.Call):
            names = [ast.unparse(node.func)]
        elif isinstance(node, ast.Raise) and node.exc is not None:
            names = [ast.unparse(node.exc)]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (module.at(node, f"{module.unit} calls {name}") for name in names if name in PRINT_OR_EXIT)


def violations(root: Path) -> list[str]:
    """Return every breach of the rules under the package folder `root`, as `file:line: what`."""
    found: list[str] = []
    for path in sorted(root.rglob("*.py")):
        module = Module.read(path, root)
        if module.unit not in LEVELS:
            found.append(module.at(module.tree, f"{module.unit} has no level: give it one in LEVELS"))
            continue
        found += [*wrong_imports(module), *prints_and_exits(module)]
    return found


def test_archpatch_keeps_its_layers() -> None:
    assert len(list(PACKAGE.rglob("*.py"))) > 10
    assert violations(PACKAGE) == []


def write_tree(root: Path, sources: dict[str, str]) -> Path:
    """Write a package with every unit, empty except for `sources`."""
    package = root / "house"
    modules = {path.stem for path in PACKAGE.glob("*.py")}
    for unit in LEVELS:
        path = package / (f"{unit}.py" if unit in modules else f"{unit}/__init__.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for name, source in sources.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(source, encoding="utf-8")
    return package


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("errors.py", "from house.arch import x", "1: errors imports arch"),
        ("arch/a.py", "import house.rewrite.b", "1: arch imports rewrite"),
        ("arch/a.py", "def f():\n    from house import cli", "2: arch imports cli"),
        ("arch/a.py", "import os\nimport house", "2: arch imports __init__"),
        ("arch/a.py", "from house import Arch", "1: arch imports __init__"),
        ("arch/a.py", "if TYPE_CHECKING:\n    from house.recipes import x", "2: arch imports recipes"),
        ("rewrite/a.py", "from house.wheels.elf import x", "1: rewrite imports wheels"),
        ("storage/a.py", "from ..recipes import x", "1: storage imports recipes"),
        ("storage/__init__.py", "from .. import recipes", "1: storage imports recipes"),
        ("recipes/a.py", "import house.config", "1: recipes imports config"),
        ("config.py", "from house.pipeline import x", "1: config imports pipeline"),
        ("config.py", "from .cli import x", "1: config imports cli"),
        ("builder/deep/a.py", "from house.kernel_cache import x", "1: builder imports kernel_cache"),
        ("builder/a.py", "importlib.import_module('house.wheelhouse.x')", "1: builder imports wheelhouse"),
        ("builder/a.py", "from house import pipeline", "1: builder imports pipeline"),
        ("pipeline.py", "import house.nox", "1: pipeline imports nox"),
        ("nox.py", "import house.cli.main", "1: nox imports cli"),
        ("__init__.py", "import house.__main__", "1: __init__ imports __main__"),
        ("builder/a.py", "import libcst.matchers", "1: builder imports libcst"),
        ("cli/a.py", "from libcst import x", "1: cli imports libcst"),
        ("builder/a.py", "def f():\n    import click", "2: builder imports click"),
        ("nox.py", "from rich.table import Table", "1: nox imports rich"),
        ("pipeline.py", "print('x')", "1: pipeline calls print"),
        ("arch/a.py", "def f():\n    sys.exit(1)", "2: arch calls sys.exit"),
        ("arch/a.py", "from sys import exit", "1: arch calls sys.exit"),
        ("builder/a.py", "raise SystemExit", "1: builder calls SystemExit"),
        ("builder/a.py", "raise SystemExit(1)", "1: builder calls SystemExit"),
        ("builder/a.py", "if __name__ == 'other':\n    print()", "2: builder calls print"),
        ("helpers/a.py", "", "0: helpers has no level: give it one in LEVELS"),
    ],
)
def test_the_check_sees(tmp_path: Path, name: str, source: str, message: str) -> None:
    assert violations(write_tree(tmp_path, {name: source})) == [f"house/{name}:{message}"]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("__main__.py", "import sys\nfrom house.cli import main\nsys.exit(main())"),
        ("__init__.py", "from house.pipeline import build"),
        ("cli/a.py", "import click, rich.table\nfrom house.cli import b\nfrom house.arch import x\nprint()"),
        ("nox.py", "from house.pipeline import build\nfrom house.errors import E\nimport nox"),
        ("pipeline.py", "from house import builder, config, rewrite, __version__"),
        ("builder/deep/a.py", "from ..b import x\nfrom . import c\nfrom ...recipes import d"),
        ("builder/script.py", "if __name__ == '__main__':\n    print()\n    raise SystemExit(1)"),
        ("builder/a.py", "try:\n    f()\nexcept SystemExit:\n    pass"),
        ("rewrite/a.py", "import libcst"),
        ("config.py", "from house.recipes.recipe import x\nfrom house.errors import y"),
    ],
)
def test_the_check_allows(tmp_path: Path, name: str, source: str) -> None:
    assert violations(write_tree(tmp_path, {name: source})) == []
