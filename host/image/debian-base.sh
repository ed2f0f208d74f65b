#!/usr/bin/env bash
# Makes a base image for sandboxes from Debian's packages and imports it into Docker's engine, for machines that reach no
# registry of images. The image has Python with its venv module and the libraries that wheels need. Half a minute, 180 MB.
#   host/image/debian-base.sh [--suite SUITE] [--mirror URL] [--tar FILE] [TAG]
# TAG is sandglass-base by default. --tar writes the file system to FILE and imports nothing (- is the standard output).
# Needs mmdebstrap (apt-get install mmdebstrap), as root or with user namespaces.
set -euo pipefail

tag=sandglass-base
suite=
mirror=
tar=
while [ $# -gt 0 ]; do
  case $1 in
    --suite) suite=$2 && shift 2 ;;
    --mirror) mirror=$2 && shift 2 ;;
    --tar) tar=$2 && shift 2 ;;
    -*) sed -n '2,6s/^# //p' "$0" >&2 && exit 2 ;;
    *) tag=$1 && shift ;;
  esac
done

command -v mmdebstrap >/dev/null || {
  echo "debian-base: mmdebstrap is missing: apt-get install mmdebstrap" >&2
  exit 1
}
if [ -z "$suite" ]; then
  # The default is this machine's own release: its archive is in reach, and its keys are here.
  suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
  grep -q '^ID=debian' /etc/os-release || suite=trixie
fi

# Installs the packages without manuals and translations, which are a third of them and which no sandbox reads.
bootstrap() {
  mmdebstrap --quiet --variant=minbase --include=python3,python3-venv,libstdc++6,libgomp1,ca-certificates \
    --aptopt='APT::Install-Recommends "false"' \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    "$suite" - ${mirror:+"$mirror"}
}

if [ -n "$tar" ]; then
  if [ "$tar" = - ]; then bootstrap; else bootstrap >"$tar"; fi
else
  # Written to a file first, so that half a file system never becomes an image.
  file=$(mktemp)
  trap 'rm -f "$file"' EXIT
  bootstrap >"$file"
  docker import --change 'CMD ["python3"]' --change 'LABEL sandglass.image=base' - "$tag" <"$file" >/dev/null
  echo "debian-base: $tag is Debian $suite with $(docker run --rm --network none "$tag" python3 --version)"
fi
