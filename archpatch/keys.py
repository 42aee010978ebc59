"""The key under which a CI's cache holds a wheelhouse: told from what is asked and installed, without any source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from packaging.utils import canonicalize_name

from archpatch.builder.requirement import ArchiveRequirement, FolderRequirement, IndexRequirement
from archpatch.jobs import Job, Order, Workshop, name_of, open_job
from archpatch.storage.key import Key

__all__ = ["wheelhouse_key"]

#: What is the package's own; all else is said once for all packages.
_OWN = ("package", "version", "recipe", "repository", "known-bad", "source")


def wheelhouse_key(orders: Sequence[Order], *, workshop: Workshop, extra: Mapping[str, str]) -> Key:
    """Return the key of a wheelhouse that serves all `orders`; `extra` are inputs that the caller knows of.

    The request stands in for the pairs that it selects, which only the source would tell. An unpinned name is asked
    for at the index. Raises what `open_job` raises.
    """
    jobs = [open_job(order, workshop) for order in orders]
    values: dict[str, set[str]] = {f"extra.{name}": {value} for name, value in extra.items()}
    for name, value in (pair for job in jobs for pair in _inputs(job)):
        values.setdefault(name, set()).add(value)
    parts = zip(*((job.target, job.stack.folder, job.bench.interpreter.abi_tag) for job in jobs), strict=True)
    return Key(
        parts=("archpatch", "wheelhouse", *("-".join(dict.fromkeys(part)) for part in parts)),
        # Packages and GPU types may differ in an input: all of its values decide what the wheelhouse holds.
        inputs={name: ", ".join(sorted(found)) for name, found in values.items()},
    )


def _inputs(job: Job) -> Iterator[tuple[str, str]]:
    name = canonicalize_name(name_of(job.requirement))
    version, source = _source(job)
    for key, value in {**job.inputs(name, version), **job.wish(), "source": source}.items():
        if key not in _OWN:
            yield key, value
        elif value and key != "package":
            yield f"{name}.{key}", value


def _source(job: Job) -> tuple[str, str]:
    """Return version and digest of the source as far as they are known without fetching it."""
    requirement = job.requirement
    if isinstance(requirement, IndexRequirement):
        return str(requirement.version), requirement.sha256 or ""
    if isinstance(requirement, FolderRequirement | ArchiveRequirement):
        # As in `Workshop.pin`.
        from archpatch.builder.source import prepare  # noqa: PLC0415
        from archpatch.builder.working_folder import working_folder  # noqa: PLC0415

        with working_folder() as scratch:
            tree = prepare(requirement, scratch / "source", offline=True, leave_out=(job.order.terms.wheelhouse,))
        return tree.version or "", tree.digest
    return "", str(requirement)
