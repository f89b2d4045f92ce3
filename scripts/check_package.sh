#!/bin/sh
# Build the package in an empty environment, install the wheel in another one, and train from there: check_package.sh PYTHON
set -eu
python=$1
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

sh "$root/scripts/make_environment.sh" "$python" "$work/builder"
"$work/builder/bin/python" -m pip install --quiet --disable-pip-version-check build
"$work/builder/bin/python" -m build --outdir "$work/dist" "$root" >"$work/build.log" 2>&1 || { cat "$work/build.log" >&2; exit 1; }

sh "$root/scripts/make_environment.sh" "$python" "$work/user"
"$work/user/bin/python" -m pip install --quiet --disable-pip-version-check -c "$root/constraints.txt" "$work"/dist/*.whl
mkdir "$work/empty"
cd "$work/empty"
"$work/user/bin/fedpdm" --version
"$work/user/bin/fedpdm" run demo --quiet --set data.name=digits --set data.clients=10 --set rounds.participants=4 \
    --set rounds.total=5 --out run
test -s run/report.html
echo "The package builds, installs and trains."
