#!/usr/bin/env bash
# restored.sh WHAT: after actions/cache/restore, write `hit` (true or false) to GITHUB_OUTPUT, and a line to the summary.
# KEY is the key that was asked for, MATCHED the one that was restored, empty where there was none.
set -euo pipefail

hit=false
case $MATCHED in
  "$KEY")
    hit=true
    said="restored from \`$KEY\`"
    ;;
  "") said="nothing to restore for \`$KEY\`" ;;
  *) said="not there under \`$KEY\`, restored from \`$MATCHED\`" ;;
esac
echo "hit=$hit" >>"$GITHUB_OUTPUT"
echo "$1: $said" | tee -a "$GITHUB_STEP_SUMMARY"
