#!/bin/sh
# Run some fast tests where the range of tested versions ends: check_compatibility.sh PYTHON
# - the oldest JAX that pyproject.toml admits and the newest that can be installed, laid over the environment in .venv;
# - the newest Python that is installed here, in a small environment with the packages that training needs.
# A version that cannot be had is named and left out. A test that fails is a failure.
set -eu
python=$1
root=$(cd "$(dirname "$0")/.." && pwd)
work=$root/.venv-compatibility
own=$root/.venv/bin/python
tests="tests/test_compatibility.py tests/test_participation.py tests/engines/test_programs.py tests/problem/test_losses.py tests/compression/test_sparsify.py"
cd "$root"
mkdir -p "$work"

pip() { "$own" -m pip "$@" --quiet --disable-pip-version-check; }
run() { # run NAME PYTHON [FOLDER LAID OVER ITS PACKAGES]
    echo "Compatibility: $1 ..." >&2
    PYTHONPATH=${3:-} "$2" -m pytest -q -p no:cacheprovider -n 2 $tests
}
left_out() { echo "Compatibility: $1 is left out: $2." >&2; }

with_jax() { # with_jax VERSION
    folder=$work/jax-$1
    if [ ! -e "$folder/complete" ]; then
        rm -rf "$folder"
        pip install --no-deps --target "$folder" "jax==$1" "jaxlib==$1" || { left_out "JAX $1" "it could not be installed"; return 0; }
        touch "$folder/complete"
    fi
    run "JAX $1" "$own" "$folder"
}

tested=$(sed -n 's/^jax==//p' constraints.txt)
oldest=$(sed -n 's/.*"jax>=\([0-9.]*\)".*/\1.0/p' pyproject.toml)
with_jax "$oldest"
newest=$("$own" -m pip index versions jax --disable-pip-version-check 2>/dev/null | sed -n 's/^jax (\(.*\))$/\1/p') || newest=""
if [ -z "$newest" ]; then
    left_out "the newest JAX" "no package index answers"
elif [ "$newest" = "$tested" ]; then
    echo "Compatibility: the newest JAX is $tested, which all tests use." >&2
else
    with_jax "$newest"
fi

newer() { # the newest Python above that of .venv, on the path or among pyenv's
    for minor in 14 13 12; do
        for found in "python3.$minor" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.$minor.*/bin/python; do
            if "$found" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, int(sys.argv[1])))' "$minor" 2>/dev/null; then
                if "$own" -c 'import sys; sys.exit(sys.version_info >= (3, int(sys.argv[1])))' "$minor"; then
                    echo "$found"
                    return
                fi
            fi
        done
    done
}

found=$(newer)
if [ -z "$found" ]; then
    left_out "a newer Python" "none is installed"
    exit 0
fi
folder=$work/python
if ! cmp -s pyproject.toml "$folder/complete"; then
    rm -rf "$folder"
    sh scripts/make_environment.sh "$found" "$folder"
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[native,sklearn]" \
        hypothesis pytest pytest-xdist
    cp pyproject.toml "$folder/complete"
fi
run "$("$folder/bin/python" --version)" "$folder/bin/python"
