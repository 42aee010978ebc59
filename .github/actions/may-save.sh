#!/usr/bin/env bash
# may-save.sh WHAT FOLDER PATTERN [COMMAND...]: before actions/cache/save, write `save` (true or false) to
# GITHUB_OUTPUT, and a line to the summary. HIT is what restored.sh wrote, DEFAULT_BRANCH what the event says. Something
# has to be in the folder: a file whose name fits the pattern, outside of hidden folders. Where nothing else is against
# it, the command puts it there.
#
# What a job restores, it runs. So only runs of merged code write: the default branch does, pull requests, merge groups
# and other branches read. Events that are not named here do not write, whatever code they run.
set -euo pipefail

what=$1 folder=$2 pattern=$3
shift 3

merged() {
  case $GITHUB_EVENT_NAME in
    # Always of the default branch; its event does not say which one that is.
    schedule) true ;;
    push | workflow_dispatch) [[ $GITHUB_REF == "refs/heads/$DEFAULT_BRANCH" ]] ;;
    *) false ;;
  esac
}

filled() {
  [[ -d $folder && -n $(find "$folder" -mindepth 1 -name '.*' -prune -o -type f -name "$pattern" -print -quit) ]]
}

save=false
if [[ $HIT == true ]]; then
  said="not saved: its key is there already"
elif ! merged; then
  said="not saved: only the default branch writes, and this is a $GITHUB_EVENT_NAME of $GITHUB_REF"
else
  "$@"
  if filled; then
    save=true
    said="saved"
  else
    said="not saved: no $pattern is in $folder"
  fi
fi
echo "save=$save" >>"$GITHUB_OUTPUT"
echo "$what: $said" | tee -a "$GITHUB_STEP_SUMMARY"
