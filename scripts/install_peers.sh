#!/bin/sh
# Make the environments of the simulators that `benchmarks/speed.py` compares with: install_peers.sh PYTHON
# Each has its own under .venv-peers/, with the versions of benchmarks/peers/NAME.txt and nothing else: a dependency that is not
# in that file is not installed. PyTorch's build for CPUs comes first, from the package index or folder that pip is set up with;
# PEER_TORCH names another build.
set -u
python=$1
root=$(cd "$(dirname "$0")/.." && pwd)
torch=${PEER_TORCH:-torch==2.13.0+cpu}
ready=""
failed=""

pip() {
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "$@"
}

install() {
    rm -rf "$folder"
    sh "$root/scripts/make_environment.sh" "$python" "$folder" || return 1
    if grep -q '^# After PyTorch' "$list"; then
        pip "$torch" || return 1
    fi
    pip -r "$list" || return 1
    cp "$list" "$folder/complete"
}

for list in "$root"/benchmarks/peers/*.txt; do
    name=$(basename "$list" .txt)
    folder=$root/.venv-peers/$name
    if cmp -s "$list" "$folder/complete"; then
        ready="$ready $name"
        continue
    fi
    echo "Installing $name ..." >&2
    if install; then
        ready="$ready $name"
    else
        failed="$failed $name"
    fi
done
echo "Ready:${ready:- none}"
if [ -n "$failed" ]; then
    echo "Failed:$failed" >&2
    exit 1
fi
