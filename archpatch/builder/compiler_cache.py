"""ccache and sccache: found as torch finds them, made to know a source in every working folder, their hits counted."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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
    """A cache of compilations: `name` is `ccache` or `sccache`."""

    name: str
    program: Path
    ask: Ask = field(default=ask, repr=False)

    def variables(self, environ: Mapping[str, str], folder: Path) -> dict[str, str]:
        """Return what the cache needs to know a source again that lies in another working `folder` next time.

        Otherwise the paths of sources and headers would make each build a miss. What a user has set stays.
        """
        if self.name != "ccache":
            return {}
        wanted = {"CCACHE_BASEDIR": str(folder), "CCACHE_NOHASHDIR": "1", "CCACHE_STATSLOG": str(folder / "ccache.log")}
        return {name: value for name, value in wanted.items() if name not in environ}

    @contextmanager
    def counted(self, folder: Path) -> Iterator[Counts]:
        """Yield counts that hold, in the end, what the cache answered meanwhile to a build with `variables`."""
        counts = Counts()
        if self.name == "sccache":
            # The first compiler would start the server, with a temporary folder that goes away with this build.
            self.ask([str(self.program), "--start-server"])
        before = Counter() if self.name == "ccache" else self._sccache()
        yield counts
        after = _ccache(folder / "ccache.log") if self.name == "ccache" else self._sccache()
        counts.hits, counts.misses = (after[key] - before[key] for key in ("hits", "misses"))

    def _sccache(self) -> Counter[str]:
        """Return what sccache counted so far, for all builds: other processes' are among them."""
        answer = self.ask([str(self.program), "--show-stats", "--stats-format", "json"])
        try:
            stats = json.loads(answer.stdout)["stats"]
            return Counter({kind: sum(stats[f"cache_{kind}"]["counts"].values()) for kind in ("hits", "misses")})
        except (ValueError, LookupError, AttributeError, TypeError):
            return Counter()


def find_compiler_cache(environ: Mapping[str, str]) -> CompilerCache | None:
    """Return what torch puts before nvcc (`_wrap_compiler` of `torch.utils.cpp_extension`), None where it does not."""
    if environ.get("TORCH_NO_COMPILER_WRAPPER") or environ.get("PYTORCH_NVCC"):
        return None
    for name in ("ccache", "sccache"):
        program = shutil.which(name, path=environ.get("PATH", ""))
        if program is not None:
            return CompilerCache(name=name, program=Path(program))
    return None


def _ccache(log: Path) -> Counter[str]:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    return _count(lines)


def _count(lines: Iterable[str]) -> Counter[str]:
    seen = Counter(lines)
    return Counter({"hits": sum(seen[name] for name in _CCACHE_HITS), "misses": seen[_CCACHE_MISS]})
