#!/bin/sh
# Make a virtual environment with pip in it: make_environment.sh PYTHON FOLDER
# Debian and Ubuntu keep venv's own part in a package apart (python3-venv), so there are three ways to try.
set -eu
python=$1
folder=$2

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "fedpdm needs Python 3.11 or newer; '$python' is $("$python" --version 2>&1)." >&2
    echo "Name another one: make PYTHON=python3.12 ..." >&2
    exit 2
fi
if "$python" -c 'import ensurepip, venv' 2>/dev/null && "$python" -m venv "$folder"; then
    exit 0
fi
rm -rf "$folder"
if "$python" -m pip --version >/dev/null 2>&1; then
    tools=$(mktemp -d)
    if "$python" -m pip install --quiet --target "$tools" virtualenv &&
        PYTHONPATH=$tools "$python" -m virtualenv --quiet "$folder"; then
        rm -rf "$tools"
        exit 0
    fi
    rm -rf "$tools" "$folder"
fi
if command -v apt-get >/dev/null 2>&1; then
    root=""
    if [ "$(id -u)" -ne 0 ]; then
        root="sudo"
    fi
    echo "Installing python3-venv ..." >&2
    if $root apt-get update -qq && $root apt-get install -y -qq python3-venv python3-pip; then
        exec "$python" -m venv "$folder"
    fi
fi
echo "No virtual environment could be made: install python3-venv (apt-get install python3-venv) and try again." >&2
exit 2
