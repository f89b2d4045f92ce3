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
pip() { "$work/user/bin/python" -m pip install --quiet --disable-pip-version-check -c "$root/constraints.txt" "$@"; }
wheel=$(ls "$work"/dist/*.whl)
mkdir "$work/empty"
cd "$work/empty"
small="--set data.clients=10 --set rounds.participants=4 --set rounds.total=5"

# Without extras: MNIST, from pixels; what needs an extra says which.
pip "$wheel"
"$work/user/bin/fedpdm" --version
"$work/user/bin/fedpdm" run demo --quiet $small --set data.features=raw --set local.step_size=0.1 --out minimal
test -s minimal/report.html
if "$work/user/bin/fedpdm" data info digits 2>message; then
    echo "scikit-learn is there without its extra" >&2
    exit 1
fi
grep -q "pip install 'fedpdm\[sklearn\]'" message

# With them.
pip "$wheel[sklearn,tables,figures]"
"$work/user/bin/fedpdm" run demo --quiet $small --set data.name=digits --out run
test -s run/report.html
"$work/user/bin/fedpdm" run --quiet --data sklearn:wine --label target --set rounds.total=5 --out table
test -s table/report.html
echo "The package builds, installs and trains, with and without extras."
