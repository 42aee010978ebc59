#!/usr/bin/env bash
# Keeps a shared wheelhouse as the plan in the pyproject.toml beside this script says. In a crontab:
#
#     17 3 * * * /srv/fleet/refresh.sh
#
# It prints, and so cron mails, only what went wrong. Runs that overlap do no harm: each wheel is built once, the second
# run waits for it.
set -euo pipefail
cd "$(dirname "$0")"
PATH=$PWD/venv/bin:$PATH

log=$(mktemp)
trap 'rm -f "$log"' EXIT

quietly() {
  local status=0
  "$@" >"$log" 2>&1 || status=$?
  # 3: a package has nothing for a GPU type. That is the plan's matter, and no news each night.
  if [[ $status -ne 0 && $status -ne 3 ]]; then
    cat "$log" >&2
    exit "$status"
  fi
}

quietly archpatch refresh --report report.json
quietly archpatch wheelhouse verify
