"""ccache and sccache: found as torch finds them, made to know a source in every working folder, their hits counted."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from archpatch.builder.questions import Ask, ask

__all__ = ["CompilerCache", "Counts", "find_compiler_cache"]

#: What ccache notes of a compilation (its manual, "Cache statistics").
_CCACHE_HITS: Final = ("direct_cache_hit", "preprocessed_cache_hit")
_CCACHE_MISS: Final = "cache_miss"


@dataclass(slots=True)
class Counts:
    """How many compilations a cache answered, and how many it could not."""

    hits: int = 0
    misses: int = 0

    def __str__(self) -> str:
        return f"{self.hits} of {self.hits + self.misses} compilations answered"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerCache:
    """A cache of compilations in the environment of a build: `name` is `ccache` or `sccache`.

    `folder` is where this build works; `compiler` says what compiles, and how, as far as the cache does not see it:
    neither looks at nvcc's own variables.
    """

    name: str
    program: Path
    environ: Mapping[str, str]
    folder: Path
    compiler: str
    ask: Ask = field(default=ask, repr=False)

    def variables(self) -> dict[str, str]:
        """Return what the build needs, so that the cache knows its sources in another folder, and this compiler.

        What a user has set stays. Writes a file into the folder.
        """
        if self.name == "sccache":
            buster = "SCCACHE_C_CUSTOM_CACHE_BUSTER"
            return {buster: f"{self.environ.get(buster, '')}{self.compiler}"}
        (self.folder / "compiler").write_text(self.compiler, encoding="utf-8")
        extra = (self.environ.get("CCACHE_EXTRAFILES"), str(self.folder / "compiler"))
        defaults = {"CCACHE_BASEDIR": str(self.folder), "CCACHE_NOHASHDIR": "1", "CCACHE_STATSLOG": str(self._log)}
        missing = {name: value for name, value in defaults.items() if name not in self.environ}
        return {"CCACHE_EXTRAFILES": os.pathsep.join(filter(None, extra)), **missing}

    @contextmanager
    def counted(self) -> Iterator[Counts]:
        """Yield counts that hold, in the end, what the cache answered meanwhile to a build with `variables`."""
        counts = Counts()
        if self.name == "sccache":
            # The first compiler would start the server, with a temporary folder that goes away with this build.
            self._ask_sccache("--start-server")
        before = self._count()
        yield counts
        after = self._count()
        counts.hits, counts.misses = (after[key] - before[key] for key in ("hits", "misses"))

    @property
    def _log(self) -> Path:
        return Path(self.environ.get("CCACHE_STATSLOG") or self.folder / "ccache.log")

    def _count(self) -> Counter[str]:
        """Return what was answered so far; sccache's server counts for all builds."""
        if self.name == "sccache":
            return _parse_sccache(self._ask_sccache("--show-stats", "--stats-format", "json"))
        try:
            seen = Counter(self._log.read_text(encoding="utf-8", errors="replace").splitlines())
        except OSError:
            seen = Counter()
        return Counter({"hits": sum(seen[name] for name in _CCACHE_HITS), "misses": seen[_CCACHE_MISS]})

    def _ask_sccache(self, *words: str) -> str:
        # Which server it is, and where that keeps its files, is said by variables.
        settings = [f"{name}={value}" for name, value in self.environ.items() if name.startswith("SCCACHE_")]
        return self.ask(["env", *settings, str(self.program), *words]).stdout


def find_compiler_cache(environ: Mapping[str, str], *, folder: Path, compiler: str) -> CompilerCache | None:
    """Return what torch puts before nvcc (`_wrap_compiler` of `torch.utils.cpp_extension`), None where it does not."""
    if environ.get("TORCH_NO_COMPILER_WRAPPER") or environ.get("PYTORCH_NVCC"):
        return None
    for name in ("ccache", "sccache"):
        program = shutil.which(name, path=environ.get("PATH", ""))
        if program is not None:
            return CompilerCache(name=name, program=Path(program), environ=environ, folder=folder, compiler=compiler)
    return None


def _parse_sccache(text: str) -> Counter[str]:
    try:
        stats = json.loads(text)["stats"]
        return Counter({kind: sum(stats[f"cache_{kind}"]["counts"].values()) for kind in ("hits", "misses")})
    except (ValueError, LookupError, AttributeError, TypeError):
        return Counter()
