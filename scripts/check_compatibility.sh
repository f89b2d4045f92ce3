#!/bin/sh
# Run some fast tests where the range of tested versions ends: check_compatibility.sh
# - the oldest JAX that pyproject.toml admits and the newest that can be installed, laid over the environment in .venv;
# - the newest Python on this machine (python3.X on the path, or one of pyenv's), in a small environment for training.
# A version that cannot be had is named and left out. A test that fails is a failure.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
work=$root/.venv-compatibility
own=$root/.venv/bin/python
tests="tests/test_compatibility.py tests/test_participation.py tests/problem/test_losses.py"
cd "$root"
mkdir -p "$work"

left_out() { echo "Compatibility: $1 is left out: $2." >&2; }

run() { # run NAME PYTHON [FOLDER LAID OVER ITS PACKAGES]
    echo "Compatibility: $1 ..." >&2
    PYTHONPATH=${3:-} "$2" -m pytest -q -p no:cacheprovider -n 2 --dist loadfile \
        -W "ignore:(The kernel|Sharing).*is known to work with:UserWarning" $tests
}

with_jax() { # with_jax VERSION
    folder=$work/jax-$1
    if [ ! -e "$folder/complete" ]; then
        rm -rf "$folder"
        if ! "$own" -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder" "jax==$1" "jaxlib==$1"; then
            left_out "JAX $1" "it could not be installed"
            return
        fi
        touch "$folder/complete"
    fi
    run "JAX $1" "$own" "$folder"
}

oldest=$(sed -n 's/.*"jax>=\([0-9.]*\)".*/\1.0/p' pyproject.toml)
tested=$("$own" -c 'import importlib.metadata; print(importlib.metadata.version("jax"))')
newest=$("$own" -m pip index versions jax --disable-pip-version-check 2>/dev/null | sed -n 's/^jax (\(.*\))$/\1/p' || true)
with_jax "$oldest"
if [ -z "$newest" ]; then
    left_out "the newest JAX" "no package index answers"
elif [ "$newest" = "$tested" ]; then
    echo "Compatibility: the newest JAX, $newest, is the one that all tests use." >&2
else
    with_jax "$newest"
fi

newest_python() { # above that of .venv
    for minor in 14 13 12; do
        for found in "python3.$minor" "${PYENV_ROOT:-$HOME/.pyenv}/versions/3.$minor."*/bin/python; do
            if "$found" -c "import ensurepip, sys; sys.exit(sys.version_info[:2] != (3, $minor))" 2>/dev/null &&
                "$own" -c "import sys; sys.exit(sys.version_info >= (3, $minor))"; then
                echo "$found"
                return
            fi
        done
    done
}

python=$(newest_python)
if [ -z "$python" ]; then
    left_out "a newer Python" "none is installed"
    exit 0
fi
folder=$work/python
if ! cat pyproject.toml constraints.txt | cmp -s - "$folder/complete"; then
    rm -rf "$folder"
    sh scripts/make_environment.sh "$python" "$folder"
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt . hypothesis numba pytest pytest-xdist
    cat pyproject.toml constraints.txt >"$folder/complete"
fi
run "$("$folder/bin/python" --version)" "$folder/bin/python" "$root"
