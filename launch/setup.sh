# Sourced by the scripts beside it: makes .venv once and installs dgt into it (editable); quick the second time.
#   install_dgt "" | install_dgt "test"      # the extras to install
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

install_dgt() {
    local extras=${1:-} stamp wanted python=${PYTHON:-python3}
    if [ ! -x .venv/bin/python ]; then
        echo "Making .venv"
        if ! "$python" -m venv .venv >/dev/null 2>&1; then
            # Debian and Ubuntu ship Python without venv
            rm -rf .venv
            as_root apt-get update -qq && as_root apt-get install -y -qq python3-venv >/dev/null
            "$python" -m venv .venv
        fi
    fi
    stamp=.venv/.dgt-installed-${extras:-base}
    wanted=$(sha256sum pyproject.toml | cut -d' ' -f1)
    if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
        echo "Installing dgt${extras:+[$extras]} into .venv (PyTorch is large: a few minutes the first time)"
        .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".${extras:+[$extras]}"
        echo "$wanted" >"$stamp"
    fi
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}
