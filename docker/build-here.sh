#!/usr/bin/env bash
# Builds docker/Dockerfile without a container engine, and runs what docker-compose.yml starts, process by process: trains,
# serves, deletes a node, predicts, runs `doctor`, stops. For root on Debian; it leaves nothing behind but the log.
#
#   docker/build-here.sh [LOG]                 on a base that debootstrap makes: Debian's Python
#   BASE=IMAGE docker/build-here.sh [LOG]      on an image that a registry serves, for example the Dockerfile's own
#
# pip in the build uses this machine's configuration: its files become a secret and mounts, so no layer keeps them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

missing=()
for program in buildah debootstrap ip unshare; do command -v $program >/dev/null || missing+=("$program"); done
/usr/bin/python3 -c 'import yaml' 2>/dev/null || missing+=(python3-yaml)
if [ ${#missing[@]} -gt 0 ]; then
    echo "build-here: missing ${missing[*]}. Run: apt install buildah debootstrap iproute2 python3-yaml util-linux" >&2
    exit 3
fi
if [ "$(id -u)" != 0 ]; then
    echo "build-here: chroots need root. Run this as root." >&2
    exit 3
fi

work=$(mktemp -d -t lethe-image.XXXXXX)
mkdir "$work/tmp"
export TMPDIR=$work/tmp
buildah=(buildah --root "$work/images" --runroot "$work/containers")
clean_up() {
    "${buildah[@]}" rm --all >/dev/null 2>&1 || true
    # debootstrap leaves /proc mounted if it is interrupted, and buildah the folder of its layers.
    awk -v under="$work/" 'index($2, under) == 1 {print $2}' /proc/mounts | sort -r | xargs -r -n 1 umount -l
    rm -rf --one-file-system "$work"
}
trap clean_up EXIT
[ $# = 0 ] || exec > >(tee "$1") 2>&1

step() { printf '== %s (%d s)\n' "$*" $SECONDS; }

if [ -z "${BASE-}" ]; then
    step "debootstrap: Debian bookworm with its Python, in place of the base image of the Dockerfile"
    # The mirror of this machine, if it is Debian too.
    mirror=$(awk '$1 == "URIs:" {print $2; exit} $1 == "deb" && $2 ~ /^http/ {print $2; exit}' \
        /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2>/dev/null || true)
    debootstrap --variant=minbase --include=ca-certificates,python-is-python3,python3,python3-venv \
        bookworm "$work/debian" ${mirror:+"$mirror"} >"$work/debootstrap.log" 2>&1 ||
        { tail -n 20 "$work/debootstrap.log"; exit 1; }
    container=$("${buildah[@]}" from scratch)
    "${buildah[@]}" add -q "$container" "$work/debian" / >/dev/null
    BASE=localhost/debian
    "${buildah[@]}" commit -q --rm "$container" $BASE >/dev/null
    rm -rf --one-file-system "$work/debian"
fi

# pip.conf with what this machine's pip is told, and the files that it names.
mounts=()
echo '[global]' >"$work/pip.conf"
while IFS== read -r name value; do
    echo "$name = $value" >>"$work/pip.conf"
    path=${value#file://}
    [ ! -e "$path" ] || mounts+=(--volume "$path:$path:ro")
done < <(python3 -m pip config list 2>/dev/null |
    sed -nE "s/^(global|:env:)\.(index-url|extra-index-url|find-links|cert|trusted-host)='(.*)'$/\2=\3/p" |
    sort -t= -k1,1 -u)

step "buildah build --isolation chroot --file docker/Dockerfile"
# Debian's buildah 1.28 refuses this option of the health check, which came with Docker 25.
sed 's/ --start-interval=[0-9]*s//' docker/Dockerfile >"$work/Dockerfile"
"${buildah[@]}" build --isolation chroot --format docker --file "$work/Dockerfile" \
    --ignorefile docker/Dockerfile.dockerignore --build-arg "BASE=$BASE" --build-arg PIP_OPTIONS=-q \
    --secret "id=pip,src=$work/pip.conf" "${mounts[@]}" --tag lethe:0.1.0 . 2>&1 |
    grep --line-buffered -E '^(\[|STEP|COMMIT|Error|error|ERROR)|Success'
"${buildah[@]}" images --format '{{.Name}}:{{.Tag}} {{.Size}}' localhost/lethe:0.1.0
step "the services of docker-compose.yml, on a network of their own"
# A network, processes and mounts of their own: nothing here meets a port of the machine or outlives this command.
unshare --net --mount --pid --fork --kill-child --mount-proc \
    /usr/bin/python3 docker/run_here.py "$work" "${buildah[@]}"
step "done"
