#!/usr/bin/env bash
# Sourced by the scripts here: `one` and `each` add to the array `arguments`, unless what they are given is empty.
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
