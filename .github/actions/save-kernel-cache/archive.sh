#!/usr/bin/env bash
# Writes an archive into the folder STORE if there are kernels that the restored one lacked, and `key`, that of the
# archive, to GITHUB_OUTPUT: the week and the sources may have changed since restore-kernel-cache told its key.
set -euo pipefail

mapfile -t arguments <<<"$OPTIONS"
told=$(archpatch cache save "${arguments[@]}" "--store=$STORE/kernels.tar.zst" --format=github)
echo "$told" >>"$GITHUB_OUTPUT"
sed -n 's/^reason=/kernels: /p' <<<"$told" | tee -a "$GITHUB_STEP_SUMMARY"
