"""The record beside a wheel: what it holds and how it came to be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from archpatch.errors import WheelhouseDamaged
from archpatch.storage.sealed import seal, unseal

__all__ = ["SCHEMA", "Record", "record_path"]

SCHEMA = "archpatch.record/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """All that is known of one wheel.

    `device_code` is what was read back from the wheel, `extensions` the same per extension; both are spelled `sm_90a`
    and `compute_90`. `pairs` are the decisions of the rewrite, `flag_sources` the places that it left to a guard, and
    those where CMake gets archs through a variable. `times` are seconds, `size` is bytes, `created` is UTC. `files` is
    what each source cost for one arch: `seconds` of CPU, and peak bytes of `memory` of its largest process; the next
    build of the package divides the machine by it.
    """

    name: str
    version: str
    wheel: str
    sha256: str
    size: int
    fingerprint: str
    inputs: Mapping[str, str]
    request: Mapping[str, Any]
    pairs: tuple[Mapping[str, Any], ...]
    flag_sources: tuple[Mapping[str, Any], ...]
    device_code: tuple[str, ...]
    extensions: Mapping[str, tuple[str, ...]]
    needs: Mapping[str, str | None]
    source: Mapping[str, str]
    toolchain: Mapping[str, str]
    times: Mapping[str, float]
    files: Mapping[str, Mapping[str, float]]
    created: str
    archpatch: str

    @property
    def created_at(self) -> datetime | None:
        """When the wheel was built: in UTC where no zone is recorded, None where it cannot be read."""
        try:
            created = datetime.fromisoformat(self.created)
        except (TypeError, ValueError):
            return None
        return created if created.tzinfo is not None else created.replace(tzinfo=timezone.utc)

    def to_json(self) -> str:
        """Return the record as it is written: sealed."""
        return json.dumps(seal({"schema": SCHEMA, **asdict(self)}), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def read(cls, path: Path) -> Record:
        """Read the record at `path`.

        Raises `WheelhouseDamaged` where it is missing, torn, edited or of another schema.
        """
        try:
            data = unseal(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise WheelhouseDamaged(f"{path} is missing", remedy=_REMEDY) from None
        except (OSError, ValueError) as error:
            raise WheelhouseDamaged(f"{path} cannot be read: {error}", remedy=_REMEDY) from None
        names = {field.name for field in fields(cls)}
        if data.pop("schema", None) != SCHEMA or data.keys() != names:
            raise WheelhouseDamaged(f"{path} is no record of schema {SCHEMA}", remedy=_REMEDY)
        data["pairs"] = tuple(data["pairs"])
        data["flag_sources"] = tuple(data["flag_sources"])
        data["device_code"] = tuple(data["device_code"])
        data["extensions"] = {name: tuple(codes) for name, codes in data["extensions"].items()}
        return cls(**data)


_REMEDY = "Build the wheel again, or remove it."


def record_path(wheel: Path) -> Path:
    """Return where the record of `wheel` lies."""
    return wheel.with_name(f"{wheel.name}.json")
