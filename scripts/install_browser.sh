#!/bin/sh
# Get the browser that the report's tests look through, if it is missing and may be installed.
# Without it those tests are skipped, except under CI=true, where that is a failure.
set -eu

there() { command -v chromium >/dev/null 2>&1 && command -v chromedriver >/dev/null 2>&1; }

if there; then
    exit 0
fi
root=""
if [ "$(id -u)" -ne 0 ]; then
    root="sudo -n"
fi
if command -v apt-get >/dev/null 2>&1 && $root true 2>/dev/null; then
    echo "Installing chromium for the report's tests ..." >&2
    $root apt-get update -qq && $root apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null || true
fi
if there; then
    exit 0
fi
echo "No chromium and chromedriver here, and they could not be installed: the report is not tried in a browser." >&2
if [ "${CI:-}" = "true" ]; then
    exit 1
fi
