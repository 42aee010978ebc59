"""A noxfile that compiles a CUDA extension for one GPU before the tests run.

python -m pip install nox archpatch
nox -f examples/noxfile.py                      # causal_conv1d from the index
nox -f examples/noxfile.py -- /a/project        # or a project, by its whole path: nox runs in the noxfile's folder
"""

import nox

import archpatch.nox


@nox.session
def tests(session: nox.Session) -> None:
    """Build the wheel, or find it in the wheelhouse, install it, and run what needs it."""
    session.install("torch", "setuptools", "wheel", "ninja", "packaging")
    for requirement in session.posargs or ["causal_conv1d"]:
        # The second run takes a second: the wheel is filed in ./wheelhouse, with a record of how it came to be.
        wheel = archpatch.nox.build(session, requirement, gpu="h200")
        session.install("--no-deps", "--force-reinstall", wheel)
    session.run("python", "-m", "pip", "list")
