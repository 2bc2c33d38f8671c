#!/bin/sh
# Build a wheel, install it in a clean environment without any tool of development, and run it
# from another folder. Usage: check_wheel.sh PYTHON
set -eu
python=$1
root=$(cd "$(dirname "$0")/.." && pwd)
case $python in /*) ;; *) python=$root/$python ;; esac
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

"$python" -m build --wheel --outdir "$place/dist" "$root" >"$place/build.log" 2>&1 ||
  { cat "$place/build.log"; exit 1; }
"$python" -m venv "$place/clean"
"$place/clean/bin/python" -m pip install --quiet --disable-pip-version-check \
  -c "$root/constraints.txt" "$place"/dist/*.whl
mkdir "$place/elsewhere" && cd "$place/elsewhere"
"$place/clean/bin/attnviz" --version
"$place/clean/bin/attnviz" explain "A cute teddy bear is reading" --width 80 >walk.txt
grep -q "teddy" walk.txt
grep -q "rows sum to 1" walk.txt
"$place/clean/bin/attnviz" explain "A cute teddy bear is reading" -o walk.json
"$place/clean/bin/python" -m attnviz doctor --format json >doctor.json
"$place/clean/bin/python" -c 'import json; assert all(c["right"] for c in json.load(open("doctor.json"))["selftest"])'
if "$place/clean/bin/python" -c 'import pytest' 2>/dev/null; then
  echo "the wheel brings tools of development along"; exit 1
fi
echo "the wheel works: $(basename "$place"/dist/*.whl)"
