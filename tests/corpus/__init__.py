"""The corpus test: for any `setup.py` and any request, nvcc gets what the selection rules give, or it is refused.

Run it with `nox -s corpus -- FOLDER`, or `python tests/corpus FOLDER`; without FOLDER it takes the sdists of
`../shared/cases/pypi-sdists.toml` (`--cases`), fetched by name and sha256. FOLDER may hold `setup.py` files at any
depth, loose `*.py` files, unpacked sdists and archives of sdists. stdout (or `--output FILE`) gets a JSON line per
file, request, policy and toolkit:

    {file, request, on_missing, toolkit, verdict, reason, extensions?}

- `right`: the patched file hands nvcc, per extension, exactly the device code that `archpatch.arch.selection` gives
  for the pairs of the unpatched one (torch's own flags for the list where it has none); or nothing matches, and it
  says so.
- `refused`: archpatch does not touch the file, and says at which line and why.
- `unrunnable`: the unpatched file fails here, so there is nothing to compare with.
- `wrong`: anything else; `extensions` has the flags before and after. The exit status is then 1.

How it captures (`harness`): a process that has imported setuptools and a stub of torch (`stubs/torch`) forks once per
run. In the child `subprocess`, the network and the visible GPU are stubs of a given CUDA release, and `setup()` runs
through the real setuptools up to the compiler. Nothing is compiled.
"""
