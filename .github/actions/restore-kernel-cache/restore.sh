#!/usr/bin/env bash
# Brings the kernels of the archive in the folder STORE to where the variables of key.sh point, also where there is no
# archive: what the job did is told from what was there before. OPTIONS are those of key.sh.
set -euo pipefail

archive=$STORE/kernels.tar.zst
mapfile -t arguments <<<"$OPTIONS"

status=0
said=$(archpatch cache restore "${arguments[@]}" "--store=$archive" 2>&1) || status=$?
echo "- ${said//$'\n'/$'\n- '}" | tee -a "$GITHUB_STEP_SUMMARY"
# Nothing but what this job compiles may be saved from there.
rm -f -- "$archive"
# 1: archpatch failed over it. What the root holds is noted all the same.
if [[ $status -eq 1 ]]; then
  archpatch cache restore "${arguments[@]}" "--store=$archive"
# 5: it was refused. The job compiles all of it.
elif [[ $status -ne 0 && $status -ne 5 ]]; then
  exit "$status"
fi
