#!/usr/bin/env bash
# Writes `key` and `restore-keys` of a wheelhouse to GITHUB_OUTPUT. What to tell them from comes in INPUT_* variables;
# what is empty is left to archpatch's own settings.
set -euo pipefail

arguments=()

# one PREFIX VALUE
one() {
  if [[ -n $2 ]]; then
    arguments+=("$1$2")
  fi
}

# each PREFIX LINES
each() {
  local line
  while read -r line; do
    one "$1" "$line"
  done <<<"$2"
}

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
