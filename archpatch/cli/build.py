"""`archpatch build`: from a requirement to a wheel that is proven to hold what was asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from archpatch.cli.options import (
    asked_from,
    build_options,
    json_option,
    matching_options,
    offline_option,
    option,
    python_option,
    terms_from,
    toolkit_option,
    wheelhouse_option,
    workshop_from,
)
from archpatch.cli.show import Teller, print_json, warn

if TYPE_CHECKING:
    from archpatch.pipeline import Built


@click.command("build")
@click.argument("requirements", nargs=-1, required=True, metavar="REQUIREMENT...")
@matching_options
@python_option
@wheelhouse_option
@toolkit_option
@offline_option
@option("--sha256", metavar="HEX", help="The hash that the sdist must have.")
@build_options
@json_option
@click.pass_context
def command(ctx: click.Context, /, requirements: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Build wheels for the GPUs or archs asked for, and file them in the wheelhouse.

    A REQUIREMENT is a package of the index (mamba_ssm, mamba_ssm==2.3.2.post1), a folder (./project), an sdist, or
    git+https://host/repository@tag. Without --gpu, --arch and TORCH_CUDA_ARCH_LIST the visible GPUs are asked.
    Printed are the wheels' paths, one a line.
    """
    from archpatch.builder.requirement import parse_requirement
    from archpatch.jobs import Order
    from archpatch.pipeline import build

    asked = asked_from(ctx, use_driver=True)
    for note in asked.notes:
        warn(note)
    # All of it is read before anything is built.
    terms, workshop = terms_from(ctx), workshop_from(ctx)
    parsed = [parse_requirement(text, sha256=options["sha256"]) for text in requirements]
    results: list[Built] = []
    try:
        for requirement in parsed:
            order = Order(requirement=requirement, asked=asked, python=options["python"], terms=terms)
            with Teller() as teller:
                built = build(order, workshop=workshop, listener=teller)
                teller.stage(_summary(built))
            results.append(built)
            if not as_json:
                click.echo(built.wheel)
    finally:
        # What is filed is filed, also when a later one fails.
        if as_json:
            print_json("build", {"wheels": [_to_json(built) for built in results]})


def _summary(built: Built) -> str:
    what = "was there" if built.hit else "is built"
    codes = ", ".join(built.record.device_code)
    log = f"; log: {built.log}" if built.log is not None else ""
    return f"{built.record.name} {built.record.version} {what}: {codes}, {built.seconds:.1f} s{log}"


def _to_json(built: Built) -> dict[str, Any]:
    return {
        "wheel": str(built.wheel),
        "record": str(built.record_path),
        "hit": built.hit,
        "fingerprint": built.record.fingerprint,
        "sha256": built.record.sha256,
        "seconds": round(built.seconds, 3),
    }
