"""Stand-ins for what is not installed: an object that answers to all, and a finder that makes modules of them."""

# ruff: noqa: ANN401, ARG002, PYI034 - an object that stands for anything has no other type

from __future__ import annotations

import abc
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import setuptools
from setuptools.command.build_ext import build_ext

__all__ = ["Anything", "Permissive", "answer"]

#: Packages that a `setup.py` tries to import in order to learn what machine it is on: they are not there.
_ABSENT = frozenset(
    {"Cython", "cython", "habana_frameworks", "intel_extension_for_pytorch", "jax", "paddle", "pyximport"}
    | {"accelerate", "einops", "hjson", "pydantic", "transformers", "triton"}
    | {"setuptools_rust", "tensorflow", "torch_mlu", "torch_musa", "torch_npu", "torch_xla", "torch_directml"}
)


class _AnyType(abc.ABCMeta):
    """The type of `Anything`: its classes have every attribute too."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return answer(name)


class Anything(str, metaclass=_AnyType):
    """A string that means nothing, zero and false, with every attribute, callable, iterable and countable."""

    __slots__ = ()

    def __new__(cls, *_: object, **__: object) -> Anything:
        """Take any arguments and forget them."""
        return super().__new__(cls, "0")

    def __bool__(self) -> bool:
        return False

    def __len__(self) -> int:
        return 0

    def __init_subclass__(cls, **_: object) -> None:
        """Let it be a base class, with any keywords."""

    def __getattr__(self, name: str) -> Any:
        return answer(name)

    def __call__(self, *arguments: Any, **_: Any) -> Any:
        """Return another one; a decorator gives back what it decorates."""
        single = arguments[0] if len(arguments) == 1 else None
        return single if callable(single) and not isinstance(single, Anything) else Anything()

    def __getitem__(self, _: object) -> Anything:  # type: ignore[override]
        return Anything()

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __enter__(self) -> Anything:
        return self

    def __exit__(self, *_: object) -> None:
        """Let errors through."""

    def __int__(self) -> int:
        return 0

    def __float__(self) -> float:
        return 0.0

    def __index__(self) -> int:
        return 0

    def __add__(self, other: Any) -> Any:
        return other

    __radd__ = __add__

    def _zero(self, *_: object) -> Any:
        return 0

    __sub__ = __rsub__ = __truediv__ = __floordiv__ = __rtruediv__ = __rfloordiv__ = __pow__ = __neg__ = _zero

    def __lt__(self, other: Any) -> bool:
        return other > 0 if isinstance(other, int | float) else str.__lt__(self, str(other))

    def __gt__(self, other: Any) -> bool:
        return other < 0 if isinstance(other, int | float) else str.__gt__(self, str(other))

    def __le__(self, other: Any) -> bool:
        return not self > other

    def __ge__(self, other: Any) -> bool:
        return not self < other


class AnyExtension(setuptools.Extension):
    """What a helper package calls its extension class."""

    def __init__(self, name: str, sources: Sequence[str] = (), *_: object, **kwargs: Any) -> None:
        known = {key: value for key, value in kwargs.items() if key in ("extra_compile_args", "include_dirs")}
        super().__init__(name, list(sources), **known)


def answer(name: str) -> Any:
    """Return what stands in for the attribute `name` of a module that is not there."""
    if name.startswith("__") and name.endswith("__"):
        raise AttributeError(name)
    if name == "build_ext":
        return build_ext
    if name.endswith("Extension"):
        return AnyExtension
    if name == "cythonize":
        return lambda modules, **_: list(modules) if isinstance(modules, list | tuple) else [modules]
    if name == "setup":
        return setuptools.setup
    return _named_class(name) if name[:1].isupper() else Anything()


@cache
def _named_class(name: str) -> type[Anything]:
    return _AnyType(name, (Anything,), {"__slots__": ()})


class Permissive(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module that nobody else has: put it last on `sys.meta_path`."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        """Return a spec for any name but those of `_ABSENT` and what a package that is there does not have."""
        top = name.partition(".")[0]
        owner = sys.modules.get(top)
        if top in _ABSENT or top in sys.stdlib_module_names:
            return None
        if owner is not None and not isinstance(owner, AnyModule) and top != "torch":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Make the module."""
        return AnyModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Give it what people read of every module."""
        module.__version__ = "9.9.9"  # type: ignore[attr-defined]
        module.__file__ = f"/absent/{module.__name__}/__init__.py"


class AnyModule(types.ModuleType):
    """A module with every attribute."""

    def __getattr__(self, name: str) -> Any:
        return answer(name)
