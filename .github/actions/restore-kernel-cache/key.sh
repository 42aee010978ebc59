#!/usr/bin/env bash
# Writes `key`, `restore-keys`, `root` and `options` (what archpatch cache save is told, one a line) to GITHUB_OUTPUT,
# and the variables of every compiler to GITHUB_ENV. What to tell them from comes in INPUT_* variables.
set -euo pipefail

# shellcheck source=.github/actions/arguments.sh
source "$GITHUB_ACTION_PATH/../arguments.sh"

# The runner empties its folder before and after each job; GitHub's own have it at the same place each time, without
# which what ninja built is of no use.
root=${INPUT_ROOT:-$RUNNER_TEMP/kernels}
[[ $root == /* ]] || root=$PWD/$root

# One option a line, so that no input can end the list of them.
each --gpu= "$INPUT_GPU"
each --torch= "$INPUT_TORCH"
each --triton= "$INPUT_TRITON"
each --python= "$INPUT_PYTHON"
lane=("${arguments[@]}")
each --lane= "$INPUT_LANE"
each --sources= "$INPUT_SOURCES"
each --extra= "$INPUT_EXTRA"
each --extra-file= "$INPUT_EXTRA_FILES"

key=$(archpatch cache key "${arguments[@]}" --format=github)
archpatch cache env "--root=$root" "${lane[@]}" --format=github >>"$GITHUB_ENV"
each --max-size= "$INPUT_MAX_SIZE"
{
  echo "$key"
  echo "root=$root"
  echo "options<<END"
  printf '%s\n' "--root=$root" "${arguments[@]}"
  echo "END"
} >>"$GITHUB_OUTPUT"
