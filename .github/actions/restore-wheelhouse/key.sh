#!/usr/bin/env bash
# Writes `key` and `restore-keys` of a wheelhouse to GITHUB_OUTPUT. What to tell them from comes in INPUT_* variables;
# what is empty is left to archpatch's own settings.
set -euo pipefail

# shellcheck source=.github/actions/arguments.sh
source "$GITHUB_ACTION_PATH/../arguments.sh"

one --config= "$INPUT_CONFIG"
arguments+=(key wheelhouse --format=github)
one --gpu= "$INPUT_GPU"
one --arch= "$INPUT_ARCH"
one --torch= "$INPUT_TORCH"
one --python= "$INPUT_PYTHON"
one --wheelhouse= "$INPUT_WHEELHOUSE"
each --extra= "$INPUT_EXTRA"
each --extra-file= "$INPUT_EXTRA_FILES"
arguments+=(--)
each "" "$INPUT_PACKAGES"

archpatch "${arguments[@]}" >>"$GITHUB_OUTPUT"
