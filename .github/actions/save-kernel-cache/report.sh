#!/usr/bin/env bash
# Writes to the summary what the job found and what it compiled. OPTIONS are those of restore-kernel-cache.
set -euo pipefail

about=()
while read -r option; do
  case $option in
    # The root has one job's kernels, whatever its name is.
    --lane=* | --sources=* | --extra=* | --extra-file=*) ;;
    *) about+=("$option") ;;
  esac
done <<<"$OPTIONS"

{
  archpatch cache report "${about[@]}" --format=markdown
  echo
} | tee -a "$GITHUB_STEP_SUMMARY"
